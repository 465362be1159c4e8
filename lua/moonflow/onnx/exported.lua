--- A job as an ONNX model, for job:export_onnx and flow.onnx.export_memory.
-- What is written is the graph as it was traced, and not as it was compiled, of which ONNX has no words. Values that no
-- result needs are left out.

local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local onnx_writer = require "moonflow.onnx.writer"
local plan = require "moonflow.plan"
local session = require "moonflow.session"
local typing = require "moonflow.typing"

local kOpset = 17

-- The nodes that the results need, in their order, and how often each value is read.
local function needed(graph, results)
  local uses, nodes, all = {}, {}, graph:nodes()
  local function read(id) uses[id] = (uses[id] or 0) + 1 end
  for _, result in ipairs(results) do read(result.id) end
  for i = #all, 1, -1 do
    local node, is_read = all[i], false
    for _, id in ipairs(node.outputs) do is_read = is_read or uses[id] ~= nil end
    if is_read then
      nodes[#nodes + 1] = node
      for _, id in ipairs(node.inputs) do
        if id then read(id) end
      end
    end
  end
  for i = 1, math.floor(#nodes / 2) do nodes[i], nodes[#nodes + 1 - i] = nodes[#nodes + 1 - i], nodes[i] end
  return nodes, uses
end

local function value_entry(name, dtype, sizes) return { name = name, dtype = dtype, shape = sizes } end

-- Inputs, variables and constants.
local function write_source(writer, node, inputs)
  local id = node.outputs[1]
  local name
  if node.kind == "feed" then
    if node.name:match("^System%-") then return end  -- what numbers are drawn from
    local dtype, shape = writer.graph:type(id)
    name = writer:fresh(node.name)
    inputs[#inputs + 1] = value_entry(name, dtype, shape:table())
  elseif node.kind == "variable" then
    name = writer:weight(node.name, session.handle():read(node.name))
  else
    writer.op = node
    name = writer:array((writer.graph:constant_value(id)))
  end
  writer.names[id], writer.given[id] = name, node.kind ~= "constant"
end

local function write_op(writer, node)
  local ops = require "moonflow.onnx.export_ops"
  writer:begin(node)
  local write = ops[node.op]
  if not write then
    writer:fail("has no counterpart in ONNX; there are " .. table.concat(arguments.sorted_keys(ops), ", "))
  end
  local written = { write(writer) }
  if not written[1] then
    writer.bools[node.outputs[1]] = written[2]
    return
  end
  writer.makers[node.outputs[1]] = writer.last
  for i, output in ipairs(node.outputs) do writer.names[output] = written[i] end
end

-- A result has the name that is asked for, or its key, or the name of its op. One that is an input, a weight or another
-- result too is what an Identity gives.
local function write_results(writer, results, names, keys)
  local outputs, renamed = {}, {}
  for i, result in ipairs(results) do
    local source = writer:name_of(result.id)
    local name = names and names[i] or keys[i] or result.name:match("^(.*)/[^/]*$") or result.name
    local is_own = writer.made[source] and not renamed[source]
    if not names and not (is_own and name == source) then name = writer:fresh(name) end
    if is_own then
      renamed[source] = name
    else
      writer.nodes[#writer.nodes + 1] = { op = "Identity", name = writer:fresh(name .. "_result"), inputs = { source },
                                          outputs = { name }, attributes = {} }
    end
    outputs[i] = value_entry(name, result.dtype, result.shape)
  end
  writer:rename(renamed)
  return outputs
end

local function check(job, given, signature)
  local where = signature.where
  if job.type == "train" then
    errors.raise("invalid_argument", where .. ": " .. job.name .. " trains; define a job of type \"predict\" "
      .. "with the same network, whose variables it shares")
  end
  if job.dynamic then
    errors.raise("unsupported", where .. ": " .. job.name .. " takes arrays of any shape; define it with "
      .. "flow.typing.Numpy.Placeholder")
  end
  local own = job.plan
  own:check_open()
  for _, node in ipairs(own.graph:nodes()) do
    if node.op == "assign" or node.op == "assign_add" then
      errors.raise("unsupported", ("%s: %s writes a variable in each run (%s at %s), of which ONNX has no "
        .. "word; take the value as an input, and return what it becomes"):format(where, job.name, node.op, node.site))
    end
  end
  if #own.results == 0 then errors.raise("invalid_argument", where .. ": " .. job.name .. " returns nothing") end
  for i, name in ipairs(given.outputs or {}) do
    if type(name) ~= "string" or name == "" then
      signature:fail(": entry " .. i .. " of outputs must be a name, got " .. arguments.describe(name))
    end
    for _, leaf in ipairs(job.leaves) do
      if leaf.name == name then
        signature:fail((": outputs has '%s', which is an input too; in a file each value has a name of its own, such "
          .. "as 'next_%s'"):format(name, name))
      end
    end
  end
  if given.outputs and #given.outputs ~= #own.results then
    signature:fail((": outputs has %d names, and %s returns %d values"):format(#given.outputs, job.name, #own.results))
  end
end

-- The graph of a plan: its inputs and outputs, and the writer that has the rest.
local function written(job, of, given, signature)
  local writer = onnx_writer.new(of.graph, signature.where .. ": " .. job.name)
  for _, name in ipairs(given.outputs or {}) do
    if writer.taken[name] then signature:fail(": two outputs have the name '" .. name .. "'") end
    writer.taken[name] = true
  end
  local nodes, uses = needed(of.graph, of.results)
  local inputs = {}
  writer.uses = uses
  for _, node in ipairs(nodes) do
    if node.kind == "op" then write_op(writer, node) else write_source(writer, node, inputs) end
  end
  local outputs = write_results(writer, of.results, given.outputs, typing.keys(of.skeleton))
  return { inputs = inputs, outputs = outputs, writer = writer }
end

-- The graph for a batch of any size, made of what the job's body is for some.
local function written_for_any_batch(job, given, signature)
  local batch = require "moonflow.onnx.batch"
  local axes, graphs = {}, {}
  for i, size in ipairs(batch.sizes) do
    local leaves = {}
    for k, leaf in ipairs(job.leaves) do
      local axis, shape = leaf.placeholder.batch_axis, { unpack(leaf.shape) }
      if axis then shape[axis + 1], axes[leaf.name] = size, axis end
      leaves[k] = { name = leaf.name, placeholder = leaf.placeholder, shape = shape }
    end
    local fine, made = pcall(plan.make, job, leaves)
    if not fine then
      errors.raise("unsupported", ("%s: with any_batch the body of %s is traced for a batch of %d, and "
        .. "fails: %s; let it take the size from the shape of an input, or write it without any_batch where not every "
        .. "size will do"):format(signature.where, job.name, size, tostring(made)))
    end
    graphs[i] = written(job, made, given, signature)
  end
  if not next(axes) then
    signature:fail(": any_batch wants a job with a batch, and no input of " .. job.name .. " has one")
  end
  return batch.merge(graphs, axes)
end

--- The model that the core writes.
--- @param job Job
--- @param given table      outputs, any_batch: as of job:export_onnx
--- @param signature table  of what has been called
return function(job, given, signature)
  check(job, given, signature)
  if not job.plan.ready then job.plan:prepare() end
  local graph = given.any_batch and written_for_any_batch(job, given, signature)
    or written(job, job.plan, given, signature)
  return {
    opset = kOpset, producer = "moonflow", name = job.name, inputs = graph.inputs, outputs = graph.outputs,
    initializers = graph.writer.initializers, nodes = graph.writer.nodes,
  }
end
