-- Names of OneFlow that there are none of: reading one says what to write in its place, which is there.
local absent = require "moonflow.absent"
local flow = require "moonflow"

local function folder_of(path)
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

  it("that nothing is known of gets the nearest one", function()
    local fine, problem = pcall(function() return flow.nn.sofmax end)
    assert.is_false(fine)
    assert.truthy(tostring(problem):find("flow.nn has no 'sofmax'; did you mean flow.nn.softmax?", 1, true))
  end)
end)
