-- job:dot: the graph of a job in the language of Graphviz.
local flow = require "moonflow"
local process = require "process"

local tp = flow.typing

-- Reads DOT as strictly as Graphviz does: an error, or { name, nodes = { [id] = attributes }, edges = { "a -> b" },
-- frames = { [label] = { ids } } }.
local function read_dot(text)
  local at = 1
  local function token()
    at = text:find("%S", at)
    if not at then return nil end
    local word = text:match("^[%a_][%w_]*", at) or text:match("^%-?%d+%.?%d*", at) or text:match("^%->", at)
      or text:match("^[{}%[%]=,;]", at)
    if word then
      at = at + #word
      return word
    end
    assert(text:sub(at, at) == '"', "neither a word nor a string at byte " .. at)
    local stop = at + 1
    while text:sub(stop, stop) ~= '"' do
      assert(stop <= #text, "a string without an end at byte " .. at)
      stop = stop + (text:sub(stop, stop) == "\\" and 2 or 1)
    end
    local string = text:sub(at + 1, stop - 1)
    at = stop + 1
    return string, true
  end
  local function want(wanted)
    local got = token()
    assert(got == wanted, ("'%s' where '%s' should be, before byte %d"):format(tostring(got), wanted, at))
  end
  local function attributes()
    local list, before = {}, at
    if token() ~= "[" then at = before return list end
    while true do
      local name = token()
      if name == "]" then return list end
      want "="
      list[name] = token()
      local separator = token()
      if separator == "]" then return list end
      assert(separator == ",")
    end
  end
  local graph = { nodes = {}, edges = {}, frames = {} }
  local function statements(frame)
    while true do
      local word, is_string = token()
      if word == "}" and not is_string then return end
      if word == "subgraph" then
        local inner = {}
        assert(token():find("^cluster"))
        want "{"
        statements(inner)
        graph.frames[inner.label] = inner
      else
        local before = at
        local following = token()
        if following == "=" then
          frame[word] = token()
        elseif following == "->" then
          local target = token()
          graph.edges[#graph.edges + 1] = word .. " -> " .. target
          attributes()
        else
          at = before
          local list = attributes()
          if word ~= "graph" and word ~= "node" and word ~= "edge" then
            assert(not graph.nodes[word], word .. " is there twice")
            graph.nodes[word] = list
            frame[#frame + 1] = word
          end
        end
        want ";"
      end
    end
  end
  want "digraph"
  graph.name = token()
  want "{"
  statements({})
  assert(token() == nil)
  return graph
end

-- The first line of each label: what the box is called.
local function names_of(graph)
  local names, ids = {}, {}
  for id, node in pairs(graph.nodes) do
    local name = node.label:match("^(.-)\\n") or node.label
    names[id], ids[name] = name, id
  end
  return names, ids
end

local function edges_of(graph)
  local names, edges = names_of(graph), {}
  for _, edge in ipairs(graph.edges) do
    local from, to = edge:match("^(%S+) %-> (%S+)$")
    edges[names[from] .. " -> " .. names[to]] = true
  end
  return edges
end

local X = tp.Numpy.Placeholder({ 4, 3 })

local function make_train_job()
  return flow.global_function {
    type = "train", name = "train_job", inputs = { x = X }, returns = tp.Numpy,
  } (function(x)
    local hidden = flow.layers.dense(x, 5, { name = "hidden", activation = flow.nn.relu })
    flow.watch(hidden, function() end)
    local out = flow.layers.dense(hidden, 1, { name = "out" })
    flow.watch_diff(out, function() end)
    local loss = flow.math.square(out + x, { name = "loss" })
    flow.optimizer.SGD(0.1):minimize(loss)
    return loss
  end)
end

describe("job:dot", function()
  it("has a box for each op, input and variable of the body, with its type, and an edge for each use", function()
    local graph = read_dot(make_train_job():dot())
    local _, ids = names_of(graph)
    assert.equal("train_job", graph.name)
    assert.equal("hidden-matmul\\nmatmul\\nfloat32 (4, 5)", graph.nodes[ids["hidden-matmul"]].label)
    assert.equal("x\\ninput\\nfloat32 (4, 3)", graph.nodes[ids.x].label)
    assert.equal("out-bias\\nvariable\\nfloat32 (1)", graph.nodes[ids["out-bias"]].label)
    assert.truthy(graph.nodes[ids.loss].tooltip:find("drawing_spec.lua:%d+$"))
    local edges = edges_of(graph)
    for _, edge in ipairs { "x -> hidden-matmul", "hidden-weight -> hidden-matmul", "hidden-matmul -> hidden-bias_add",
                            "hidden-bias_add -> hidden-activation", "hidden-activation -> out-matmul" } do
      assert.is_true(edges[edge], edge)
    end
  end)

  it("frames the ops of a layer", function()
    local graph = read_dot(make_train_job():dot())
    local names, inside = names_of(graph), {}
    for _, id in ipairs(graph.frames.hidden) do inside[#inside + 1] = names[id] end
    table.sort(inside)
    assert.same({ "hidden-activation", "hidden-bias", "hidden-bias_add", "hidden-matmul", "hidden-weight" }, inside)
    assert.equal(4, #graph.frames.out)
  end)

  it("frames what is in a namespace, and layers inside it", function()
    local job = flow.global_function { inputs = { x = X }, returns = tp.Numpy } (function(x)
      return flow.scope.namespace("tower", function()
        local y = flow.layers.dense(x, 5, { name = "low" })
        return flow.math.tanh(flow.layers.dense(y, 5, { name = "high" }), { name = "end" })
      end)
    end)
    local graph = read_dot(job:dot())
    local names = names_of(graph)
    assert.same({ "tower-end" }, { names[graph.frames.tower[1]], names[graph.frames.tower[2]] })
    assert.equal(4, #graph.frames["tower-low"])
    assert.equal(4, #graph.frames["tower-high"])
  end)

  it("shows what is watched and what is returned", function()
    local job = make_train_job()
    job:watch("out-matmul", function() end)
    local graph = read_dot(job:dot())
    local _, ids = names_of(graph)
    assert.truthy(graph.nodes[ids["hidden-activation"]].label:find("watched: value$"))
    assert.truthy(graph.nodes[ids["out-matmul"]].label:find("watched: value$"))
    assert.truthy(graph.nodes[ids["out-bias_add"]].label:find("watched: gradient$"))
    assert.equal("2", graph.nodes[ids.loss].peripheries)
    assert.is_nil(graph.nodes[ids["hidden-matmul"]].peripheries)
  end)

  it("has one box for gradients and update, or all of their ops", function()
    local job = make_train_job()
    local short, long = read_dot(job:dot()), read_dot(job:dot { backward = true })
    local _, ids = names_of(short)
    local count = tonumber(short.nodes.backward.label:match("^gradients and update\\n(%d+) ops$"))
    assert.is_true(count > 5)
    assert.is_nil(ids["hidden-matmul_matmul"])
    _, ids = names_of(long)
    assert.is_nil(long.nodes.backward)
    assert.truthy(long.nodes[ids["out-matmul_matmul"]].style:find("dashed"))
    local predict = flow.global_function { inputs = { x = X }, returns = tp.Numpy } (function(x) return x * 2 end)
    assert.is_nil(read_dot(predict:dot()).nodes.backward)
  end)

  it("has the steps of the compiled plan, with what was fused in one box", function()
    local graph = read_dot(make_train_job():dot { plan = true })
    local edges = edges_of(graph)
    local function find(label)
      for _, node in pairs(graph.nodes) do
        if node.label:find(label) then return node end
      end
    end
    assert.truthy(find("^hidden%-matmul\\ndense\\n"), "product, bias and relu are one")
    assert.is_nil(find("^hidden%-bias_add\\n"))
    for _, edge in ipairs { "x -> hidden-matmul", "hidden-weight -> hidden-matmul", "hidden-bias -> hidden-matmul" } do
      assert.is_true(edges[edge], edge)
    end
    assert.truthy(find("update"))
    assert.is_nil(graph.nodes.backward)
  end)

  it("knows what each step reads, also where values share their memory", function()
    local job = flow.global_function {
      inputs = { x = tp.Numpy.Placeholder({ 8, 8 }) }, returns = tp.Tuple { tp.Numpy, tp.Numpy },
    } (function(x)
      local a = flow.nn.softmax(x, { name = "a" })
      local b = flow.nn.softmax(a, { name = "b" })
      local c = flow.nn.softmax(b, { name = "c" })
      local d = flow.matmul(c, b, { name = "d" })
      local e = flow.nn.softmax(d, { name = "e" })
      local f = flow.matmul(flow.reshape(e, { 8, 8 }), a, { name = "f" })
      flow.watch(e, function() end)
      return flow.matmul(f, x, { name = "g" }), f
    end)
    local graph = read_dot(job:dot { plan = true })
    local edges, list = edges_of(graph), {}
    for edge in pairs(edges) do list[#list + 1] = edge end
    table.sort(list)
    assert.same({ "a -> b", "a -> f", "b -> c", "b -> d", "c -> d", "d -> e", "e -> f", "f -> g", "x -> a", "x -> g" },
      list)
    local _, ids = names_of(graph)
    assert.truthy(graph.nodes[ids.e].label:find("watched$"))
    assert.equal("2", graph.nodes[ids.f].peripheries)
    assert.equal("2", graph.nodes[ids.g].peripheries)
    assert.is_nil(graph.nodes[ids.e].peripheries)
  end)

  it("is orange where a profile has measured most", function()
    local job = flow.global_function { inputs = { x = X }, returns = tp.Numpy } (function(x)
      return flow.nn.softmax(flow.layers.dense(flow.nn.softmax(x), 5, { name = "between" }))
    end)
    flow.profiler.start()
    job(flow.np.ones({ 4, 3 }))
    flow.profiler.stop()
    local longest, hottest = 0, nil
    for _, node in pairs(read_dot(job:dot { plan = true }).nodes) do
      local ms = tonumber(node.label:match("([%d.]+) ms"))
      if ms then longest = math.max(longest, ms) end
      if node.fillcolor == "#f4a25c" then hottest = ms end
    end
    assert.equal(longest, hottest)
  end)

  it("quotes whatever stands in a name", function()
    local job = flow.global_function { name = 'the "best" \\n', inputs = { x = X }, returns = tp.Numpy } (function(x)
      return flow.math.exp(x, { name = 'a "quoted" \\late\n]; }' })
    end)
    local graph = read_dot(job:dot())
    local _, ids = names_of(graph)
    assert.truthy(ids['a \\"quoted\\" \\\\late ]; }'])
  end)

  it("writes a file, and names one that it cannot write", function()
    local folder, job = process.folder("drawing"), make_train_job()
    local text = job:dot(folder .. "/train.dot")
    assert.equal(text, process.read(folder .. "/train.dot"))
    local fine, problem = pcall(job.dot, job, folder .. "/none/train.dot")
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("none/train.dot", 1, true))
  end)

  it("is drawn by Graphviz where that is installed", function()
    if os.execute("dot -V 2>/dev/null") ~= 0 then return pending("dot is not installed") end
    local run = process.shell("dot -Tsvg", { input = make_train_job():dot { backward = true } })
    assert.equal(0, run.code, run.err)
    assert.equal("", run.err)
    assert.truthy(run.out:find("<svg", 1, true))
    run = process.shell("dot -Tsvg", { input = make_train_job():dot { plan = true } })
    assert.same({ 0, "" }, { run.code, run.err })
  end)
end)
