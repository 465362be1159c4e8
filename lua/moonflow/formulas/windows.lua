--- Windows that slide along the places of a signal, an image or a volume: what is said of each of these one to three
-- axes, as numbers, words and lists. All other axes are the batch and the channels.
--
-- Pads are { before, after } for each axis of places, or a word: VALID, SAME (= SAME_LOWER), SAME_UPPER.

local arguments = require "moonflow.arguments"

local windows = {}

local names = { "the width", "height and width", "depth, height and width" }
local words = { VALID = true, SAME = true, SAME_LOWER = true, SAME_UPPER = true }

local kMost = 2 ^ 24 - 1  -- above it a number is a mistake

--- Is it one of `windows.numbers` (least = 1) or of the pads (0)?
function windows.is_whole(number, least)
  return type(number) == "number" and number >= least and number <= kMost and number % 1 == 0
end

local function check_whole(list, least, what, signature)
  for _, number in ipairs(list) do
    if not windows.is_whole(number, least) then
      signature:fail((": %s must be whole numbers from %d to %d, got %s"):format(what, least, kMost, tostring(number)))
    end
  end
end

--- A number for each of `count` axes, out of a list of them or of one for all.
function windows.numbers(value, count, what, signature)
  local list = arguments.flat_list(value)
  if #list == 1 then
    for i = 2, count do list[i] = list[1] end
  elseif #list ~= count then
    signature:fail((": %s must be one number%s, got %d"):format(what,
      count > 1 and ", or one each for " .. names[count] or " for the width", #list))
  end
  check_whole(list, 1, what, signature)
  return list
end

--- Pads out of a list: one number for all `count` axes of places, one for each of them, or one or two (before, after)
--- for each of the op's axes, where the first of places is `first_axis`. nil where it has another length.
function windows.pairs_of(list, count, first_axis)
  local pads = {}
  for i = 1, count do
    local at = first_axis + i
    local number = #list == 1 and list[1] or #list == count and list[i] or #list == count + 2 and list[at]
    if number then
      pads[i] = { number, number }
    elseif #list == 2 * (count + 2) then
      pads[i] = { list[2 * at - 1], list[2 * at] }
    else
      return nil
    end
  end
  return pads
end

--- A list of `count` pairs { before, after }, one for each axis of places; nil of anything else.
function windows.pairs_of_places(padding, count)
  if type(padding) ~= "table" or #padding ~= count then return nil end
  for _, pair in ipairs(padding) do
    if type(pair) ~= "table" or #pair ~= 2 or type(pair[1]) ~= "number" or type(pair[2]) ~= "number" then return nil end
  end
  return padding
end

--- Pads as a user says them.
function windows.pads(padding, count, first_axis, signature)
  if type(padding) == "string" then
    if not words[padding] then
      signature:fail(': padding is "' .. padding .. '", wanted "VALID", "SAME", "SAME_LOWER", "SAME_UPPER" or a pair '
        .. "{ before, after } for each axis")
    end
    return padding
  end
  local list = arguments.flat_list(padding)
  check_whole(list, 0, "padding", signature)
  return windows.pairs_of_places(padding, count) or windows.pairs_of(list, count, first_axis) or signature:fail(
    (": padding has %d numbers, wanted a pair { before, after } for each of %d axes, one number for each of them, or "
      .. "%s for %s"):format(#list, count + 2, ({ "one", "one or two", "one or three" })[count], names[count]))
end

--- `total` places before and after an axis: where they are odd, SAME_UPPER has one more after it, SAME_LOWER before it.
function windows.split(total, word)
  local less = math.floor(total / 2)
  if word == "SAME_UPPER" then return less, total - less end
  return total - less, less
end

--- What SAME or VALID pads before and after an axis of `size` places, under windows that reach over `reach` of them.
function windows.around(word, size, reach, stride)
  if word == "VALID" then return 0, 0 end
  return windows.split(math.max(0, (math.ceil(size / stride) - 1) * stride + reach - size), word)
end

--- Pads as a list of two numbers for each of an op's axes; nothing is before and after axes of places that pads lack,
--- which come first.
function windows.listed(pads, axes, first_axis)
  if type(pads) == "string" then return pads end
  local list = {}
  for i = 1, 2 * axes do list[i] = 0 end
  local at = 2 * (first_axis + axes - 2 - #pads)
  for i, pair in ipairs(pads) do
    list[at + 2 * i - 1], list[at + 2 * i] = pair[1], pair[2]
  end
  return list
end

return windows
