--- Catch: balls fall in many courts at once, and one policy moves all paddles. It learns by REINFORCE from the very
-- games that are shown, sixty steps a second.
local curve = require "curve"
local flow = require "moonflow"
local np, tp = flow.np, flow.typing

local COURTS = 96
local STEPS_PER_SECOND = 60
local WINDOW = 16          -- steps between two updates
local FEATURES = 4
local DISCOUNT = 0.9
local ENTROPY = 0.01       -- keeps the policy from making up its mind too early

-- Of a court of size 1 x 1, per step.
local FALL, DRIFT, SPEED = 1 / 60, 0.012, 0.03
local HALF = 0.09          -- of the paddle's width

local catch = {
  count = COURTS, half = HALF,
  training = true,
  updates = 0, balls = 0,
  caught = 0,              -- share of the balls, over the latest few hundred
  caught_curve = curve.new(),
  return_curve = curve.new(),  -- smoothed
  x = {}, y = {}, paddle = {},
  glow = {},               -- 1 when a ball was caught, -1 when it was missed, fading to 0
}
local drift = {}

local function policy(states)
  local hidden = flow.layers.dense(states, 32, { activation = flow.math.tanh, name = "catch-hidden" })
  return flow.layers.dense(hidden, 3, { name = "catch-output" })  -- left, stay, right
end

-- Prepared, so that a frame has the answer at once, whatever is being learned, and leaves no garbage.
local act = flow.global_function {
  name = "act", inputs = { states = tp.Numpy.Placeholder({ COURTS, FEATURES }) }, returns = tp.Numpy,
} (function(states)
  return flow.nn.softmax(policy(states))
end):prepare()

local ROWS = WINDOW * COURTS
local learn_job = flow.global_function {
  name = "learn", type = "train",
  inputs = {
    states = tp.Numpy.Placeholder({ ROWS, FEATURES }),
    actions = tp.Numpy.Placeholder({ ROWS }, { dtype = flow.int32 }),
    advantages = tp.Numpy.Placeholder({ ROWS }),
  },
  returns = tp.Callback[tp.Numpy],
} (function(states, actions, advantages)
  local logits = policy(states)
  local surprise = flow.nn.sparse_softmax_cross_entropy_with_logits(actions, logits)
  local certainty = flow.math.reduce_sum(flow.nn.softmax(logits) * flow.nn.logsoftmax(logits), 1)
  local loss = surprise * advantages + certainty * ENTROPY
  flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler({}, { 0.01 })):minimize(loss)
  return loss
end)

-- What the policy sees and what the window remembers. A call of a job copies its inputs, so they are filled anew each
-- time.
local seen = act.inputs.states
local window = {
  states = np.zeros({ ROWS, FEATURES }), actions = np.zeros({ ROWS }, flow.int32), advantages = np.zeros({ ROWS }),
  rewards = {}, ends = {}, steps = 0,
}

local function drop(i)
  catch.x[i], catch.y[i] = 0.05 + 0.9 * math.random(), 0
  drift[i] = (2 * math.random() - 1) * DRIFT
end

for i = 1, COURTS do
  drop(i)
  catch.y[i], catch.paddle[i], catch.glow[i] = math.random(), 0.5, 0
end

-- ---- playing ------------------------------------------------------------------------------------------------------

-- Moves one court by one step and gives the reward: closing in on the ball, and what comes of it at the bottom.
local function move(i, action)
  local distance = math.abs(catch.x[i] - catch.paddle[i])
  catch.paddle[i] = math.max(HALF, math.min(1 - HALF, catch.paddle[i] + (action - 1) * SPEED))
  local x = catch.x[i] + drift[i]
  if x < 0 or x > 1 then
    drift[i] = -drift[i]
    x = x < 0 and -x or 2 - x
  end
  catch.x[i], catch.y[i] = x, catch.y[i] + FALL
  catch.glow[i] = catch.glow[i] * 0.93
  local now = math.abs(x - catch.paddle[i])
  local reward = (distance - now) * 10
  if catch.y[i] < 1 then return reward, false end
  local hit = now <= HALF and 1 or 0
  catch.glow[i] = 2 * hit - 1
  catch.balls = catch.balls + 1
  catch.caught = catch.caught + (hit - catch.caught) / math.min(catch.balls, 200)
  drop(i)
  return reward + 2 * hit - 1, true
end

local function pick(probabilities, row)
  local p = math.random()
  for action = 0, 1 do
    p = p - probabilities[3 * row + action]
    if p < 0 then return action end
  end
  return 2
end

-- ---- learning -----------------------------------------------------------------------------------------------------

-- Discounted returns, made comparable: mean 0, deviation 1. Gives their mean before that.
local function fill_advantages()
  local into, rewards, ends = window.advantages:ptr(), window.rewards, window.ends
  local sum, squares = 0, 0
  for i = 0, COURTS - 1 do
    local later = 0
    for row = ROWS - COURTS + i, i, -COURTS do
      later = rewards[row] + (ends[row] and 0 or DISCOUNT * later)
      into[row] = later
      sum, squares = sum + later, squares + later * later
    end
  end
  local mean = sum / ROWS
  local scale = 1 / math.sqrt(math.max(squares / ROWS - mean * mean, 1e-8))
  for row = 0, ROWS - 1 do into[row] = (into[row] - mean) * scale end
  return mean
end

local smooth_return

local function learn()
  local mean_return = fill_advantages()
  local call = learn_job(window.states, window.actions, window.advantages)
  if not call then return end  -- busy: these games are not learned from
  call(function()
    act:publish()
    catch.updates = catch.updates + 1
    smooth_return = (smooth_return or mean_return) * 0.8 + mean_return * 0.2
    catch.caught_curve:add(catch.caught)
    catch.return_curve:add(smooth_return)
  end)
end

-- One step of all courts with these probabilities of the actions.
local function step(probabilities)
  local p, states, actions = probabilities:ptr(), window.states:ptr(), window.actions:ptr()
  local first = window.steps * COURTS
  local features = seen:ptr()
  for i = 0, COURTS * FEATURES - 1 do states[first * FEATURES + i] = features[i] end
  for i = 1, COURTS do
    local row = first + i - 1
    local action = pick(p, i - 1)
    actions[row] = action
    window.rewards[row], window.ends[row] = move(i, action)
  end
  window.steps = window.steps + 1
  if window.steps == WINDOW then
    window.steps = 0
    if catch.training then learn() end
  end
end

local function observe()
  local features = seen:ptr()
  for i = 1, COURTS do
    local at = FEATURES * (i - 1)
    features[at], features[at + 1] = 2 * catch.x[i] - 1, 2 * catch.y[i] - 1
    features[at + 2], features[at + 3] = drift[i] / DRIFT, 2 * catch.paddle[i] - 1
  end
end

local due = 0  -- steps; so the games run at one speed on every screen

--- Once per frame: plays a step when it is time.
--- @param dt number  seconds since the frame before
function catch.update(dt)
  due = math.min(due + dt * STEPS_PER_SECOND, 2)
  if due < 1 then return end
  due = due - 1
  observe()
  step(act())
end

return catch
