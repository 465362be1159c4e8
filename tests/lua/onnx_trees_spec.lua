-- Decision trees and forests of ONNX's domain ai.onnx.ml. Their models are small here; those of scikit-learn, XGBoost
-- and LightGBM have the same nodes.
local flow = require "moonflow"
local models = require "onnx_models"

local np = flow.np
local floats, node = models.floats, models.node
local result_of, raises, same = models.result_of, models.raises, models.same

before_each(models.begin)
after_each(models.finish)

-- The second output, the scores, unless `place` says another; of a regressor the only one.
local function of_trees(op, x, attributes, place)
  local classifies = op == "TreeEnsembleClassifier"
  local own = node(op, { "x" }, classifies and { "label", "y" } or { "y" }, attributes)
  own.domain = "ai.onnx.ml"
  return result_of(x, { nodes = { own }, outputs = { models.value(place or "y") } })
end

-- Of two trees: x0 <= 1 ? (x1 <= 5 ? leaf 2 : leaf 3) : leaf 4, and x1 <= 0 ? leaf 1 : leaf 2.
local function two_trees(more)
  local attributes = {
    nodes_treeids = { ints = { 0, 0, 0, 0, 0, 3, 3, 3 } },
    nodes_nodeids = { ints = { 0, 1, 2, 3, 4, 0, 1, 2 } },
    nodes_featureids = { ints = { 0, 1, 0, 0, 0, 1, 0, 0 } },
    nodes_values = { floats = { 1, 5, 0, 0, 0, 0, 0, 0 } },
    nodes_hitrates = { floats = { 1, 1, 1, 1, 1, 1, 1, 1 } },
    nodes_modes = { strings = { "BRANCH_LEQ", "BRANCH_LEQ", "LEAF", "LEAF", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF" } },
    nodes_truenodeids = { ints = { 1, 2, 0, 0, 0, 1, 0, 0 } },
    nodes_falsenodeids = { ints = { 4, 3, 0, 0, 0, 2, 0, 0 } },
  }
  for name, value in pairs(more) do attributes[name] = value or nil end
  return attributes
end

local function leaves(prefix, weights, ids)
  return {
    [prefix .. "_treeids"] = { ints = { 0, 0, 0, 3, 3 } }, [prefix .. "_nodeids"] = { ints = { 2, 3, 4, 1, 2 } },
    [prefix .. "_ids"] = { ints = ids or { 0, 0, 0, 0, 0 } }, [prefix .. "_weights"] = { floats = weights },
  }
end

local function regressor(more)
  local attributes = leaves("target", { 10, 20, 30, 1, 2 })
  for name, value in pairs(more or {}) do attributes[name] = value end
  return two_trees(attributes)
end

local function classifier(weights, ids, more)
  local attributes = leaves("class", weights, ids)
  attributes.classlabels_int64s = { ints = { 7, 9 } }
  for name, value in pairs(more or {}) do attributes[name] = value end
  return two_trees(attributes)
end

local rows = { { 1, 5 }, { 1, 5.5 }, { 1.5, 0 }, { 0, 0 } }

describe("decision trees", function()
  it("add up what the leaves of each row say", function()
    same({ { 12 }, { 22 }, { 31 }, { 11 } }, of_trees("TreeEnsembleRegressor", floats(rows), regressor()))
    same({ { 13 }, { 23 }, { 32 }, { 12 } }, of_trees("TreeEnsembleRegressor", floats(rows), regressor {
      base_values = { floats = { 1 } }, aggregate_function = { s = "SUM" },
    }))
    same({ { 6 }, { 11 }, { 15.5 }, { 5.5 } }, of_trees("TreeEnsembleRegressor", floats(rows), regressor {
      aggregate_function = { s = "AVERAGE" },
    }))
    same({ { 10 }, { 20 }, { 30 }, { 10 } }, of_trees("TreeEnsembleRegressor", floats(rows), regressor {
      aggregate_function = { s = "MAX" },
    }))
    same({ { 0, 12 }, { 20, 2 }, { 30, 1 }, { 0, 11 } }, of_trees("TreeEnsembleRegressor", floats(rows), regressor {
      target_ids = { ints = { 1, 0, 0, 1, 1 } }, n_targets = { i = 2 },
    }))
  end)

  it("compare as they say, and take gaps where they are told to", function()
    local modes = two_trees({}).nodes_modes.strings
    local less = {}
    for i, mode in ipairs(modes) do less[i] = mode == "LEAF" and mode or "BRANCH_LT" end
    same({ { 32 }, { 32 }, { 32 }, { 12 } }, of_trees("TreeEnsembleRegressor", floats(rows), regressor {
      nodes_modes = { strings = less },
    }))
    local gaps = floats { { 0 / 0, 1 }, { 0, 0 / 0 } }
    same({ { 32 }, { 22 } }, of_trees("TreeEnsembleRegressor", gaps, regressor()))
    same({ { 12 }, { 21 } }, of_trees("TreeEnsembleRegressor", gaps, regressor {
      nodes_missing_value_tracks_true = { ints = { 1, 0, 0, 0, 0, 1, 0, 0 } },
    }))
  end)

  it("are leaves alone", function()
    same({ { 3 }, { 3 } }, of_trees("TreeEnsembleRegressor", floats { { 1 }, { 2 } }, {
      nodes_treeids = { ints = { 0 } }, nodes_nodeids = { ints = { 0 } }, nodes_featureids = { ints = { 0 } },
      nodes_values = { floats = { 0 } }, nodes_modes = { strings = { "LEAF" } },
      nodes_truenodeids = { ints = { 0 } }, nodes_falsenodeids = { ints = { 0 } },
      target_treeids = { ints = { 0 } }, target_nodeids = { ints = { 0 } }, target_ids = { ints = { 0 } },
      target_weights = { floats = { 3 } },
    }))
  end)

  it("vote for classes", function()
    local function voted(more, place)
      return of_trees("TreeEnsembleClassifier", floats(rows), classifier({ 0.25, 0.5, 0.25, 0.5, 0.25 },
        { 0, 1, 1, 1, 0 }, more), place)
    end
    same({ { 0.5, 0 }, { 0.25, 0.5 }, { 0, 0.75 }, { 0.25, 0.5 } }, voted())
    same({ 7, 9, 9, 9 }, voted(nil, "label"))
    local soft = voted { post_transform = { s = "SOFTMAX" } }
    assert.is_true(math.abs(soft:slice("0"):totable()[1] - 1 / (1 + math.exp(-0.5))) < 1e-6)
    same({ 7, 7, 9, 7 }, voted({ base_values = { floats = { 0.5, 0 } } }, "label"))
  end)

  it("speak of one class of two, by its share or by its score", function()
    local function spoken(weights, more, place)
      return of_trees("TreeEnsembleClassifier", floats(rows), classifier(weights, { 1, 1, 1, 1, 1 }, more), place)
    end
    local shares = { 0.25, 0.5, 0.25, 0, 0.25 }
    same({ { 0.5, 0.5 }, { 0.25, 0.75 }, { 0.75, 0.25 }, { 0.75, 0.25 } }, spoken(shares))
    same({ 7, 9, 7, 7 }, spoken(shares, nil, "label"))
    local scores = { 1, -2, 1, -1, 1 }
    same({ { -2, 2 }, { 1, -1 }, { 0, 0 }, { 0, 0 } }, spoken(scores))
    same({ 9, 7, 7, 7 }, spoken(scores, nil, "label"))
    local logistic = spoken(scores, { post_transform = { s = "LOGISTIC" } })
    assert.is_true(np.allclose(logistic, np.array {
      { 1 / (1 + math.exp(2)), 1 / (1 + math.exp(-2)) }, { 1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1)) },
      { 0.5, 0.5 }, { 0.5, 0.5 },
    }))
  end)

  it("say what is wrong with them", function()
    local function refused(text, more)
      raises(text, function() of_trees("TreeEnsembleRegressor", floats(rows), regressor(more)) end)
    end
    refused("nodes_values has 2 entries, wanted 8", { nodes_values = { floats = { 1, 2 } } })
    refused("it compares column 5 of 2", { nodes_featureids = { ints = { 5, 0, 0, 0, 0, 0, 0, 0 } } })
    refused("node 0 of tree 0 leads to node 9, which there is not",
      { nodes_truenodeids = { ints = { 9, 2, 0, 0, 0, 1, 0, 0 } } })
    refused("its nodes lead in a circle", { nodes_truenodeids = { ints = { 1, 1, 0, 0, 0, 1, 0, 0 } } })
    refused("only one comparison for all is supported", { nodes_modes = { strings = {
      "BRANCH_LEQ", "BRANCH_EQ", "LEAF", "LEAF", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF" } } })
    refused("target_weights has one for 4 of node 3 in tree 0, which there is not",
      { target_ids = { ints = { 0, 4, 0, 0, 0 } } })
    refused("aggregate_function = MEDIAN is not supported", { aggregate_function = { s = "MEDIAN" } })
    refused("base_values has 3 numbers, wanted 1", { base_values = { floats = { 1, 2, 3 } } })
    raises("it takes (1, 2, 2), wanted rows of a table", function()
      of_trees("TreeEnsembleRegressor", floats { { { 1, 2 }, { 3, 4 } } }, regressor())
    end)
  end)
end)
