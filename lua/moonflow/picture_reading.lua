--- Which part of each picture is wanted, and the beginning of reading them: for flow.np and flow.data.

local core = require "moonflow.core"
local arguments = require "moonflow.arguments"
local np = require "moonflow.np.functions"
local resizing = require "moonflow.formulas.resizing"

local reading = {}

--- The parameters, behind `size`.
reading.parameters = {
  { "crop", "any?" }, { "aspect", "list?" }, { "mirror", "finite", 0 }, { "channels", "integer", 3 },
  { "apply_exif_orientation", "boolean", true }, { "raw", "boolean", false },
}

-- Two numbers, rising, of what must be positive and at most `most`.
local function range_of(list, name, most, signature)
  list = arguments.flat_list(list)
  local low, high = unpack(list)
  local are_numbers = type(low) == "number" and type(high) == "number"
  if #list ~= 2 or not (are_numbers and low > 0 and low <= high and high <= most) then
    local given = {}
    for i, value in ipairs(list) do given[i] = arguments.describe(value) end
    signature:fail((": %s is {%s}, wanted {least, most} of numbers above 0%s"):format(name, table.concat(given, ", "),
      most < math.huge and " and up to " .. most or ""))
  end
  return low, high
end

local Manner = {}
Manner.__index = Manner

--- What was asked for, when all of it fits.
function reading.manner(given, signature)
  local crop, aspect, mirror = given.crop, given.aspect, given.mirror
  local manner = { size = resizing.checked_size(given.size, signature), mirror = mirror, channels = given.channels,
                   upright = given.apply_exif_orientation, raw = given.raw }
  if mirror < 0 or mirror > 1 then signature:fail(": mirror is a chance from 0 to 1, got " .. mirror) end
  if given.channels ~= 1 and given.channels ~= 3 then
    signature:fail((": channels is 1 or 3, got %d"):format(given.channels))
  end
  if aspect and type(crop) ~= "table" then signature:fail(": aspect is of a crop that is drawn, {least, most}") end
  if type(crop) == "table" then
    manner.area = { range_of(crop, "crop", 1, signature) }
    manner.ratio = { range_of(aspect or { 3 / 4, 4 / 3 }, "aspect", math.huge, signature) }
  elseif crop ~= nil then
    if type(crop) ~= "number" or not (crop > 0 and crop <= 1) then
      signature:fail(": crop is a share of the sides above 0 and up to 1, or {least, most} of the area, got "
        .. arguments.describe(crop))
    end
    manner.side = crop
  end
  return setmetatable(manner, Manner)
end

--- How often `begin` draws at most.
reading.most_draws = 5

-- (count, 6): of each picture the share of the area, the ratio of width to height, the share of the sides, what lies
-- above and to the left of what does not, and whether it is mirrored. nil for whole pictures as they are.
local function cuts_of(manner, count, uniform)
  if not (manner.area or manner.side) and manner.mirror == 0 then return nil end
  local function all(number) return np.full({ count }, number, "float64") end
  local function drawn(low, high) return uniform(low, high, { count }, "float64") end
  local area, ratio, side, top, left = all(1), all(0), all(1), all(0.5), all(0.5)
  if manner.area then
    area = drawn(unpack(manner.area))
    local narrow, wide = unpack(manner.ratio)
    ratio = np.exp(drawn(math.log(narrow), math.log(wide)))
    top, left = drawn(0, 1), drawn(0, 1)
  elseif manner.side then
    ratio, side = all(manner.size[2] / manner.size[1]), all(manner.side)
  end
  local mirrored = manner.mirror > 0 and drawn(0, 1):lt(manner.mirror):astype("float64") or all(0)
  return np.stack({ area, ratio, side, top, left, mirrored }, 1)
end

--- Begins to read pictures; core.pictures_take waits for them.
--- @param sources string[]    paths or, where they are no files, bytes
--- @param are_files boolean
--- @param uniform function    draws as np.random.uniform does
--- @param threads number|nil  beside the caller's; nil: as many as leave it a core
--- @param passes_over? boolean  those that are broken are no error
--- @param masks? string[]     paths of a mask for each
function Manner:begin(sources, are_files, uniform, threads, passes_over, masks)
  return core.pictures_begin(sources, are_files, self.upright, self.size[1], self.size[2], self.channels,
    cuts_of(self, #sources, uniform), passes_over or false, threads, self.raw, masks)
end

return reading
