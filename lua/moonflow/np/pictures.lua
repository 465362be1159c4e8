--- Pictures in flow.np: other sizes.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local dtypes = require "moonflow.dtypes"
local ndarray = require "moonflow.ndarray"
local resizing = require "moonflow.formulas.resizing"

local signature = arguments.signature("np.resize_picture", {
  { "a", "any" }, { "size", "list" }, { "mode", "string", "bilinear" }, { "antialias", "boolean", true },
})

-- How arrays compute, for formulas.
local tools = {}

function tools.apply(_, op, inputs, attrs) return (ndarray.evaluate(op, inputs, attrs, "np.resize_picture")) end

function tools:pick(x, axis, indices)
  return self:apply("gather", { x, core.array(indices, "int64") }, { axis = axis })
end

function tools.check_list(_, count)
  if count > arguments.most_listed then signature:fail((": it would need a list of %g numbers"):format(count)) end
end

-- The picture as an array, and the size, when all fits.
local function checked(given)
  local a = ndarray.as_array(given.a, "np.resize_picture")
  if a.rank ~= 2 and a.rank ~= 3 then
    signature:fail(": the picture is " .. tostring(a.shape) .. ", wanted (height, width) or (height, width, channels)")
  elseif a.rank == 3 and a.shape[0] <= 4 and a.shape[2] > 4 then
    signature:fail(": the picture " .. tostring(a.shape)
      .. " seems to have its channels first; a:transpose({ 1, 2, 0 }) puts them last")
  elseif a.nbytes == 0 then
    signature:fail(": the picture " .. tostring(a.shape) .. " has no pixels")
  elseif not dtypes.floating[a.dtype] and a.dtype ~= "uint8" then
    signature:fail(": the picture is " .. a.dtype .. ", wanted uint8 or floats")
  end
  resizing.check_mode(given.mode, signature)
  return a, resizing.checked_size(given.size, signature)
end

--- Adds np.resize_picture.
return function(np)
  --- A picture in another size: `np.resize_picture(np.load_png(path), { 64, 64 })`. As flow.nn.interpolate does it in a
  --- job, but in one picture, (height, width) or (height, width, channels); a job would be compiled for each size that
  --- comes.
  --- @param a ndarray|table   uint8, which is rounded and kept from 0 to 255, or floats
  --- @param size table|number { height, width } of the result, or one number for both
  --- @param mode? string      "bilinear", between the four pixels around a place; "bicubic", between sixteen; "nearest"
  --- @param antialias? boolean true: each pixel of a smaller picture is a mean of all that it stands for
  --- @error another rank or dtype; a picture without pixels
  function np.resize_picture(...)
    local given = signature:parse(...)
    local a, size = checked(given)
    local mode = given.mode
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
end
