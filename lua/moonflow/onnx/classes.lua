--- What classifiers of ONNX's domain ai.onnx.ml have in common: labels, and scores that become probabilities.

local classes = {}

--- Their labels as whole numbers, nil where they are texts, and how many there are. Texts can be given to nobody here.
function classes.of(node)
  local labels, names = node:ints("classlabels_int64s") or node:ints("classlabels_ints"),
    node:attribute("classlabels_strings", "strings")
  if labels and #labels == 0 then labels = nil end
  if node:is_wanted(1) and not labels then
    node:fail("it gives texts; outputs of flow.onnx.load may name its scores alone, '"
      .. tostring(node.raw.outputs[2]) .. "'")
  end
  return labels, #node:need(labels or names, "classlabels_ints")
end

--- The labels at these places of their list, nil where nobody wants them.
function classes.labels(node, labels, places)
  if not node:is_wanted(1) then return nil end
  return (node:apply("gather", { node.array(labels, "int64"), places }, { axis = 0 }, "label"))
end

--- What a node says of its scores, of the classes on the last axis: "NONE", "SOFTMAX" or "LOGISTIC".
function classes.transform(node)
  local transform = node:text("post_transform", "NONE")
  if transform ~= "NONE" and transform ~= "SOFTMAX" and transform ~= "LOGISTIC" then
    node:fail("post_transform = " .. transform .. " is not supported")
  end
  return transform
end

function classes.transformed(node, scores, transform)
  if transform == "SOFTMAX" then return (node:apply("softmax", { scores }, { axis = #scores.shape - 1 })) end
  return transform == "LOGISTIC" and node:apply("sigmoid", { scores }) or scores
end

return classes
