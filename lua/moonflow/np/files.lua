--- Arrays and pictures in files: npy, npz, PNG and JPEG.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"
local refuse_others = require "moonflow.np.beginnings"
local np = require "moonflow.np.functions"

local session = require "moonflow.session"

local as_array, blaming, fail = ndarray.as_array, errors.blaming, errors.raise

local function path_of(path, called)
  if type(path) == "string" then return path end
  fail("invalid_argument", called .. " wants the path of a file, got " .. arguments.describe(path))
end

-- Files are written and read in one way, so what else is given is not passed over.
local function refuse_more(called, count, names, ...)
  if select("#", ...) == 0 then return end
  fail("invalid_argument", ("%s takes %d argument%s (%s) and no options"):format(called, count,
    count == 1 and "" or "s", names))
end

local function with_ending(path, ending, called)
  path = path_of(path, called)
  return path:sub(-#ending) == ending and path or path .. ending
end

local function picture_signature(name, source, more)
  return arguments.signature(name, { { source, "string" }, more })
end

local warned = {}  -- functions and the places that call them
session.on_close(function() warned = {} end)

-- Floats from 0 to 255 would become white, and NaN black, so it is said once of each place that writes such a picture.
-- A few values beyond 1 are what a net or a filter gives.
local function picture_of(a, called)
  a = as_array(a, called)
  if a.dtype ~= "float32" and a.dtype ~= "float64" or a.nbytes == 0 then return a end
  local place = ("%s: %s"):format(errors.site() or "?", called)
  if warned[place] then return a end
  local said
  if a:gt(1):mean() > 0.5 then
    said = ("most of the picture lies above 1, up to %g, and becomes white; floats go from 0 to 1, so write a / 255, "
      .. "or a:astype(\"uint8\")"):format(np.where(a:eq(a), a, 0):max())
  elseif a:ne(a):any() then
    said = "the picture has NaN, which becomes black; np.nan_to_num puts another number there"
  end
  if said then
    warned[place] = true
    session.log(("moonflow: %s: %s"):format(place, said))
  end
  return a
end

-- Raises where a path is no path but the picture itself.
local pictures = { "^\137PNG", "^\255\216" }  -- what their files begin with

--- Writes one array; the name gets `.npy` when it lacks it, as NumPy does.
--- @return nil
function np.save(path, a, ...)
  refuse_more("np.save", 2, "path, a", ...)
  blaming("np.save", core.npy_write, with_ending(path, ".npy", "np.save"), as_array(a, "np.save"))
end

-- The arrays of a table by the names that they have in an archive.
local function named_arrays(arrays, called)
  local named = {}
  for key, a in pairs(arrays) do
    local name = type(key) == "number" and "arr_" .. key - 1 or key
    if named[name] then fail("invalid_argument", called .. ": two arrays are called '" .. tostring(name) .. "'") end
    named[name] = as_array(a, called)
  end
  return named
end

--- Writes named arrays, `np.savez("data", { x = a, y = b })`; a list gets NumPy's names arr_0, arr_1, ...
--- @return nil
function np.savez(path, arrays, ...)
  refuse_more("np.savez", 2, "path, arrays", ...)
  path = with_ending(path, ".npz", "np.savez")
  if arguments.kind(arrays) ~= "table" then
    fail("invalid_argument", "np.savez wants a table of arrays, such as { x = a, y = b }, got "
      .. arguments.describe(arrays))
  end
  blaming("np.savez", core.npz_write, path, named_arrays(arrays, "np.savez"))
end

--- Writes a picture as PNG; the name gets `.png` when it lacks it. (height, width) is grey, and so is one channel in
--- (height, width, channels); 2 are grey and opacity, 3 red, green and blue, 4 these and opacity. uint8 is taken as
--- it is, floating values from 0 to 1 become 0 to 255, what is outside of that the nearer end, and NaN 0; the log says
--- so where most lie above 1, and of NaN.
--- @return nil
function np.save_png(path, a, ...)
  refuse_more("np.save_png", 2, "path, a", ...)
  blaming("np.save_png", core.png_write, with_ending(path, ".png", "np.save_png"), picture_of(a, "np.save_png"))
end

--- The bytes of such a file, as a string: for a web page, a socket or a file system of one's own.
--- @return string
function np.encode_png(a, ...)
  refuse_more("np.encode_png", 1, "a", ...)
  return blaming("np.encode_png", core.png_encode, picture_of(a, "np.encode_png"))
end

local raw_parameter = { "raw", "boolean", false, text = "elements as the file has them: 16 bits, such as a depth in "
  .. "millimetres, as int32 from 0 to 65535, a palette as its numbers, such as the classes of a mask, and fewer bits "
  .. "than 8 as they are" }
local load_png_signature = picture_signature("np.load_png", "path", raw_parameter)
--- The picture of a PNG file, as uint8 from 0 to 255: (height, width) where it is grey, else (height, width,
--- channels) in the order of save_png. Palettes and 16 bits become that. What the file says of gamma, colour
--- profiles and how it was held is not heeded; np.load_pictures has it upright.
--- @error a file that is none, or damaged
function np.load_png(...)
  local given = load_png_signature:parse(...)
  load_png_signature:refuse_bytes(given.path, pictures, "a picture", "np.decode_png")
  refuse_others(given.path, "np.load_png")
  return blaming("np.load_png", core.png_read, given.path, given.raw)
end

local decode_png_signature = picture_signature("np.decode_png", "bytes", raw_parameter)
--- The same of a string with the bytes of a PNG file, from a socket or an archive.
--- @error bytes that are none, or damaged
function np.decode_png(...)
  local given = decode_png_signature:parse(arguments.of_bytes(...))
  return blaming("np.decode_png", core.png_decode, given.bytes, given.raw)
end

local function check_quality(given, signature)
  if given.quality < 1 or given.quality > 100 then
    signature:fail((": quality is from 1 to 100, got %d"):format(given.quality))
  end
end

local save_jpeg_signature = arguments.signature("np.save_jpeg", {
  { "path", "string" }, { "a", "any" }, { "quality", "integer", 90 },
})
--- Writes a picture as JPEG, which is a quarter of a PNG or less and not quite the same; the name gets `.jpg` when
--- it has no such ending. (height, width) is grey, (height, width, 3) red, green and blue; elements as of save_png.
--- @param quality? integer  from 1 to 100
--- @return nil
--- @error a picture of another shape; a file that cannot be written
function np.save_jpeg(...)
  local given = save_jpeg_signature:parse(...)
  local path = given.path
  check_quality(given, save_jpeg_signature)
  if not path:lower():find("%.jpe?g$") then path = path .. ".jpg" end
  blaming("np.save_jpeg", core.jpeg_write, path, picture_of(given.a, "np.save_jpeg"), given.quality)
end

local encode_jpeg_signature = arguments.signature("np.encode_jpeg", { { "a", "any" }, { "quality", "integer", 90 } })
--- The bytes of such a file, as a string.
--- @param quality? integer  from 1 to 100
--- @return string
--- @error a picture of another shape
function np.encode_jpeg(...)
  local given = encode_jpeg_signature:parse(...)
  check_quality(given, encode_jpeg_signature)
  return blaming("np.encode_jpeg", core.jpeg_encode, picture_of(given.a, "np.encode_jpeg"), given.quality)
end

local exif_parameter = { "apply_exif_orientation", "boolean", true, text = "upright, as the camera says that it was "
  .. "held, so height and width may be exchanged; false: as the pixels are stored" }
local load_jpeg_signature = picture_signature("np.load_jpeg", "path", exif_parameter)
--- The picture of a JPEG file, as uint8 from 0 to 255: (height, width) where it is grey, else (height, width, 3),
--- red, green and blue. The colours of a press, CMYK, become these as well, without a colour profile.
--- @error a file that is none, or damaged
function np.load_jpeg(...)
  local given = load_jpeg_signature:parse(...)
  load_jpeg_signature:refuse_bytes(given.path, pictures, "a picture", "np.decode_jpeg")
  refuse_others(given.path, "np.load_jpeg")
  return blaming("np.load_jpeg", core.jpeg_read, given.path, given.apply_exif_orientation)
end

local decode_jpeg_signature = picture_signature("np.decode_jpeg", "bytes", exif_parameter)
--- The same of a string with the bytes of a JPEG file, such as `record.encoded` of flow.data.ofrecords, a frame of a
--- camera or what came from a socket.
--- @error bytes that are none, or damaged
function np.decode_jpeg(...)
  local given = decode_jpeg_signature:parse(arguments.of_bytes(...))
  return blaming("np.decode_jpeg", core.jpeg_decode, given.bytes, given.apply_exif_orientation)
end

local load_signature = arguments.signature("np.load", {
  { "path", "string" },
  { "names", "any?", text = "of an npz file: the arrays to read, a list; all when left out" },
})
local function names_of(given, signature, is_npz, none)
  local names = given.names
  if names == nil then return nil end
  if not is_npz then signature:fail(": names are those of an npz file, and " .. none) end
  if type(names) == "string" then names = { names } end
  if type(names) ~= "table" then
    signature:fail(": names must be a list of names of arrays, got " .. arguments.describe(names))
  end
  return arguments.check_list(names, signature.where .. ": the list of names")
end

--- The array of an npy file, or a table name -> array of an npz file. The first bytes tell which. What has no dtype
--- here gets another one that holds it: int16 and uint16 become int32, uint32 and uint64 int64, bool int8.
--- @return any
--- @error a file that is neither, or damaged; an array of text or of Python's objects; a name that is not there
function np.load(...)
  local given = load_signature:parse(...)
  load_signature:refuse_bytes(given.path, { "^\147NUMPY", "^PK\3\4" }, "a file", "np.load_memory")
  local is_npz = refuse_others(given.path, "np.load"):sub(1, 2) == "PK"
  local names = names_of(given, load_signature, is_npz, "'" .. given.path .. "' is none")
  if is_npz then return blaming("np.load", core.npz_read, given.path, nil, names) end
  return blaming("np.load", core.npy_read, given.path)
end

local load_memory_signature = arguments.signature("np.load_memory", {
  { "bytes", "string" },
  { "names", "any?", text = "of an npz file: the arrays to read, a list; all when left out" },
})
--- The same of a string with the bytes of such a file, as a game finds it in its archive:
--- `np.load_memory(love.filesystem.read("levels.npz"))`.
--- @return any
--- @error bytes that are neither, or damaged; an array of text or of Python's objects; a name that is not there
function np.load_memory(...)
  local given = load_memory_signature:parse(arguments.of_bytes(...))
  local is_npz = given.bytes:sub(1, 2) == "PK"
  local names = names_of(given, load_memory_signature, is_npz, "these bytes are none")
  if is_npz then return blaming("np.load_memory", core.npz_decode, given.bytes, names) end
  return blaming("np.load_memory", core.npy_decode, given.bytes)
end

--- What np.load_memory reads, as a string: the bytes of an npy file of an array, and of an npz file of a table of
--- arrays, as np.savez takes it. A replay buffer goes so into a game's own archive, or to another process:
--- `love.filesystem.write("replay.npz", np.save_memory { states = states, rewards = rewards })`.
--- @return string
--- @error two arrays of one name; bfloat16, which such files have not
function np.save_memory(a, ...)
  refuse_more("np.save_memory", 1, "a", ...)
  if arguments.kind(a) ~= "table" then
    return blaming("np.save_memory", core.npy_encode, as_array(a, "np.save_memory"))
  end
  return blaming("np.save_memory", core.npz_encode, named_arrays(a, "np.save_memory"))
end
