--- ONNX's Col2Im, by which windows over an image become the image again: a table from its name to the function that
--- applies it to a node.

local volumes = require "moonflow.formulas.volumes"
local windows = require "moonflow.formulas.windows"
local count_of = require("moonflow.onnx.node").count_of

local operators = {}

-- A number for each axis of places; `usual` for all where the node says nothing.
local function numbers(node, name, count, usual)
  local list = node:ints(name) or {}
  for i = #list + 1, #list == 0 and count or 0 do list[i] = usual end
  local is_fine = #list == count
  for _, number in ipairs(list) do is_fine = is_fine and windows.is_whole(number, usual) end
  if not is_fine then
    node:fail(("%s is { %s }, wanted %d whole numbers from %d on"):format(name, table.concat(list, ", "), count, usual),
      "invalid_argument")
  end
  return list
end

-- An image of one axis is one of height 1.
local function with_height(list) return #list == 1 and { 1, list[1] } or list end

-- Each place of a column goes where the window has it, and what comes to one place is summed: the transposed
-- convolution of each channel by a filter that has a one for each place.
function operators.Col2Im(node)
  local x, image, block = node:input(1), node:need(node:numbers(2), "image_shape"), node:need(node:numbers(3), "block")
  local count, size = #image, count_of(block)
  local strides, dilations = numbers(node, "strides", count, 1), numbers(node, "dilations", count, 1)
  local said, pads, places = numbers(node, "pads", 2 * count, 0), {}, {}
  if count < 1 or count > 3 or #block ~= count or #x.shape ~= 3 then
    node:fail(("%s for an image of %d axes and blocks of %d, wanted (batch, numbers, places) and 1 to 3 axes"):format(
      tostring(x.shape), count, #block), "shape_mismatch")
  end
  for i = 1, count do
    local reach = (block[i] - 1) * dilations[i] + 1
    pads[i] = { said[i], said[count + i] }
    places[i] = math.max(0, math.floor((image[i] + pads[i][1] + pads[i][2] - reach) / strides[i]) + 1)
  end
  local channels = x.shape[1] / size
  if channels % 1 ~= 0 or channels < 1 or count_of(places) ~= x.shape[2] or x.shape[2] < 1 then
    node:fail(("%s for %d places of windows of %d"):format(tostring(x.shape), count_of(places), size), "shape_mismatch")
  end

  local ones = {}
  node:check_list(size * size)
  for i = 0, size * size - 1 do ones[i + 1] = i % (size + 1) == 0 and 1 or 0 end
  x = node:reshape(x, { x.shape[0], x.shape[1], unpack(with_height(places)) }, "places")
  local filter = node:reshape(node.array(ones, x.dtype), { size, 1, unpack(with_height(block)) }, "ones")
  local reps = { channels, 1, 1, 1, count == 3 and 1 or nil }
  filter = node:apply("tile", { filter }, { reps = reps }, "filter")
  if count == 3 then
    return volumes.transposed(node, x, filter, {
      sizes = image, strides = strides, dilations = dilations, groups = channels, pads = pads })
  end
  local y = node:apply("conv2d_input_grad", { x, filter }, {
    shape = { x.shape[0], channels, unpack(with_height(image)) }, groups = channels,
    strides = with_height(strides), dilations = with_height(dilations), padding = windows.listed(pads, 4, 2),
  }, "image")
  return node:reshape(y, { x.shape[0], channels, unpack(image) })
end

return operators
