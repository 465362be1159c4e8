--- What is loaded of an ONNX file: all that its outputs need, or that part of it between values that have been chosen.

local arguments = require "moonflow.arguments"

local part = {}

-- Adds the values that the outputs of a graph need to a set of names, and gives the nodes that make them, in their
-- order. Graphs in these nodes are left with such nodes alone.
local function needed(graph, wanted)
  local nodes = {}
  for _, output in ipairs(graph.outputs) do wanted[output.name] = true end
  for i = #graph.nodes, 1, -1 do
    local raw, is_wanted = graph.nodes[i], false
    for _, name in ipairs(raw.outputs) do is_wanted = is_wanted or name ~= "" and wanted[name] == true end
    if is_wanted then
      table.insert(nodes, raw)
      for _, name in ipairs(raw.inputs) do wanted[name] = true end
      for _, attribute in pairs(raw.attributes) do
        if attribute.g then attribute.g.nodes = needed(attribute.g, wanted) end
      end
    end
  end
  for i = 1, math.floor(#nodes / 2) do nodes[i], nodes[#nodes + 1 - i] = nodes[#nodes + 1 - i], nodes[i] end
  return nodes
end

-- A function that gives the entry of a value of the graph: its name, and its type where the file says it.
local function values_of(file, fail)
  local entries, all = {}, {}
  local function note(name, entry)
    entries[name], all[#all + 1] = entry or entries[name] or { name = name }, name
  end
  for _, raw in ipairs(file.nodes) do
    for _, name in ipairs(raw.outputs) do note(name) end
  end
  for _, list in ipairs { file.inputs, file.outputs } do
    for _, entry in ipairs(list) do note(entry.name, entry) end
  end
  return function(name)
    if entries[name] and name ~= "" then return entries[name] end
    local near = arguments.suggestion(name, all)
    fail((": %s has no value %s%s"):format(file.name, arguments.describe(name),
      near ~= "" and near or "; loaded without outputs, its model:summary() names them"))
  end
end

local function entries_of(names, entry_of, fail, word)
  local list = {}
  for i, name in ipairs(names) do list[i] = entry_of(name) end
  if #list == 0 then fail(": argument " .. word .. " must name a value or more") end
  return list
end

-- Lets no node give what is an input now.
local function cut_before(file)
  local is_input = {}
  for _, input in ipairs(file.inputs) do is_input[input.name] = true end
  for _, raw in ipairs(file.nodes) do
    for i, name in ipairs(raw.outputs) do
      if is_input[name] then raw.outputs[i] = "" end
    end
  end
end

--- Makes a file, as core.onnx_read gives it, that part of it which options of flow.onnx.load say.
--- @param file table
--- @param given table      file, for errors; outputs and inputs, lists of names or nil
--- @param signature table  of who is to blame
--- @return table  the nodes that are left, in their order
--- @return table  a set: the names of what they and the outputs need
function part.cut(file, given, signature)
  local function fail(text) signature:fail(text) end
  file.name = given.file
  local own, entry_of = file.inputs, values_of(file, fail)
  if given.outputs then file.outputs = entries_of(given.outputs, entry_of, fail, "4 ('outputs')") end
  if given.inputs then
    file.inputs = entries_of(given.inputs, entry_of, fail, "5 ('inputs')")
    cut_before(file)
  end
  local wanted, is_input, left = {}, {}, {}
  local nodes = needed(file, wanted)
  for _, input in ipairs(file.inputs) do is_input[input.name] = true end
  for _, input in ipairs(own) do
    if wanted[input.name] then left[#left + 1] = input end
    if wanted[input.name] and not is_input[input.name] then
      fail((": without %s the outputs cannot be computed, so inputs must name it too"):format(
        arguments.describe(input.name)))
    end
  end
  if given.outputs and not given.inputs then file.inputs = left end
  return nodes, wanted
end

return part
