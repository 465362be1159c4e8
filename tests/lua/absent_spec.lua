-- Names of other libraries that there are none of: reading one says what to write in its place, which is there.
local absent = require "moonflow.absent"
local flow = require "moonflow"

-- The folder of a path and its last name. "config" is the object of the oldest dialect.
local function folder_of(path)
  if path:find("^config%.train%.") then return flow.function_config().train, path:match("[%w_]+$") end
  if path:find("^config%.") then return flow.function_config(), path:match("[%w_]+$") end
  local folder, name = path:match("^flow%.?(.-)%.?([%w_]+)$")
  local value = flow
  for word in folder:gmatch("[^.]+") do value = rawget(value, word) end
  return value, name
end

describe("an absent name", function()
  for path, advice in pairs(absent) do
    it(path .. " says what to write in its place", function()
      local folder, name = folder_of(path)
      assert.is_table(folder, path .. " is in no folder")
      assert.is_nil(rawget(folder, name), path .. " is there, so nothing need stand for it")
      local fine, problem = pcall(function() return folder[name] end)
      assert.is_false(fine)
      assert.truthy(tostring(problem):find("has no ", 1, true))
      assert.truthy(tostring(problem):find(advice, 1, true), tostring(problem))
      assert.truthy(tostring(problem):find("^[^:]*absent_spec.lua:%d+: "), tostring(problem))
      for ours in advice:gmatch("flow%.[%w_.]*[%w_]") do
        local place, word = folder_of(ours)
        assert.truthy(type(place) == "table" and rawget(place, word) ~= nil, ours .. " is missing too")
      end
    end)
  end

  it("of an option is told of in a table too", function()
    local fine, problem = pcall(function()
      flow.global_function { function_config = { enable_qat = true } } (function() end)
    end)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("no option 'enable_qat'; training for int8 is not supported", 1, true))
  end)

  it("is no setting of several machines, which changes nothing", function()
    flow.config.thread_enable_local_message_queue(true)
    local config = flow.function_config()
    config:enable_all_reduce_group(true):non_distributed_optimizer_group_size_mbyte(100)
    flow.global_function("predict", config, { name = "job" }) (function() end)
  end)

  it("of what other libraries call otherwise gets ours", function()
    for path, ours in pairs {
      ["flow.nn.SpatialConvolution"] = "flow.layers.conv2d", ["flow.nn.LookupTable"] = "flow.layers.embedding",
      ["flow.nn.ClassNLLCriterion"] = "flow.nn.sparse_softmax_cross_entropy_with_logits",
      ["flow.nn.PReLU"] = "flow.layers.prelu", ["flow.nn.GRU"] = "flow.layers.gru", ["flow.Timer"] = "flow.clock",
      ["flow.np.cat"] = "flow.np.concat", ["flow.np.randperm"] = "flow.np.random.permutation",
    } do
      local folder, name = folder_of(path)
      local fine, problem = pcall(function() return folder[name] end)
      assert.is_false(fine)
      assert.truthy(tostring(problem):find("has no '" .. name .. "'; did you mean " .. ours .. "?", 1, true),
        tostring(problem))
    end
  end)

  it("that nothing is known of gets the nearest one", function()
    local fine, problem = pcall(function() return flow.nn.sofmax end)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("flow.nn has no 'sofmax'; did you mean flow.nn.softmax?", 1, true))
  end)
end)
