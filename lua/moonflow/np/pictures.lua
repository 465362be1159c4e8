--- Pictures in flow.np: other sizes, many of them as one array, and all of an array as one.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local dtypes = require "moonflow.dtypes"
local errors = require "moonflow.errors"
local ndarray = require "moonflow.ndarray"
local np = require "moonflow.np.functions"
local reading = require "moonflow.picture_reading"
local resizing = require "moonflow.formulas.resizing"
local session = require "moonflow.session"
local tools_of = require "moonflow.np.tools"

local resize_signature = arguments.signature("np.resize_picture", {
  { "a", "any" }, { "size", "list" }, { "mode", "string", "bilinear" }, { "antialias", "boolean", true },
})

-- The picture as an array, and the size, when all fits.
local function checked(given)
  local a = ndarray.as_array(given.a, "np.resize_picture")
  if a.rank ~= 2 and a.rank ~= 3 then
    resize_signature:fail(": the picture is " .. tostring(a.shape)
      .. ", wanted (height, width) or (height, width, channels)")
  elseif a.rank == 3 and a.shape[0] <= 4 and a.shape[2] > 4 then
    resize_signature:fail(": the picture " .. tostring(a.shape)
      .. " seems to have its channels first; a:transpose({ 1, 2, 0 }) puts them last")
  elseif a.nbytes == 0 then
    resize_signature:fail(": the picture " .. tostring(a.shape) .. " has no pixels")
  elseif not dtypes.floating[a.dtype] and a.dtype ~= "uint8" then
    resize_signature:fail(": the picture is " .. a.dtype .. ", wanted uint8 or floats")
  end
  resizing.check_mode(given.mode, resize_signature)
  return a, resizing.checked_size(given.size, resize_signature)
end

-- ---- side by side --------------------------------------------------------------------------------------------------

local join_signature = arguments.signature("np.join_pictures", {
  { "a", "any" }, { "columns", "integer?" }, { "gap", "integer", 0 }, { "data_format", "string?" },
})

-- (pictures, height, width, channels), whatever of the usual forms they come in. Where both ends could be channels, 1
-- or 3 of them are likelier than 2 or 4, and the first likelier than the last.
local function channels_last(a, format)
  if format and format ~= "NCHW" and format ~= "NHWC" then
    join_signature:fail(": data_format is '" .. format .. "', wanted 'NCHW' or 'NHWC'")
  end
  local shape = a.shape
  if a.rank == 3 then return a:reshape({ shape[0], shape[1], shape[2], 1 }) end
  for with_opacity = 0, a.rank == 4 and 1 or -1, 1 do
    local function is_depth(size) return size == 1 + with_opacity or size == 3 + with_opacity end
    if is_depth(shape[1]) and format ~= "NHWC" then return a:transpose({ 0, 2, 3, 1 }) end
    if is_depth(shape[3]) and format ~= "NCHW" then return a end
  end
  join_signature:fail(": the pictures are " .. tostring(shape) .. ", wanted (pictures, height, width), (pictures, "
    .. "channels, height, width) or (pictures, height, width, channels) with 1 to 4 channels")
end

-- With `sizes` more along each axis, which are 0.
local function extended(x, sizes)
  for axis = 0, x.rank - 1 do
    local more = sizes[axis + 1]
    if more > 0 then
      local shape = x.shape:table()
      shape[axis + 1] = more
      x = np.concat({ x, np.zeros(shape, x.dtype) }, axis)
    end
  end
  return x
end

-- ---- many of them -------------------------------------------------------------------------------------------------

local function batch_signature(name, sources)
  return arguments.signature(name, { { sources, "entries" }, { "size", "list" }, unpack(reading.parameters) })
end

local function batch_of(sources, are_files, given, signature)
  local manner = reading.manner(given, signature)
  for i, source in ipairs(sources) do
    if type(source) ~= "string" then
      signature:fail((": entry %d must be a string, got %s"):format(i, arguments.describe(source)))
    end
  end
  local threads = session.settings.threads
  return (errors.blaming(signature.where, core.pictures_take, manner:begin(sources, are_files, np.random.uniform,
    threads and threads - 1)))
end

--- Pictures side by side, row by row, as one picture for np.save_png: what a net has drawn, or its filters.
--- @param a ndarray|table   (pictures, height, width), (pictures, channels, height, width), or with the channels
---                          last; 1 to 4 channels
--- @param columns? integer  how many stand in a row; as many as rows, or one more, when left out
--- @param gap? integer      pixels of 0 between two of them, as are the places that are left over; default: 0
--- @param data_format? string "NCHW" or "NHWC", where channels are, which the sizes mostly tell
--- @return ndarray          (height, width) of one channel, else (height, width, channels), of the dtype of a
--- @error another rank, number of channels or format; no pictures; columns below 1; a gap below 0
function np.join_pictures(...)
  local given = join_signature:parse(...)
  local pictures = channels_last(ndarray.as_array(given.a, "np.join_pictures"), given.data_format)
  local gap = given.gap
  local count, height, width, channels = pictures.shape:unpack()
  if pictures.nbytes == 0 then join_signature:fail(": there is nothing in " .. tostring(pictures.shape)) end
  local columns = given.columns or math.ceil(math.sqrt(count))
  if columns < 1 then join_signature:fail(": columns must be 1 or more, got " .. columns) end
  if gap < 0 then join_signature:fail(": gap must be 0 or more, got " .. gap) end
  local rows = math.ceil(count / columns)
  height, width = height + gap, width + gap
  local sheet = extended(pictures, { rows * columns - count, gap, gap, 0 })
    :reshape({ rows, columns, height, width, channels }):transpose({ 0, 2, 1, 3, 4 })
    :reshape({ rows * height, columns * width, channels })
    :slice({ 0, rows * height - gap }, { 0, columns * width - gap })
  return channels == 1 and sheet:reshape({ sheet.shape[0], sheet.shape[1] }) or sheet
end

local load_signature = batch_signature("np.load_pictures", "paths")
--- Pictures of any sizes as one array: JPEG and PNG files, read and decoded on all threads, cut, and resized as
--- np.resize_picture does it: `np.load_pictures(paths, 224, { crop = { 0.08, 1 }, mirror = 0.5 })` for training,
--- which is other parts each time, from np.random, and `np.load_pictures(paths, 224, { crop = 0.875 })` for pictures
--- to be judged.
--- @param paths table      a list of paths
--- @param size table       { height, width } of each, or one number for both
--- @param crop? any        a number: the largest box of the form of `size` in the middle, times this share of its
---                          sides; { least, most }: a box of so much of the area, drawn for each picture; whole
---                          pictures, also of another form, when left out
--- @param aspect? table    { least, most } of width / height of a box that is drawn, by its logarithm; one that does
---                          not fit is shrunk. Default: { 3 / 4, 4 / 3 }
--- @param mirror? number   chance that left and right are exchanged; default: 0
--- @param channels? number 3: red, green and blue; 1: grey. A picture with other channels becomes that, and opacity
---                          is left out. Default: 3
--- @param apply_exif_orientation? boolean upright, as the camera says that it was held; default: true
--- @param raw? boolean     true: one number of each pixel, as a grey PNG or a palette has it, such as the class in a
---                          mask; that of the nearest pixel, and no mean. Default: false
--- @return ndarray         uint8 (pictures, height, width, channels); (pictures, height, width) with raw. Of an empty
---                          list one of no pictures
--- @error a file that is no picture, or damaged, with its number in the list; a size or a share outside its bounds
function np.load_pictures(...)
  local given = load_signature:parse(...)
  return batch_of(given.paths, true, given, load_signature)
end

local decode_signature = batch_signature("np.decode_pictures", "list")
--- The same of strings with the bytes of JPEG and PNG pictures, such as `record.encoded[1]` of flow.data.ofrecords.
--- @param list table        a list of strings
--- @param size table        as np.load_pictures takes it, and all that follows
--- @param crop? any
--- @param aspect? table
--- @param mirror? number
--- @param channels? number
--- @param apply_exif_orientation? boolean
--- @param raw? boolean
--- @return ndarray          uint8 (pictures, height, width, channels); (pictures, height, width) with raw
--- @error bytes that are no picture, or damaged, with their number in the list
function np.decode_pictures(...)
  local given = decode_signature:parse(...)
  return batch_of(given.list, false, given, decode_signature)
end

--- A picture in another size: `np.resize_picture(np.load_png(path), { 64, 64 })`. As flow.nn.interpolate does it in a
--- job, but in one picture, (height, width) or (height, width, channels); a job would be compiled for each size that
--- comes.
--- @param a ndarray|table   uint8, which is rounded and kept from 0 to 255, or floats
--- @param size table|number { height, width } of the result, or one number for both
--- @param mode? string      "bilinear", between the four pixels around a place; "bicubic", between sixteen; "nearest"
--- @param antialias? boolean true: each pixel of a smaller picture is a mean of all that it stands for
--- @error another rank or dtype; a picture without pixels
function np.resize_picture(...)
  local given = resize_signature:parse(...)
  local a, size = checked(given)
  local mode = given.mode
  local tools = tools_of(resize_signature)
  local how = resizing.manner(mode, false, given.antialias and mode ~= "nearest")
  local x = a
  for i = 1, 2 do
    local from, to = x.shape[i - 1], size[i]
    if from ~= to then
      x = resizing.modes[mode](tools, x, how, { index = i - 1, from = from, to = to, scale = to / from })
    end
  end
  if x.dtype ~= a.dtype then x = ndarray.cast(np.clip(np.round(x), 0, 255), a.dtype) end
  return rawequal(x, a) and a:copy() or x
end
