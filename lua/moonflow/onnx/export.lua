--- job:export_onnx: a job as an ONNX file, for other systems to run.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local exported = require "moonflow.onnx.exported"

local signature = arguments.signature("job:export_onnx", {
  { "path", "string" }, { "outputs", "entries?" }, { "any_batch", "boolean", false },
})

--- Writes a job as ONNX.
--- @param job Job
--- @param ... any  as job:export_onnx is called
return function(job, ...)
  local given = signature:parse(...)
  errors.blaming(signature.where, core.onnx_write, given.path, exported(job, given, signature))
end
