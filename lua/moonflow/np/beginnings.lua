--- What files of several kinds begin with, and what reads these.

local core = require "moonflow.core"
local errors = require "moonflow.errors"

local kinds = {
  { "^\147NUMPY", "an npy file", "np.load" }, { "^PK\3\4", "an npz file", "np.load" },
  { "^\137PNG", "a PNG picture", "np.load_png" }, { "^\255\216\255", "a JPEG picture", "np.load_jpeg" },
  { "^RIFF....WAVE", "a WAV sound", "np.load_wav" },
  { "^....%z%z%z%z{", "a safetensors file", "flow.checkpoint.get" },
  { "^[\3\4]%z%z%z", "a file of Torch7", "np.load_t7" },
}

--- Raises where the file at `path` is one that another function than `reader` is for. Gives what it begins with.
return function(path, reader)
  local beginning = errors.blaming(reader, core.first_bytes, path, 12)
  for _, kind in ipairs(kinds) do
    local pattern, what, other = unpack(kind)
    if other ~= reader and beginning:find(pattern) then
      errors.raise("io", ("%s: '%s' is %s, which %s reads"):format(reader, path, what, other))
    end
  end
  return beginning
end
