-- What nets that write are made of: norms that take no mean off, rotary positions, heads that share keys, keys of
-- earlier calls.
local checks = require "checks"
local flow = require "moonflow"
local np, tp = flow.np, flow.typing
local near = checks.near

-- What a job of `body` gives for one array.
local function run(x, body) return checks.run({ x }, body) end

before_each(function()
  flow.clear_default_session()
  flow.set_seed(3)
end)

describe("division by the root mean square", function()
  local x = np.array({ { 3, 4, -12 }, { 1, -2, 2 } }, flow.float)

  it("takes no mean off, and scales", function()
    local y = run(x, function(b) return flow.layers.rms_norm(b, { name = "norm", epsilon = 2 }) end)
    assert.same({ "norm-gamma (3)" }, checks.variables())
    near(y, x / np.sqrt(np.array { { 169 / 3 + 2 }, { 9 / 3 + 2 } }), 1e-6)
    flow.load_variables { ["norm-gamma"] = np.array({ 1, 10, 100 }, flow.float) }
    local scaled = run(x, function(b) return flow.layers.rms_norm(b, { name = "norm", epsilon = 2 }) end)
    near(scaled, y * np.array { 1, 10, 100 }, 1e-4)
  end)

  it("is of the axes from begin_norm_axis on, with a gamma of their shape or of none", function()
    local volume = np.random.default_rng(1):normal(1, 2, { 4, 2, 3 })
    local y = run(volume, function(b) return flow.layers.rms_norm(b, { name = "norm", begin_norm_axis = 1 }) end)
    assert.same({ "norm-gamma (2, 3)" }, checks.variables())
    near((y ^ 2):reshape(4, 6):mean(1), np.ones { 4 }, 1e-4)
    local plain = run(volume, function(b) return flow.nn.rms_norm(b, { begin_norm_axis = 1 }) end)
    assert.is_true(y == plain)
    flow.clear_default_session()
    run(volume, function(b) return flow.layers.rms_norm(b, { scale = false }) end)
    assert.same({}, checks.variables())
  end)

  it("has the gradient of its formula", function()
    local function trained(norm)
      flow.clear_default_session()
      local job = flow.global_function {
        type = "train", inputs = { b = tp.Numpy.Placeholder({ 2, 3 }) }, returns = tp.Numpy,
      } (function(b)
        local w = flow.get_variable("w", { shape = { 2, 3 }, initializer = flow.ones_initializer() })
        local gamma = flow.get_variable("gamma", { shape = { 3 }, initializer = flow.constant_initializer(2) })
        flow.optimizer.SGD(1, { momentum = 0 }):minimize(flow.math.reduce_sum(norm(b * w, gamma) ^ 3))
        return w
      end)
      job(x)
      return flow.get_all_variables { slots = false }
    end
    local got = trained(function(b, gamma) return flow.nn.rms_norm(b, gamma, { epsilon = 0.5 }) end)
    local want = trained(function(b, gamma)
      return b * flow.math.rsqrt(flow.math.reduce_mean(b ^ 2, -1, { keepdims = true }) + 0.5) * gamma
    end)
    near(got.w, want.w, 1e-4)
    near(got.gamma, want.gamma, 1e-4)
  end)
end)

describe("rotary positions", function()
  local function turned(x, options, places)
    flow.clear_default_session()
    local given = {}
    for key, value in pairs(options or {}) do given[key] = value end
    if not places then return run(x, function(b) return flow.nn.rotary_embedding(b, given) end) end
    return checks.run({ x, places }, function(b, at)
      given.places = at
      return flow.nn.rotary_embedding(b, given)
    end)
  end
  -- One head of one sentence, whose words are the rows.
  local function heads_of(rows) return np.array(rows, flow.float):reshape(1, #rows, 1, #rows[1]) end

  it("are as exact where the run gives the places", function()
    local x = np.random.uniform(-1, 1, { 1, 2000, 1, 8 }, "float64")
    near(turned(x), turned(x, nil, np.arange(2000)), 1e-12)
  end)

  it("turn the i-th numbers of both halves, or neighbours, by the place times an angle that falls with i", function()
    local c, s = math.cos, math.sin
    local slow = 100 ^ (-1 / 2)
    near(turned(heads_of { { 5, 6, 7, 8 }, { 1, 2, 3, 4 } }, { base = 100 }), heads_of {
      { 5, 6, 7, 8 },
      { c(1) - 3 * s(1), 2 * c(slow) - 4 * s(slow), s(1) + 3 * c(1), 2 * s(slow) + 4 * c(slow) } }, 1e-6)
    near(turned(heads_of { { 5, 6, 7, 8 }, { 1, 2, 3, 4 } }, { base = 100, interleaved = true }), heads_of {
      { 5, 6, 7, 8 },
      { c(1) - 2 * s(1), s(1) + 2 * c(1), 3 * c(slow) - 4 * s(slow), 3 * s(slow) + 4 * c(slow) } }, 1e-6)
    near(turned(heads_of { { 9, 9, 9 }, { 1, 2, 3 } }, { width = 2 }), heads_of {
      { 9, 9, 9 }, { c(1) - 2 * s(1), s(1) + 2 * c(1), 3 } }, 1e-6)
  end)

  it("are those of the places that a run is given, of all texts or of each", function()
    local x = np.random.default_rng(1):normal(0, 1, { 2, 6, 3, 8 })
    local all = turned(x)
    near(turned(x, {}, np.arange(6, { dtype = flow.int32 })), all, 1e-5)
    near(turned(x, {}, np.stack { np.arange(6, { dtype = flow.int64 }), np.arange(6, { dtype = flow.int64 }) }), all,
      1e-5)
    near(turned(x:slice(":, 2:4"), {}, np.array({ { 2, 3 } }, flow.int32)), all:slice(":, 2:4"), 1e-5)
    local apart = turned(x:slice(":, :2"), {}, np.array({ { 0, 1 }, { 4, 5 } }, flow.int32))
    near(apart[0], all[0]:slice(":2"), 1e-5)
    assert.is_false(np.allclose(apart[1], all[1]:slice(":2"), { atol = 0.1 }))
  end)

  it("let products of queries and keys depend on how far apart they are", function()
    local rng = np.random.default_rng(2)
    local q, k = rng:normal(0, 1, { 1, 1, 1, 8 }), rng:normal(0, 1, { 1, 1, 1, 8 })
    local function product(i, j)
      return np.sum(turned(q, {}, np.array({ i }, flow.int32)) * turned(k, {}, np.array({ j }, flow.int32)))
    end
    assert.near(product(0, 3), product(17, 20), 1e-4)
  end)

  it("name what does not fit", function()
    local x = heads_of { { 1, 2, 3 } }
    checks.refuses("width is 3, wanted an even number from 2 to 3, which each head has", turned, x)
    checks.refuses("'b' is (1, 3), wanted (batch, length, heads, width)", turned, x:reshape(1, 3))
    checks.refuses("places is int32 (2), wanted integers (1, 1), one for each word of 'b'", turned, x, { width = 2 },
      np.array({ 1, 2 }, flow.int32))
    checks.refuses("places is float32 (1), wanted integers (1, 1)", turned, x, { width = 2 }, np.array { 1 })
    checks.refuses("base must be above 0, got -1", turned, x, { width = 2, base = -1 })
  end)
end)

describe("heads of queries that share keys and values", function()
  local function attended(own, options)
    flow.clear_default_session()
    local rng = np.random.default_rng(4)
    local query, key, value = rng:normal(0, 1, { 2, 5, 6, 4 }), rng:normal(0, 1, { 2, 5, 2, 4 }),
      rng:normal(0, 1, { 2, 5, 2, 4 })
    if own then key, value = np.repeat_interleave(key, 3, 2), np.repeat_interleave(value, 3, 2) end
    return checks.run({ query, key, value }, function(q, k, v)
      local y = flow.nn.dot_product_attention(q, k, v, options())
      local dk, dv = unpack(flow.gradients(flow.math.reduce_sum(y ^ 2), { k, v }))
      return y, dk, dv
    end, { returns = tp.Tuple { tp.Numpy, tp.Numpy, tp.Numpy } })
  end

  it("are as heads of which each has a copy, whose gradients are added", function()
    local keys = np.array({ 1, 1, 0, 1, 0 }, "int8")
    local per_head = np.ones({ 6, 1, 5 }, "int8")
    per_head:set(1, 0, 3, 0)
    for _, options in ipairs {
      function() return { causal = true } end,
      function() return { name = "heads" } end,
      function() return { mask = flow.cast(keys, "int8"), scale = 0.3 } end,
      function() return { mask = flow.cast(per_head, "int8") } end,
    } do
      local y, dk, dv = attended(false, options)
      local wanted, own_dk, own_dv = attended(true, options)
      near(y, wanted, 1e-6)
      near(dk, own_dk:reshape(2, 5, 2, 3, 4):sum(3), 1e-5)
      near(dv, own_dv:reshape(2, 5, 2, 3, 4):sum(3), 1e-5)
    end
  end)

  it("are a whole number for each", function()
    local q, k = np.zeros { 1, 1, 4, 2 }, np.zeros { 1, 1, 3, 2 }
    checks.raises("shape_mismatch", "query is (1, 1, 4, 2), key is (1, 1, 3, 2)", checks.run, { q, k }, function(a, b)
      return flow.nn.dot_product_attention(a, b, b)
    end)
  end)
end)

describe("keys and values of earlier calls", function()
  local LENGTH, PAST = 7, 4

  -- Queries, keys and values of two texts, drawn, with heads that share keys where `shared` is below 6.
  local function drawn(shared)
    local rng = np.random.default_rng(5)
    return rng:normal(0, 1, { 2, LENGTH, 6, 4 }), rng:normal(0, 1, { 2, LENGTH, shared, 4 }),
      rng:normal(0, 1, { 2, LENGTH, shared, 3 })
  end
  local function parts(x) return x:slice((":, :%d"):format(PAST)), x:slice((":, %d:"):format(PAST)) end

  it("are seen as if they stood before those of this call", function()
    for _, shared in ipairs { 6, 2 } do
      flow.clear_default_session()
      local query, key, value = drawn(shared)
      local all = checks.run({ query, key, value }, function(q, k, v)
        return flow.nn.dot_product_attention(q, k, v, { causal = true })
      end)
      local past_key, new_key = parts(key)
      local past_value, new_value = parts(value)
      local _, last = parts(query)
      local y = checks.run({ last, new_key, new_value, past_key, past_value }, function(q, k, v, pk, pv)
        return flow.nn.dot_product_attention(q, k, v, { causal = true, past_key = pk, past_value = pv })
      end)
      local _, wanted = parts(all)
      near(y, wanted, 1e-6)
    end
  end)

  it("count where their mask lets them, and as nothing where it lets none", function()
    local query, key, value = drawn(6)
    local is_there = np.array({ { 1, 0, 1, 1 }, { 0, 0, 0, 0 } }, "int8"):reshape(2, 1, 1, PAST)
    local past_key, new_key = parts(key)
    local past_value, new_value = parts(value)
    local _, last = parts(query)
    local y = checks.run({ last, new_key, new_value, past_key, past_value, is_there }, function(q, k, v, pk, pv, there)
      return flow.nn.dot_product_attention(q, k, v, { past_key = pk, past_value = pv, past_mask = there })
    end)
    flow.clear_default_session()
    local all_there = np.concat({ is_there, np.ones({ 2, 1, 1, LENGTH - PAST }, "int8") }, 3)
    local wanted = checks.run({ last, key, value, all_there }, function(q, k, v, there)
      return flow.nn.dot_product_attention(q, k, v, { mask = there })
    end)
    near(y, wanted, 1e-6)
  end)

  it("have scores that are bounded, and masks that are added, as the others have", function()
    local query, key, value = drawn(2)
    local past_key, new_key = parts(key)
    local past_value, new_value = parts(value)
    local _, last = parts(query)
    local queries = last.shape[1]
    local slopes = np.random.normal(0, 1, { 6, queries, LENGTH }):astype("float32")
    local past_slopes, new_slopes = slopes:slice((":, :, :%d"):format(PAST)), slopes:slice((":, :, %d:"):format(PAST))
    local there = np.array({ { 1, 0, 1, 1 }, { 0, 0, 0, 0 } }, "int8"):reshape(2, 1, 1, PAST)
    local added = np.where(np.concat({ there, np.ones({ 2, 1, 1, LENGTH - PAST }, "int8") }, 3), 0, -math.huge)
    local all_there = added:astype("float32")
    local cases = {
      { { softcap = 0.5 }, { softcap = 0.5 } },
      { { mask = new_slopes, past_mask = past_slopes }, { mask = slopes } },
      { { past_mask = there, softcap = 2 }, { mask = all_there, softcap = 2 } },
      { { past_mask = past_slopes }, { mask = np.concat({ past_slopes, np.zeros_like(new_slopes) }, 2) } },
      { { mask = new_slopes, past_mask = there },
        { mask = np.broadcast_to(all_there, { 2, 6, queries, LENGTH })
          + np.concat({ np.zeros_like(past_slopes), new_slopes }, 2) } },
    }
    for _, case in ipairs(cases) do
      flow.clear_default_session()
      local y = checks.run({ last, new_key, new_value, past_key, past_value }, function(q, k, v, pk, pv)
        case[1].past_key, case[1].past_value = pk, pv
        return flow.nn.dot_product_attention(q, k, v, case[1])
      end)
      flow.clear_default_session()
      local wanted = checks.run({ last, key, value }, function(q, k, v)
        return flow.nn.dot_product_attention(q, k, v, case[2])
      end)
      near(y, wanted, 1e-6)
    end
    flow.clear_default_session()
    local causal = checks.run({ query, key, value }, function(q, k, v)
      return flow.nn.dot_product_attention(q, k, v, { causal = true, softcap = 0.5 })
    end)
    flow.clear_default_session()
    local y = checks.run({ last, new_key, new_value, past_key, past_value }, function(q, k, v, pk, pv)
      return flow.nn.dot_product_attention(q, k, v, { causal = true, softcap = 0.5, past_key = pk, past_value = pv })
    end)
    local _, wanted = parts(causal)
    near(y, wanted, 1e-6)
    checks.refuses("past_mask is (3), which cannot be repeated to (batch, heads, queries, keys) = (2, 6, ", checks.run,
      { last, new_key, new_value, past_key, past_value }, function(q, k, v, pk, pv)
        return flow.nn.dot_product_attention(q, k, v, { softcap = 1, past_key = pk, past_value = pv,
          past_mask = np.ones({ 3 }, "int8") })
      end)
  end)

  it("give 0 to a query that may look at nothing at all, and pass gradients on", function()
    local query, key, value = drawn(6)
    local past_key, new_key = parts(key)
    local past_value, new_value = parts(value)
    local _, last = parts(query)
    local arrays = { last, new_key, new_value, past_key, past_value }
    local nothing = checks.run(arrays, function(q, k, v, pk, pv)
      local none = flow.zeros({ 1 }, { dtype = "int8" })
      return flow.nn.dot_product_attention(q, k, v, { mask = none, past_key = pk, past_value = pv, past_mask = none })
    end)
    assert.is_true(nothing == np.zeros_like(nothing))
    local function slopes(attend)
      flow.clear_default_session()
      return { checks.run(arrays, function(q, k, v, pk, pv)
        return unpack(flow.gradients(flow.math.reduce_sum(attend(q, k, v, pk, pv) ^ 3), { q, k, v, pk, pv }))
      end, { returns = tp.Tuple { tp.Numpy, tp.Numpy, tp.Numpy, tp.Numpy, tp.Numpy } }) }
    end
    local got = slopes(function(q, k, v, pk, pv)
      return flow.nn.dot_product_attention(q, k, v, { past_key = pk, past_value = pv })
    end)
    local wanted = slopes(function(q, k, v, pk, pv)
      return flow.nn.dot_product_attention(q, flow.concat({ pk, k }, 1), flow.concat({ pv, v }, 1))
    end)
    for i = 1, 5 do near(got[i], wanted[i], 1e-5) end
  end)

  it("say what they lack", function()
    local query, key, value = drawn(6)
    checks.refuses("past_key and past_value go together, and past_value is missing", checks.run,
      { query, key, value }, function(q, k, v) return flow.nn.dot_product_attention(q, k, v, { past_key = k }) end)
    checks.refuses("past_mask is of past_key and past_value, which are not given", checks.run,
      { query, key, value }, function(q, k, v)
        return flow.nn.dot_product_attention(q, k, v, { past_mask = flow.ones({ 1 }, { dtype = "int8" }) })
      end)
  end)
end)

-- The recipe of docs/networks.md, "Several texts at once", with two layers and grouped queries.
describe("texts of several lengths that grow together", function()
  local TEXTS, LENGTH, WORDS, HEADS, SHARED, WIDTH = 3, 9, 11, 4, 2, 16

  local function net(words, places, attend)
    local count = words.shape[1]
    local x = flow.layers.embedding(words, WORDS, WIDTH, { name = "table" })
    for layer = 1, 2 do
      local h = flow.layers.rms_norm(x, { name = "norm" .. layer })
      local function heads(name, many)
        local all = flow.layers.dense(h, many * WIDTH / HEADS, { name = name .. layer })
        return flow.reshape(all, { words.shape[0], count, many, WIDTH / HEADS })
      end
      local query = flow.nn.rotary_embedding(heads("query", HEADS), places)
      local key, value = flow.nn.rotary_embedding(heads("key", SHARED), places), heads("value", SHARED)
      x = x + flow.reshape(attend(layer, query, key, value), { words.shape[0], count, WIDTH })
    end
    return flow.layers.dense(x, WORDS, { name = "logits" })
  end

  local function reading(count)
    local some = tp.Numpy.Placeholder({ TEXTS, count }, { dtype = flow.int32 })
    return flow.global_function {
      name = "read" .. count, inputs = { words = some, places = some }, returns = tp.Numpy,
    } (function(words, places)
      local texts = flow.reshape(flow.range(TEXTS, { dtype = flow.int32 }), { TEXTS, 1, 1 })
      local at = flow.concat({ flow.broadcast_to(texts, { TEXTS, count, 1 }), flow.expand_dims(places, 2) }, 2)
      local is_earlier = flow.range(LENGTH, { dtype = flow.int32 }):lt(flow.slice(places, { 0, 0 }, { TEXTS, 1 }))
      return net(words, places, function(layer, query, key, value)
        local function earlier(name, new)
          local rows = flow.get_variable(name .. layer, { shape = { TEXTS, LENGTH, SHARED, WIDTH / HEADS },
            trainable = false, initializer = flow.zeros_initializer() })
          flow.assign(rows, flow.tensor_scatter_nd_update(rows, at, new))
          return rows
        end
        return flow.nn.dot_product_attention(query, key, value, {
          causal = true, past_key = earlier("keys", key), past_value = earlier("values", value),
          past_mask = flow.reshape(is_earlier, { TEXTS, 1, 1, LENGTH }) })
      end)
    end)
  end

  it("see what each sees as a whole, of prompts that are filled up and of words that are added", function()
    local whole = flow.global_function {
      inputs = { words = tp.Numpy.Placeholder({ 1, LENGTH }, { dtype = flow.int32 }) }, returns = tp.Numpy,
    } (function(words)
      return net(words, nil, function(_, query, key, value)
        return flow.nn.dot_product_attention(query, key, value, { causal = true })
      end)
    end)
    local read, go_on = reading(5), reading(1)
    local lengths, rng = { 2, 5, 1 }, np.random.default_rng(6)
    for _ = 1, 2 do  -- the second ones are written over what is left of the first ones
      local texts = rng:integers(0, WORDS, { TEXTS, LENGTH }):astype(flow.int32)
      local wanted = {}
      for i = 1, TEXTS do wanted[i] = whole(texts:rows(i - 1, 1))[0] end
      local words = texts:slice(":, :5"):copy()
      for i, length in ipairs(lengths) do
        for place = length, 4 do words:set(i - 1, place, 0) end
      end
      local seen = read(words, np.broadcast_to(np.arange(5, { dtype = flow.int32 }), { TEXTS, 5 }))
      for i, length in ipairs(lengths) do near(seen[i - 1]:rows(0, length), wanted[i]:rows(0, length), 1e-5) end
      for step = 0, 3 do
        local now, places = np.zeros({ TEXTS, 1 }, flow.int32), np.zeros({ TEXTS, 1 }, flow.int32)
        for i, length in ipairs(lengths) do
          places:set(i - 1, 0, length + step)
          now:set(i - 1, 0, texts[i - 1][length + step])
        end
        local more = go_on(now, places)
        for i, length in ipairs(lengths) do near(more[i - 1][0], wanted[i][length + step], 1e-5) end
      end
    end
  end)
end)

describe("a variable that is given itself with other rows", function()
  -- What two runs leave of (2, 3, 2), and the steps of the plan.
  local function kept(also)
    flow.clear_default_session()
    local rows = tp.Numpy.Placeholder({ 2, 2 }, { dtype = flow.int32 })
    local job = flow.global_function {
      inputs = { at = rows, updates = tp.Numpy.Placeholder({ 2, 2 }) }, returns = tp.Numpy,
    } (function(at, updates)
      local cache = flow.get_variable("cache", { shape = { 2, 3, 2 }, trainable = false,
        initializer = flow.constant_initializer(7) })
      local now = flow.tensor_scatter_nd_update(cache, at, updates * 1)
      flow.assign(cache, now)
      return also and now or cache * 1
    end)
    local seen = job(np.array({ { 0, 1 }, { 1, 2 } }, flow.int32), np.array { { 1, 2 }, { 3, 4 } })
    job(np.array({ { 1, 0 }, { 1, 0 } }, flow.int32), np.array { { 5, 5 }, { 6, 6 } })
    return flow.get_all_variables().cache, seen, job
  end
  local wanted = { { { 7, 7 }, { 1, 2 }, { 7, 7 } }, { { 6, 6 }, { 7, 7 }, { 3, 4 } } }

  it("is written there alone, after all that reads it, and the last of several rows stays", function()
    local cache, seen, job = kept()
    assert.same(wanted, cache:totable())
    assert.is_true(seen == np.full({ 2, 3, 2 }, 7))
    if not os.getenv("MOONFLOW_TEST_PLACEMENT") then
      local plan = job:summary { plan = true }
      assert.truthy(plan:find("tensor_scatter_nd_assign", 1, true), plan)
      assert.falsy(plan:find("tensor_scatter_nd_update", 1, true), plan)
    end
  end)

  it("is the same where the job reads what it becomes", function()
    local cache, seen = kept(true)
    assert.same(wanted, cache:totable())
    assert.same({ { { 7, 7 }, { 1, 2 }, { 7, 7 } }, { { 7, 7 }, { 7, 7 }, { 3, 4 } } }, seen:totable())
  end)

  it("keeps all of its rows where a place is out of bounds", function()
    local cache, _, job = kept()
    checks.raises("out_of_range", "indices at (1, 1) is 3, outside [0, 3)", job,
      np.array({ { 0, 0 }, { 0, 3 } }, flow.int32), np.zeros { 2, 2 })
    assert.is_true(flow.get_all_variables().cache == cache)
  end)
end)

describe("attention with a bias on its scores", function()
  local rng = np.random.default_rng(2)
  local x = rng:normal(0, 1, { 2, 5, 4, 3 })
  local bias = rng:normal(0, 1, { 4, 5, 5 })

  -- Of the heads of x with themselves, in float64 and one formula.
  local function formula(scores_of)
    local rows = x:astype("float64"):transpose({ 0, 2, 1, 3 })
    local scores = scores_of(np.matmul(rows, rows:transpose({ 0, 1, 3, 2 })) / math.sqrt(3))
    local weights = np.exp(scores - scores:max(3, { keepdims = true }))
    weights = weights / weights:sum(3, { keepdims = true })
    return np.matmul(weights, rows):transpose({ 0, 2, 1, 3 })
  end
  local function attend(options)
    return function(b) return flow.nn.dot_product_attention(b, b, b, options()) end
  end

  it("adds it before the softmax", function()
    near(run(x, attend(function() return { mask = bias } end)),
      formula(function(scores) return scores + bias:astype("float64") end), 1e-6)
    local triangle = np.tril(np.ones({ 5, 5 }))
    near(run(x, attend(function() return { mask = bias, causal = true } end)),
      formula(function(scores) return np.where(triangle:gt(0), scores + bias:astype("float64"), -1e30) end), 1e-6)
  end)

  it("gives what a mask of int8 gives where it is minus infinity, 0 where nothing is left", function()
    local may = rng:uniform(0, 1, { 2, 1, 5, 5 }):gt(0.4)
    may:set("0, 0, 2", 0)
    local wanted = run(x, attend(function() return { mask = may } end))
    local added = np.where(may, 0, -math.huge):astype("float32")
    local got = run(x, attend(function() return { mask = added } end))
    near(got, wanted, 1e-6)
    assert.equal(0, np.abs(got:slice("0, 2")):max())
  end)

  it("bounds scores, before a mask of either kind", function()
    local function bounded(scores) return 0.5 * np.tanh(scores / 0.5) end
    near(run(x, attend(function() return { softcap = 0.5 } end)), formula(bounded), 1e-6)
    near(run(x, attend(function() return { softcap = 0.5, mask = bias } end)),
      formula(function(scores) return bounded(scores) + bias:astype("float64") end), 1e-6)
    local triangle = np.tril(np.ones({ 5, 5 }))
    near(run(x, attend(function() return { softcap = 0.5, mask = triangle:astype("int8") } end)),
      formula(function(scores) return np.where(triangle:gt(0), bounded(scores), -1e30) end), 1e-6)
  end)

  it("is for heads that share keys, and learns", function()
    local function losses(bias_of)
      flow.clear_default_session()
      local job = flow.global_function {
        type = "train", inputs = { b = tp.Numpy.Placeholder({ 2, 5, 4, 3 }) }, returns = tp.Numpy,
      } (function(b)
        local shared = flow.slice(b, { 0, 0, 0, 0 }, { 2, 5, 2, 3 })
        local table_of = flow.get_variable("bias", { shape = { 4, 5, 5 }, initializer = flow.zeros_initializer() })
        local loss = flow.math.reduce_mean((flow.nn.dot_product_attention(b, shared, shared, {
          mask = bias_of(table_of) }) - 1) ^ 2)
        flow.optimizer.SGD(20, { momentum = 0 }):minimize(loss)
        return loss
      end)
      local list = {}
      for i = 1, 5 do list[i] = job(x):item() end
      return list, flow.get_all_variables({ slots = false }).bias
    end
    local list, learnt = losses(function(table_of) return table_of end)
    for i = 2, 5 do assert.is_true(list[i] < list[i - 1]) end
    -- A softmax sees no number that all keys have.
    near(learnt:sum(2), np.zeros({ 4, 5 }), 1e-4)
    assert.is_true(np.abs(learnt):max() > 0.1)
  end)

  it("says what does not fit", function()
    local function refuses(text, options)
      checks.raises("invalid_argument", text, run, x, attend(options))
    end
    refuses("mask is (3, 5), which cannot be repeated to (batch, heads, queries, keys) = (2, 4, 5, 5)",
      function() return { mask = flow.zeros({ 3, 5 }) } end)
    refuses("softcap must be at least 0, got -1", function() return { softcap = -1 } end)
    refuses("past_mask is of past_key and past_value, which are not given", function()
      return { mask = flow.zeros({ 5, 5 }), past_mask = np.ones({ 5 }, "int8") }
    end)
    checks.raises("dtype_mismatch", "mask is float64 (5, 5), it must be int8 as comparisons give it", run, x,
      attend(function() return { mask = flow.zeros({ 5, 5 }, { dtype = flow.double }) } end))
  end)
end)
