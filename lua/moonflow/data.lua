-- flow.data: data sets in memory, pictures in files, MNIST, and records of OneFlow's files.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local dataset = require "moonflow.dataset"
local errors = require "moonflow.errors"
local iterator = require "moonflow.iterator"

local data = {
  Dataset = dataset.Dataset,
  batches = dataset.batches,
  Pictures = require "moonflow.pictures",
  load_mnist = require "moonflow.mnist",
}

local ofrecords_signature = arguments.signature("flow.data.ofrecords", { { "paths", "any" } })

--- Goes through the records of OFRecord files, OneFlow's data sets, one after the other:
--- `for i, record in flow.data.ofrecords({ "train/part-0", "train/part-1" }) do`, i from 0.
--- `record.name` is the feature of that name: of numbers an array (count) of float32, float64, int32 or int64, of bytes
--- a string, or a list where there are several. `np.from_string(record.image, { 28, 28 }, "uint8")` makes an array of
--- raw ones.
--- @param paths string|string[]  one file, or several in their order
--- @return iterator
--- @error a file that is missing, cut short or damaged, with the byte where its record begins
function data.ofrecords(...)
  local paths = ofrecords_signature:parse(...).paths
  if type(paths) == "string" then paths = { paths } end
  if type(paths) ~= "table" or #paths == 0 then
    errors.raise("invalid_argument", "flow.data.ofrecords wants a path or a list of paths, got "
      .. arguments.describe(paths))
  end
  local i, part, offset = -1, 1, 0
  return iterator.new(nil, function()
    while paths[part] do
      local record, next_offset = errors.blaming("flow.data.ofrecords", core.ofrecord_read, paths[part], offset)
      if record then
        i, offset = i + 1, next_offset
        return i, record
      end
      part, offset = part + 1, 0
    end
  end)
end

return data
