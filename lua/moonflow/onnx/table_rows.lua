--- Operators of ONNX's domain ai.onnx.ml, in which scikit-learn's models are written: what scales, fills and picks the
--- columns of a table, and linear models of its rows. A table from an operator's name to the function that applies it
--- to a node.
-- What such a node has learned stands in its attributes, so it is no variable: the weights of a perceptron, which are
-- initializers, learn on, and what scales its columns stays.

local classes = require "moonflow.onnx.classes"

local own = {}

-- The last axis is that of the columns.
local function columns_of(node, x)
  if #x.shape < 1 then node:fail("it takes a scalar, wanted rows of a table", "shape_mismatch") end
  return x.shape[#x.shape - 1]
end

local function in_floats(node) return node:cast(node:input(1), "float32", "floats") end

-- One number for each column of x, or one for all; nil where the node says nothing.
local function per_column(node, x, name, list, dtype)
  if not list or #list == 0 then return nil end
  local count = columns_of(node, x)
  if #list ~= 1 and #list ~= count then
    node:fail(("%s has %d numbers for %d columns"):format(name, #list, count), "shape_mismatch")
  end
  return node.array(list, dtype)
end

-- (x - offset) * scale
function own.Scaler(node)
  local x = in_floats(node)
  local offset = per_column(node, x, "offset", node:floats("offset"), "float32")
  local scale = per_column(node, x, "scale", node:floats("scale"), "float32")
  if offset then x = node:apply("subtract", { x, offset }, nil, scale and "moved" or nil) end
  return scale and node:multiply(x, scale) or x
end

-- Another number for one that stands for a gap, which may be NaN.
function own.Imputer(node)
  local x, is_whole = node:input(1), not node.is_floating(node:input(1))
  local floats, whole = node:floats("imputed_value_floats"), node:ints("imputed_value_int64s")
  local gap = is_whole and node:int("replaced_value_int64", 0) or node:float("replaced_value_float", 0)
  node:ignore("replaced_value_int64", "replaced_value_float")
  local filling = per_column(node, x, "imputed_value", is_whole and whole or floats, x.dtype)
  node:need(filling, is_whole and "imputed_value_int64s" or "imputed_value_floats")
  local is_gap = gap ~= gap and node:apply("not_equal", { x, x }, nil, "is_gap")
    or node:apply("equal", { x, node:filled(gap, x.dtype) }, nil, "is_gap")
  return node:apply("where", { is_gap, filling, x })
end

function own.Binarizer(node)
  local x = node:input(1)
  return node:cast(node:apply("greater", { x, node:filled(node:float("threshold", 0), x.dtype) }, nil, "is_above"),
    x.dtype)
end

-- Each row by its largest number, its sum of sizes, or its length; a row of zeros stays.
function own.Normalizer(node)
  local x, norm = in_floats(node), node:text("norm", "MAX")
  local over = { axis = { #x.shape - 1 }, keepdims = true }
  local size
  if norm == "MAX" then
    size = node:apply("reduce_max", { x }, over, "most")
  elseif norm == "L1" then
    size = node:apply("reduce_sum", { node:apply("abs", { x }, nil, "sizes") }, over, "sum")
  elseif norm == "L2" then
    local sum = node:apply("reduce_sum", { node:apply("square", { x }, nil, "squares") }, over, "sum")
    size = node:apply("sqrt", { sum }, nil, "length")
  else
    node:fail("norm = " .. norm .. " is not supported")
  end
  local is_none = node:apply("equal", { size, node:filled(0, "float32") }, nil, "is_none")
  return node:apply("divide", { x, node:apply("where", { is_none, node:filled(1, "float32"), size }, nil, "size") })
end

-- Columns by their places. What has one axis is one row.
function own.ArrayFeatureExtractor(node)
  local x, places = node:input(1), node:input(2)
  local count = columns_of(node, x)
  if #x.shape == 1 then x = node:reshape(x, { 1, count }, "row") end
  return node:apply("gather", { x, node:reshape(places, { -1 }, "places") }, { axis = #x.shape - 1 })
end

-- x times the rows of coefficients, and intercepts.
local function linear(node, count, word)
  local x = in_floats(node)
  local list, width = node:need(node:floats("coefficients"), "coefficients"), columns_of(node, x)
  if #list ~= count * width then
    node:fail(("coefficients has %d numbers, wanted %d of each of %d columns"):format(#list, count, width),
      "shape_mismatch")
  end
  local coefficients = node:reshape(node.array(list, "float32"), { count, width }, "coefficients")
  local intercepts = node:floats("intercepts")
  if intercepts and #intercepts ~= count then
    node:fail(("intercepts has %d numbers, wanted %d"):format(#intercepts, count), "shape_mismatch")
  end
  local sums = node:apply("matmul", { x, coefficients }, { transpose_b = true }, intercepts and "product" or word)
  return intercepts and node:apply("bias_add", { sums, node.array(intercepts, "float32") }, nil, word) or sums
end

function own.LinearRegressor(node)
  node:expect("post_transform", "s", "NONE")
  return linear(node, node:int("targets", 1))
end

-- Labels, and the scores that they follow from.
function own.LinearClassifier(node)
  node:ignore("multi_class")
  local labels, count = classes.of(node)
  local transform = classes.transform(node)
  local scores = linear(node, count, "scores")
  local places = node:is_wanted(1) and node:apply("argmax", { scores }, { axis = #scores.shape - 1 }, "place")
  return classes.labels(node, labels, places), classes.transformed(node, scores, transform)
end

local operators = {}
for name, apply in pairs(own) do operators["ai.onnx.ml." .. name] = apply end

return operators
