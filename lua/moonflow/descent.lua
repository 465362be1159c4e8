--- Descent: what a train job does with its losses, appended to its graph when the body has run.
-- The gradient is that of the sum of the losses' elements. For each trainable variable it is then, in this order:
-- divided by the element count of the loss, unscaled, regularised, clipped, and given to the update.

local arguments = require "moonflow.arguments"
local core = require "moonflow.core"
local errors = require "moonflow.errors"
local loss_scale = require "moonflow.loss_scale"
local picked_rows = require "moonflow.picked_rows"
local session = require "moonflow.session"
local trace = require "moonflow.trace"
local train_config = require "moonflow.train_config"
local update = require "moonflow.update"
local variable = require "moonflow.variable"

local descent = {}

-- Divides, unscales and regularises. Of a table of which rows have been picked, `sums` are these where they are to be
-- clipped in place of its gradient.
local function prepare(updates, scale, part, clips)
  for _, u in ipairs(updates) do
    local l1, l2 = 0, 0
    if u.regularizer then l1, l2 = u.regularizer.l1, u.regularizer.l2 end
    local is_regularised = l1 ~= 0 or l2 ~= 0
    local dy, indices
    if part.rule == update.lazy_adam and not is_regularised then dy, indices = picked_rows.of(u) end
    if dy then
      u.rows = picked_rows.joined(u, dy, indices)
      u.rows.scale = scale
    else
      picked_rows.join_gathers(u)
    end
    u.picks = clips and picked_rows.to_clip(u, part)
    if u.picks then
      u.sums = picked_rows.sums(u, u.picks, scale)
    elseif scale ~= 1 or is_regularised or u.unscale then
      u.gradient = u:append("prepare_gradient", { u.gradient, u.id, u.unscale },
        { scale = scale, l1 = l1, l2 = l2 }, "gradient")
    end
  end
end

local function take_clipped(u, clipped)
  if u.sums then picked_rows.take(u, u.picks, clipped) else u.gradient = clipped end
end

-- Each element for itself.
local function clip_by_value(updates, limit)
  for _, u in ipairs(updates) do
    take_clipped(u, u:append("clip_by_value", { u.sums or u.gradient }, { min = -limit, max = limit }, "clipped"))
  end
end

-- All together. Variables may differ in dtype. The norm is of the widest, and of float32 where that is narrow: there it
-- would overflow, or be rounded to a few bits.
local function clip_by_global_norm(t, updates, clip_norm, name)
  local dtype, wide = "float32", {}
  for _, u in ipairs(updates) do
    if u.dtype == "float64" then dtype = u.dtype end
  end
  for i, u in ipairs(updates) do
    wide[i] = u:in_dtype(u.sums or u.gradient, (u.picks or u).dtype, dtype, "wide_gradient")
  end
  local norm = t:append("global_norm", wide, nil, name .. "-GlobalNorm", "")
  local factor = t:append("clip_factor", { norm }, { clip_norm = clip_norm }, name .. "-ClipFactor", "")
  for i, u in ipairs(updates) do
    local clipped = u:multiply(wide[i], factor, "clipped")
    take_clipped(u, u:in_dtype(clipped, dtype, (u.picks or u).dtype, "narrow_gradient"))
  end
end

local function clip(t, updates, clipping, name)
  if clipping.clip_value then
    clip_by_value(updates, clipping.clip_value)
  elseif clipping.each then
    for i, u in ipairs(updates) do clip_by_global_norm(t, { u }, clipping.clip_norm, name .. "-" .. i) end
  elseif #updates > 0 then
    clip_by_global_norm(t, updates, clipping.clip_norm, name)
  end
end

-- The step of each part of the optimizer. The gradients are clipped for all of them together, or for each by itself.
local function descend(t, updates, scale)
  local of_all, groups = t.optimizer.clipping, {}
  for i, part in ipairs(t.optimizer.parts) do
    groups[i] = {}
    for _, u in ipairs(updates) do
      if u.part == part then table.insert(groups[i], u) end
    end
    prepare(groups[i], scale, part, of_all or part.clipping)
  end
  if of_all then clip(t, updates, of_all, "System-Train") end
  for i, part in ipairs(t.optimizer.parts) do
    if part.clipping and not of_all then clip(t, groups[i], part.clipping, "System-Train-" .. i) end
    for _, u in ipairs(groups[i]) do part.rule(u, part.options) end
  end
end

local function names_of(variables)
  local names = {}
  for i, entry in ipairs(variables) do names[i] = entry.record.name end
  return names
end

-- The trainable variables of the job that its optimizer is to train, and which part of it trains each.
local function trained(t)
  local owners, rest = {}, nil
  for _, part in ipairs(t.optimizer.parts) do
    if not part.chosen then rest = part end
    for _, entry in ipairs(part.chosen and variable.trainable(t, part.chosen, part.where, t.optimizer_site) or {}) do
      if owners[entry] and owners[entry] ~= part then
        errors.raise("invalid_argument", t.optimizer.where .. ": two of the optimizers train '" .. entry.record.name
          .. "', " .. owners[entry].where .. " and " .. part.where .. "; a variable belongs to one", t.optimizer_site)
      end
      owners[entry] = part
    end
  end
  local list = {}
  for _, entry in ipairs(variable.trainable(t)) do
    owners[entry] = owners[entry] or rest
    if owners[entry] then list[#list + 1] = entry end
    local assigned = owners[entry] and t.assigned[entry.record.name]
    if assigned then
      errors.raise("wrong_state", ("%s: the job '%s' trains '%s' and assigns it too (at %s), and only one of them can "
        .. "last; assign it in a job of its own, called after this one, or leave it out of the optimizer's 'variables'")
        :format(t.optimizer.where, t.job, entry.record.name, assigned), t.optimizer_site)
    end
  end
  return list, owners
end

local function listed(names) return arguments.some_of(names, 4) end

-- Says so where a combined optimizer leaves out what is trainable and not assigned: its parts are to cover a net, while
-- an optimizer by itself that has `variables` is to leave the others.
local function warn_of_left_out(t, owners)
  if t.optimizer.parts[1] == t.optimizer then return end
  local names = {}
  for _, entry in ipairs(variable.trainable(t)) do
    local name = entry.record.name
    if not owners[entry] and not t.assigned[name] then names[#names + 1] = name end
  end
  if #names == 0 then return end
  session.log(("moonflow: %s: %s: none of its optimizers trains %s. Where this job is not to leave that as it is, one "
    .. "without 'variables' trains all others"):format(t.optimizer_site, t.optimizer.where, listed(names)))
end

-- Says so where none of the words that choose what decays is part of a name: there may be a slip in them.
local function warn_of_decay(t, owners, variables)
  for _, part in ipairs(t.optimizer.parts) do
    for _, option in ipairs { "weight_decay_includes", "weight_decay_excludes" } do
      local given = part.options[option]
      local words, names, found = type(given) == "table" and given or { given }, {}, given == nil
      for _, entry in ipairs(variables) do
        if owners[entry] == part then
          local name = entry.record.name
          names[#names + 1] = name
          for _, word in ipairs(words) do found = found or name:find(word, 1, true) ~= nil end
        end
      end
      if not found then
        session.log(("moonflow: %s: %s: nothing of %s { %s } is part of a name that it trains: %s"):format(
          t.optimizer_site, part.where, option, table.concat(words, ", "), listed(names)))
      end
    end
  end
end

-- A target and a prediction of one type can be told apart by what is trained alone.
local function warn_of_swapped(t, variables)
  if #t.targets == 0 then return end
  local sources, given = {}, {}
  for i, entry in ipairs(variables) do sources[i] = entry.id end
  for i, noted in ipairs(t.targets) do given[2 * i - 1], given[2 * i] = noted.target.id, noted.prediction.id end
  local learns = t.graph:computed_from(sources, given)
  for i, noted in ipairs(t.targets) do
    if learns[2 * i - 1] and not learns[2 * i] then
      local target, prediction = unpack(noted.names)
      session.log(("moonflow: %s: %s: its %s, '%s', depends on what is trained, and its %s, '%s', does not; were they "
        .. "given in the wrong order?"):format(noted.site, noted.loss, target, noted.target.name, prediction,
        noted.prediction.name))
    end
  end
end

-- Says so where an earlier job of this name has trained other variables: both then got it by chance, as jobs do that
-- one function defines, and the steps of the one are counted as those of the other.
local function warn_of_namesake(t, updates, step_name, site)
  local names, is_trained = {}, {}
  for i, u in ipairs(updates) do names[i], is_trained[u.name] = u.name, true end
  local before = variable.counts_for(t, step_name, names, site)
  for _, name in ipairs(before or names) do
    if is_trained[name] then return end
  end
  if not before or #before == 0 or #names == 0 then return end
  session.log(("moonflow: %s: a train job before this one is called '%s' too, and trains other variables (%s). Jobs of "
    .. "one name count their steps as one, so schedules and bias corrections here go on from there; "
    .. "flow.global_function { name = ... } tells them apart"):format(site or "?", t.job, listed(before)))
end

-- Raises that a train job would change nothing, and what keeps it from that.
local function refuse_idle(t, variables, site)
  local losses = {}
  for i, loss in ipairs(t.losses) do losses[i] = "'" .. loss.name .. "'" end
  local why
  if #variables > 0 then
    why = "no gradient reaches what is to be trained (" .. listed(names_of(variables))
      .. "). Compute the loss from it, by ops that have a gradient"
  elseif #t.variable_list > 0 then
    why = "all variables of the job stay as they are (" .. listed(names_of(t.variable_list))
      .. "). Leave out trainable = false where one is to learn"
  else
    why = "the job has no variables. Make some, with flow.layers or flow.get_variable"
  end
  errors.raise("wrong_state", t.job .. ": minimising " .. listed(losses) .. " changes nothing, for " .. why
    .. ", or give the job type = \"predict\"", site)
end

-- Of the original's optimizers any may do so, by the tables' names.
local function check_indexed_slices(t)
  for _, part in ipairs(t.optimizer.parts) do
    if part.rule ~= update.lazy_adam and not update.keeps_rest(part) then
      errors.raise("invalid_argument", part.where .. " changes all rows of a table in each step, and "
        .. "indexed_slices_optimizer_conf asks for those that were picked: flow.optimizer.LazyAdam does that, "
        .. "flow.optimizer.Adagrad, and flow.optimizer.SGD with momentum = 0", t.optimizer_site)
    end
  end
end

-- The step counts up when everything that reads it has run.
local function count_step(t, updates, by, site)
  local name = trace.step_name(t.job)
  local step = variable.system(t, name, "int64", {}, 0)
  warn_of_namesake(t, updates, name, site)
  t:append("assign_add", { step, by }, nil, "System-Train-NextStep", "")
end

-- Processes that compute together descend by the mean of their gradients, and move running statistics by the mean of
-- those of their batches, and so keep the same variables.
local function share(t, updates)
  local _, processes = core.processes()
  if processes == 1 then return end
  local own, take = {}, {}
  local function share_one(id, take_mean)
    own[#own + 1], take[#take + 1] = id, take_mean
  end
  for _, u in ipairs(updates) do
    if not picked_rows.share(u, processes) then
      share_one(u.gradient, function(mean) u.gradient = mean end)
    end
  end
  for _, batch in ipairs(t.statistics) do
    local function append(op, id, word) return t:append(op, { id }, nil, batch.name .. "-" .. word, batch.site) end
    share_one(batch.mean, function(mean) batch.mean = mean end)
    share_one(append("reciprocal", append("square", batch.inv_std, "precision"), "variance"), function(variance)
      batch.inv_std = append("rsqrt", variance, "inv_std_of_all")
    end)
  end
  if #own == 0 then return end
  local names = {}
  for i, u in ipairs(updates) do names[i] = u.name end
  local topic = ("%s, in %s%s"):format(table.concat(names, ", "), t.job, t.fed)
  local attrs = { reduction = "mean", topic = topic }
  local means = { t:append("all_reduce", own, attrs, "System-Train-GradientsOfAll", "") }
  for i, take_mean in ipairs(take) do take_mean(means[i]) end
end

-- `finite`: with a dynamic loss scale whether the step is to happen, else nil.
local function move_statistics(t, finite)
  for _, batch in ipairs(t.statistics) do
    t:append("moving_statistics_update", { batch.moving[1], batch.moving[2], batch.mean, batch.inv_std, finite },
      batch.attrs, batch.name, batch.site)
  end
end

-- A body that asks for gradients and minimises nothing makes the step itself: it adds gradients up, or has a rule of
-- its own. Its job is there to train all the same, with dropout and the statistics of the batch.
local function finish_own_step(t, site)
  if t.scaled_by then
    errors.raise("invalid_argument", "the job '" .. t.job .. "' asks for gradients by a dynamic loss scale, which an "
      .. "optimizer changes, and it has none; a static_loss_scale serves in any job", site)
  end
  local watched = t.diff_watches[1]
  if watched then
    errors.raise("wrong_state", watched.what .. ": the job '" .. t.job .. "' minimises no loss that would have a "
      .. "gradient there; flow.gradients gives that of any value, and flow.watch shows it", site)
  end
  share(t, {})
  move_statistics(t)
  count_step(t, {}, t:constant(core.array(1, "int64"), nil, "System-Train-One", ""), site)
  return {}
end

-- Raises where there is nothing to minimise, or no way to.
local function check_minimised(t, site)
  local this, loss = t.optimizer, t.losses[1]
  if not this or not loss then
    errors.raise("wrong_state", "the job '" .. t.job .. "' has type 'train' but minimises no loss; call "
      .. "flow.optimizer.SGD(0.1):minimize(loss) in its body, take flow.gradients for a step of your own, or give it "
      .. "type = \"predict\"", site)
  end
  if t.scaled_by and t.scaled_by ~= this.loss_scale then
    errors.raise("invalid_argument", "the job '" .. t.job .. "' asks for gradients by a dynamic loss scale that its "
      .. "optimizer does not have, so it would never change; give " .. this.where .. " the same loss_scale_policy",
      t.optimizer_site or site)
  end
  if loss.shape:count() == 0 then
    errors.raise("invalid_argument", ("%s: its loss '%s' is %s, and without an element there is nothing to learn "
      .. "from; leave out the call for a batch of none"):format(t.job, loss.name, tostring(loss.shape)),
      t.optimizer_site or site)
  end
  if t.config.indexed_slices then check_indexed_slices(t) end
end

-- The gradients with respect to variables, and then to what is watched: a list of ids, with false where there is none.
local function differentiate(t, variables, scaling)
  local wanted, losses, seeds = {}, {}, {}
  for i, entry in ipairs(variables) do wanted[i] = entry.id end
  for _, watched in ipairs(t.diff_watches) do wanted[#wanted + 1] = watched.blob.id end
  for i, loss in ipairs(t.losses) do
    losses[i] = loss.id
    seeds[i] = scaling:seed(loss, "System-Train-Seed-" .. i)
  end
  return t.graph:gradients(losses, seeds, wanted)
end

-- Of each variable that has a gradient.
local function updates_of(t, variables, owners, gradients)
  local rates, bias_rates, updates = {}, {}, {}
  for _, part in ipairs(t.optimizer.parts) do
    rates[part] = part.scheduler:lower(t)
    bias_rates[part] = part.bias_scheduler and part.bias_scheduler:lower(t) or rates[part]
  end
  for i, entry in ipairs(variables) do
    if gradients[i] then
      local part, record = owners[entry], entry.record
      updates[#updates + 1] = update.new {
        t = t, id = entry.id, name = record.name, dtype = record.dtype, shape = record.shape, site = record.site or "",
        gradient = gradients[i], rate = (entry.record.is_bias and bias_rates or rates)[part], part = part,
        regularizer = entry.record.regularizer or part.options.regularizer, finite = false, unscale = false,
      }
    end
  end
  return updates
end

--- Appends gradients and updates to the graph of a train job whose body has run.
--- Gives watched blob -> id of its gradient (false: no gradient).
--- @param t Trace
--- @param site string  of the job's definition
function descent.finish(t, site)
  if not t.optimizer and #t.losses > 0 and t.config.trains then
    t.optimizer = train_config.optimizer(t, t.config.train)
  end
  if not t.optimizer and #t.losses == 0 and t.asks_gradients then return finish_own_step(t, site) end
  check_minimised(t, site)
  local variables, owners = trained(t)
  warn_of_left_out(t, owners)
  warn_of_decay(t, owners, variables)
  warn_of_swapped(t, variables)

  local scaling = loss_scale.of(t, t.optimizer.loss_scale)
  local gradients = differentiate(t, variables, scaling)
  local watched, shows_gradient = {}, false  -- where it does, that is what the job may be for
  for i, handle in ipairs(t.diff_watches) do
    watched[handle] = gradients[#variables + i] or false
    shows_gradient = shows_gradient or watched[handle]
  end
  local updates = updates_of(t, variables, owners, gradients)
  if #updates == 0 and not shows_gradient then refuse_idle(t, variables, t.optimizer_site or site) end
  t.moved = {}
  for _, u in ipairs(updates) do t.moved[u.name] = true end
  share(t, updates)
  scaling:watch_over(updates)
  descend(t, updates, 1 / (t.losses[1].shape:count() * (scaling.factor or 1)))
  move_statistics(t, scaling.finite)
  count_step(t, updates, scaling:step(), site)
  return watched
end

return descent
