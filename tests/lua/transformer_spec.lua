-- What nets that write are made of: norms that take no mean off.
local checks = require "checks"
local flow = require "moonflow"
local session = require "moonflow.session"
local np, tp = flow.np, flow.typing
local near = checks.near

-- What a job of `body` gives for one array.
local function run(x, body) return checks.run({ x }, body) end

local function names()
  local list = {}
  for i, entry in ipairs(session.handle():variables()) do list[i] = entry.name .. " " .. tostring(entry.shape) end
  return list
end

before_each(function()
  flow.clear_default_session()
  flow.set_seed(3)
end)

describe("division by the root mean square", function()
  local x = np.array({ { 3, 4, -12 }, { 1, -2, 2 } }, flow.float)

  it("takes no mean off, and scales", function()
    local y = run(x, function(b) return flow.layers.rms_norm(b, { name = "norm", epsilon = 2 }) end)
    assert.same({ "norm-gamma (3)" }, names())
    near(y, x / np.sqrt(np.array { { 169 / 3 + 2 }, { 9 / 3 + 2 } }), 1e-6)
    flow.load_variables { ["norm-gamma"] = np.array({ 1, 10, 100 }, flow.float) }
    local scaled = run(x, function(b) return flow.layers.rms_norm(b, { name = "norm", epsilon = 2 }) end)
    near(scaled, y * np.array { 1, 10, 100 }, 1e-4)
  end)

  it("is of the axes from begin_norm_axis on, with a gamma of their shape or of none", function()
    local volume = np.random.default_rng(1):normal(1, 2, { 4, 2, 3 })
    local y = run(volume, function(b) return flow.layers.rms_norm(b, { name = "norm", begin_norm_axis = 1 }) end)
    assert.same({ "norm-gamma (2, 3)" }, names())
    near((y ^ 2):reshape(4, 6):mean(1), np.ones { 4 }, 1e-4)
    local plain = run(volume, function(b) return flow.nn.rms_norm(b, { begin_norm_axis = 1 }) end)
    assert.is_true(y == plain)
    flow.clear_default_session()
    run(volume, function(b) return flow.layers.rms_norm(b, { scale = false }) end)
    assert.same({}, names())
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
