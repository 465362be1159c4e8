--- How the robot learns to balance its pole: a policy net, simulated tries, and a policy gradient (REINFORCE). The host
-- calls improve() over and over on its training thread, and runs the job `policy` on its control thread. This file may
-- be edited while the robot runs: it is loaded again, and the weights stay.
-- luacheck: globals improve progress report

local flow = require "moonflow"
local ffi = require "ffi"
local np, tp = flow.np, flow.typing

ffi.cdef "void robot_advance(float* poles, const float* forces, int32_t* upright, int32_t count, int32_t steps);"

flow.set_seed(1)  -- of the first weights; math.random begins the same each time

local FORCE = 10        -- N: the largest
local POLES = 64        -- simulated at once
local TRIES = 200       -- decisions in one try
local PERIOD = 20       -- steps of 1 ms between two decisions: the tries are coarser than the control loop
local LEARNING_RATE = 0.003
local DISCOUNT = 0.98   -- of a reward one decision later

-- ---- the net ------------------------------------------------------------------------------------------------------

-- From (rows, position velocity angle angular_velocity) to (rows, left right), as logits.
local function net(states)
  local hidden = flow.layers.dense(states, 64, { activation = flow.math.tanh, name = "hidden1" })
  hidden = flow.layers.dense(hidden, 64, { activation = flow.math.tanh, name = "hidden2" })
  return flow.layers.dense(hidden, 2, { name = "direction" })
end

-- What the control loop runs: the probabilities of pushing left and right, for one robot.
flow.global_function {
  name = "policy",
  inputs = { state = tp.Numpy.Placeholder({ 1, 4 }) },
  returns = tp.Numpy,
} (function(state) return flow.nn.softmax(net(state)) end)

local explore = flow.global_function {
  inputs = { states = tp.Numpy.Placeholder({ POLES, 4 }) },
  returns = tp.Numpy,
} (function(states) return flow.nn.softmax(net(states)) end)

-- Makes actions with an advantage more likely, those with a disadvantage less.
local learn = flow.global_function {
  type = "train",
  inputs = {
    states = tp.Numpy.Placeholder({ TRIES * POLES, 4 }),
    actions = tp.Numpy.Placeholder({ TRIES * POLES }, { dtype = flow.int32 }),
    advantages = tp.Numpy.Placeholder({ TRIES * POLES }),
  },
  returns = tp.None,
} (function(states, actions, advantages)
  local surprise = flow.nn.sparse_softmax_cross_entropy_with_logits(actions, net(states))
  local schedule = flow.optimizer.PiecewiseConstantScheduler({}, { LEARNING_RATE })
  flow.optimizer.Adam(schedule):minimize(flow.math.multiply(surprise, advantages))
end)

-- ---- simulated tries ----------------------------------------------------------------------------------------------

local function floats(...) return np.zeros({ ... }, { dtype = flow.float }) end
local function integers(...) return np.zeros({ ... }, { dtype = flow.int32 }) end

-- What jobs take is an array, and its elements are reached through the FFI; functions below name both, for a pointer
-- does not keep its array alive. The rest is memory of the FFI.
local poles = floats(POLES, 4)
local pole = poles:ptr()
local force, up = ffi.new("float[?]", POLES), ffi.new("int32_t[?]", POLES)

local function random(scale) return (2 * math.random() - 1) * scale end

local function place_poles()
  for i = 0, POLES - 1 do
    pole[4 * i], pole[4 * i + 1] = random(1.2), random(0.5)         -- m, m/s
    pole[4 * i + 2], pole[4 * i + 3] = random(0.2), random(0.5)     -- rad, rad/s
    up[i] = 1
  end
end

local COUNT = TRIES * POLES
local states, actions, advantages = floats(COUNT, 4), integers(COUNT), floats(COUNT)
local state, action, advantage = states:ptr(), actions:ptr(), advantages:ptr()
local stood, reward = ffi.new("int32_t[?]", COUNT), ffi.new("float[?]", COUNT)

-- Lets all poles act as the net finds likely. Notes what each saw, did and got: 1 for upright and in the middle.
local function try_out()
  place_poles()
  for try = 0, TRIES - 1 do
    local row = try * POLES
    ffi.copy(state + 4 * row, pole, 4 * POLES * ffi.sizeof("float"))
    local probabilities = explore(poles)
    local likely = probabilities:ptr()
    for i = 0, POLES - 1 do
      local right = math.random() < likely[2 * i + 1]
      action[row + i], force[i], stood[row + i] = right and 1 or 0, right and FORCE or -FORCE, up[i]
    end
    ffi.C.robot_advance(pole, force, up, POLES, PERIOD)
    for i = 0, POLES - 1 do
      local x, angle = pole[4 * i] / 2.4, pole[4 * i + 2] / 0.6
      reward[row + i] = up[i] == 1 and 1 - 0.5 * x * x - 0.5 * angle * angle or 0
    end
  end
end

-- How much better than the others each pole fared after an action: its discounted rewards from there on, against their
-- mean over the poles that stood at that time; scaled to a deviation of 1.
local function judge()
  local future = ffi.new("double[?]", POLES)
  local squares, count = 0, 0
  for try = TRIES - 1, 0, -1 do
    local row, sum, standing = try * POLES, 0, 0
    for i = 0, POLES - 1 do
      future[i] = reward[row + i] + DISCOUNT * future[i]
      if stood[row + i] == 1 then sum, standing = sum + future[i], standing + 1 end
    end
    for i = 0, POLES - 1 do
      local better = stood[row + i] == 1 and future[i] - sum / standing or 0
      advantage[row + i], squares = better, squares + better * better
    end
    count = count + standing
  end
  local scale = 1 / math.sqrt(squares / count + 1e-8)
  for k = 0, COUNT - 1 do advantage[k] = scale * advantage[k] end
  return count / POLES * PERIOD / 1000
end

-- The control law of the robot, for `seconds`: the mean of what the net would do. How many poles stand at the end.
local function examine(seconds)
  place_poles()
  for _ = 1, seconds * 1000 / 10 do
    local probabilities = explore(poles)
    local likely = probabilities:ptr()
    for i = 0, POLES - 1 do force[i] = FORCE * (likely[2 * i + 1] - likely[2 * i]) end
    ffi.C.robot_advance(pole, force, up, POLES, 10)
  end
  local standing = 0
  for i = 0, POLES - 1 do standing = standing + up[i] end
  return standing
end

-- ---- one round ----------------------------------------------------------------------------------------------------

progress = progress or { round = 0, best = 0 }  -- outlives a change of this file, as the weights do

--- Learns from one round of tries. Every tenth time the net is examined, and given to the robot if it does no worse
--- than the one the robot has; and the host is told.
function improve()
  progress.round = progress.round + 1
  try_out()
  local seconds_up = judge()
  learn(states, actions, advantages)
  if progress.round % 10 ~= 0 then return end
  local standing = examine(30)
  if standing >= progress.best then
    progress.best = standing
    flow.publish()
  end
  report(progress.round, seconds_up, standing, POLES)
end
