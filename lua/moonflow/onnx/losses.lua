--- ONNX operators of losses, which files of training end in: a table from an operator's name to the function that
--- applies it to a node.
-- Classes are on axis 1 of (batch, classes, places...), and targets (batch, places...) name them.

local operators = {}

-- -x at the class that each target names, by the weight of that class; nothing where the target is to be ignored. A
-- mean is one of weights.
local function likelihood_loss(node, x, targets, weights)
  local rank, ignored, reduction = #x.shape, node:int("ignore_index"), node:text("reduction", "mean")
  if rank < 2 or #targets.shape ~= rank - 1 then
    node:fail(("targets %s for %s, wanted (batch, places...) for (batch, classes, places...)"):format(
      tostring(targets.shape), tostring(x.shape)), "shape_mismatch")
  end
  local none, is_there = node:filled(0, x.dtype), nil
  if ignored then
    is_there = node:apply("not_equal", { targets, node:filled(ignored, targets.dtype) }, nil, "is_there")
    targets = node:apply("where", { is_there, targets, node:filled(0, targets.dtype) }, nil, "targets")
  end
  local column = node:apply("expand_dims", { targets }, { axis = 1 }, "column")
  local picked = node:apply("dim_gather", { x, column }, { dim = 1 }, "picked")
  local losses = node:apply("negative", { node:reshape(picked, targets.shape:table(), "logarithms") }, nil, "losses")
  local shares = weights and node:apply("gather", { weights, targets }, { axis = 0 }, "weights")
    or is_there and node:filled(1, x.dtype, targets.shape:table())
  if shares and is_there then shares = node:apply("where", { is_there, shares, none }, nil, "shares") end
  if shares then losses = node:multiply(losses, shares, "weighted") end
  -- What is ignored may be infinite.
  if is_there then losses = node:apply("where", { is_there, losses, none }, nil, "counted") end

  local all = { axis = {} }
  if reduction == "none" then return losses end
  if reduction ~= "sum" and reduction ~= "mean" then
    node:fail("reduction = " .. reduction .. " is not supported", "invalid_argument")
  end
  if reduction == "mean" and not shares then return (node:apply("reduce_mean", { losses }, all)) end
  local sum = node:apply("reduce_sum", { losses }, all, reduction == "mean" and "sum" or nil)
  if reduction == "sum" then return sum end
  return (node:apply("divide", { sum, node:apply("reduce_sum", { shares }, all, "whole") }))
end

function operators.NegativeLogLikelihoodLoss(node)
  return likelihood_loss(node, node:input(1), node:input(2), node:optional(3))
end

function operators.SoftmaxCrossEntropyLoss(node)
  local logarithms = node:apply("log_softmax", { node:input(1) }, { axis = 1 }, "logarithms")
  return likelihood_loss(node, logarithms, node:input(2), node:optional(3)), logarithms
end

return operators
