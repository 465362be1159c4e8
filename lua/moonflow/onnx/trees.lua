--- Decision trees, and forests of them, of ONNX's domain ai.onnx.ml, as scikit-learn, XGBoost and LightGBM are written.
--- A table from an operator's name to the function that applies it to a node.
-- All rows go down all trees at once: a place in each tree is a number, and a step looks up what it compares there, and
-- where that leads. A leaf leads to itself. What the nodes of trees have learned stands in attributes, so it is no
-- variable.

local classes = require "moonflow.onnx.classes"

local own = {}

local comparisons = {
  BRANCH_LEQ = "less_equal", BRANCH_LT = "less", BRANCH_GTE = "greater_equal", BRANCH_GT = "greater",
  BRANCH_EQ = "equal", BRANCH_NEQ = "not_equal",
}

-- The attribute of that name, with as many entries as there are nodes, or leaves.
local function of_all(node, name, count, kind)
  local list = node:need(node:attribute(name, kind or "ints"), name)
  if count and #list ~= count then
    node:fail(("%s has %d entries, wanted %d"):format(name, #list, count), "shape_mismatch")
  end
  return list
end

-- The trees in lists by place, from 1; what they lead to are places from 0.
local function read_trees(node)
  node:ignore("nodes_hitrates")
  local of_tree = of_all(node, "nodes_treeids")
  local count = #of_tree
  local ids, modes = of_all(node, "nodes_nodeids", count), of_all(node, "nodes_modes", count, "strings")
  local yes_ids, no_ids = of_all(node, "nodes_truenodeids", count), of_all(node, "nodes_falsenodeids", count)
  local trees = { count = count, yes = {}, no = {}, roots = {}, features = of_all(node, "nodes_featureids", count),
                  values = of_all(node, "nodes_values", count, "floats"),
                  tracks = node:ints("nodes_missing_value_tracks_true"), places = {} }
  for at = 1, count do
    local places = trees.places[of_tree[at]] or {}
    trees.places[of_tree[at]], places[ids[at]] = places, at - 1
  end
  local is_child = {}
  for at, mode in ipairs(modes) do
    local places = trees.places[of_tree[at]]
    if mode == "LEAF" then
      trees.yes[at], trees.no[at] = at - 1, at - 1
    else
      if trees.mode and mode ~= trees.mode then
        node:fail(("its nodes compare by %s and by %s; only one comparison for all is supported"):format(trees.mode,
          mode))
      end
      trees.mode = mode
      for name, id in pairs { yes = yes_ids[at], no = no_ids[at] } do
        local place = places[id]
        if not place then
          node:fail(("node %d of tree %d leads to node %d, which there is not"):format(ids[at], of_tree[at], id))
        end
        trees[name][at], is_child[place] = place, true
      end
    end
  end
  for at = 0, count - 1 do
    if not is_child[at] then trees.roots[#trees.roots + 1] = at end
  end
  if trees.mode and not comparisons[trees.mode] then node:fail("mode " .. trees.mode .. " is not supported") end
  return trees
end

-- The most steps from a root to a leaf.
local function depth_of(node, trees)
  local level, depth = trees.roots, -1
  while #level > 0 do
    local below, seen = {}, {}
    for _, at in ipairs(level) do
      local next_ones = { trees.yes[at + 1], trees.no[at + 1] }
      if next_ones[1] == at and next_ones[2] == at then next_ones = {} end
      for _, place in ipairs(next_ones) do
        if not seen[place] then below[#below + 1], seen[place] = place, true end
      end
    end
    level, depth = below, depth + 1
    if depth > trees.count then node:fail("its nodes lead in a circle") end
  end
  return math.max(depth, 0)
end

-- The place of the leaf that each row of x comes to in each tree: (rows, trees).
local function leaves_of(node, trees, x)
  local function looked_up(list, dtype, at, word)
    return node:apply("gather", { node.array(list, dtype), at }, { axis = 0 }, word)
  end
  local rows = node:filled(0, "int32", { x.shape[0], 1 })
  local at = node:add(rows, node:reshape(node.array(trees.roots, "int32"), { 1, #trees.roots }, "roots"), "root")
  local may_lack
  for _, tracks in ipairs(trees.tracks or {}) do may_lack = may_lack or tracks ~= 0 end
  for step = 1, depth_of(node, trees) do
    local x_there = node:apply("dim_gather", { x, looked_up(trees.features, "int32", at, "feature_" .. step) },
      { dim = 1 }, "x_" .. step)
    local passes = node:apply(comparisons[trees.mode], { x_there, looked_up(trees.values, "float32", at,
      "value_" .. step) }, nil, "passes_" .. step)
    if may_lack then
      local lacks = node:apply("not_equal", { x_there, x_there }, nil, "lacks_" .. step)
      passes = node:apply("where", { lacks, looked_up(trees.tracks, "int8", at, "tracks_" .. step), passes }, nil,
        "goes_" .. step)
    end
    at = node:apply("where", { passes, looked_up(trees.yes, "int32", at, "yes_" .. step),
      looked_up(trees.no, "int32", at, "no_" .. step) }, nil, "at_" .. step)
  end
  return at
end

local reductions = { SUM = "reduce_sum", AVERAGE = "reduce_mean", MIN = "reduce_min", MAX = "reduce_max" }

-- What the leaves of all trees give together: (rows, count). `prefix` is that of the attributes which say it; `renamed`
-- are the columns of these, where they are others.
local function sums(node, prefix, count, renamed)
  local x, trees = node:cast(node:input(1), "float32", "floats"), read_trees(node)
  if #x.shape == 1 then x = node:reshape(x, { 1, x.shape[0] }, "row") end
  if #x.shape ~= 2 then node:fail("it takes " .. tostring(x.shape) .. ", wanted rows of a table", "shape_mismatch") end
  for _, feature in ipairs(trees.features) do
    if feature < 0 or feature >= x.shape[1] then
      node:fail(("it compares column %d of %d"):format(feature, x.shape[1]), "shape_mismatch")
    end
  end
  local in_trees = of_all(node, prefix .. "_treeids")
  local in_nodes, columns = of_all(node, prefix .. "_nodeids", #in_trees), of_all(node, prefix .. "_ids", #in_trees)
  local weights = of_all(node, prefix .. "_weights", #in_trees, "floats")
  local given = {}
  for i = 1, trees.count * count do given[i] = 0 end
  for i, weight in ipairs(weights) do
    local place = (trees.places[in_trees[i]] or {})[in_nodes[i]]
    local column = renamed and renamed[columns[i]] or columns[i]
    if not place or column < 0 or column >= count then
      node:fail(("%s_weights has one for %d of node %d in tree %d, which there is not"):format(prefix, columns[i],
        in_nodes[i], in_trees[i]))
    end
    given[place * count + column + 1] = given[place * count + column + 1] + weight
  end
  local table_of_leaves = node:reshape(node.array(given, "float32"), { trees.count, count }, "leaves")
  local found = node:apply("gather", { table_of_leaves, leaves_of(node, trees, x) }, { axis = 0 }, "found")
  local aggregate = node:text("aggregate_function", "SUM")
  if not reductions[aggregate] then node:fail("aggregate_function = " .. aggregate .. " is not supported") end
  local base = node:floats("base_values")
  if base and #base ~= 0 and #base ~= count then
    node:fail(("base_values has %d numbers, wanted %d"):format(#base, count), "shape_mismatch")
  end
  local result = node:apply(reductions[aggregate], { found }, { axis = { 1 } }, "sums")
  return base and #base > 0 and node:add(result, node.array(base, "float32"), "moved") or result
end

function own.TreeEnsembleRegressor(node)
  node:expect("post_transform", "s", "NONE")
  return node:apply("identity", { sums(node, "target", node:int("n_targets", 1)) })
end

-- Of two classes the leaves may speak of one alone: its score, and of the other what is left to 1 where all are shares
-- of it, else the opposite.
local function scores_of_one(node, labels, only, transform)
  local score = sums(node, "class", 1, { [only] = 0 })
  local are_shares = true
  for _, weight in ipairs(node:floats("class_weights")) do are_shares = are_shares and weight >= 0 end
  local is_second = node:apply("greater", { score, node:filled(are_shares and 0.5 or 0, "float32") }, nil, "is_second")
  local label = classes.labels(node, labels, node:reshape(node:cast(is_second, "int32", "place"), { -1 }, "places"))
  local other = are_shares and node:apply("subtract", { node:filled(1, "float32"), score }, nil, "other")
    or node:apply("negative", { score }, nil, "other")
  local both = node:apply("concat", { other, score }, { axis = 1 }, "both")
  return label, classes.transformed(node, both, are_shares and "NONE" or transform)
end

function own.TreeEnsembleClassifier(node)
  local labels, count = classes.of(node)
  local transform = classes.transform(node)
  local ids = of_all(node, "class_ids")
  local only = ids[1]
  for _, id in ipairs(ids) do only = id == only and id or nil end
  if count == 2 and only then return scores_of_one(node, labels, only, transform) end
  local scores = sums(node, "class", count)
  local places = node:apply("argmax", { scores }, { axis = 1 }, "place")
  return classes.labels(node, labels, places), classes.transformed(node, scores, transform)
end

local operators = {}
for name, apply in pairs(own) do operators["ai.onnx.ml." .. name] = apply end

return operators
