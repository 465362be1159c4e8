--- Digits: the net that reads what the person draws, and its training, which goes on in the background.
-- With a checkpoint of samples/lenet_train.lua in the working folder it is that LeNet and need not learn any more;
-- without one it is a smaller net of the same form, which begins to learn when the game starts.
local curve = require "curve"
local flow = require "moonflow"
local np, tp = flow.np, flow.typing

local SIDE, CLASSES = 28, 10
local BATCH, TEST_BATCH = 32, 100
local CHECKPOINT = "lenet_models_1"
local CHECK_EVERY = 30  -- steps between two looks at the test set

local function is_file(path)
  local file = io.open(path, "rb")
  if file then file:close() end
  return file ~= nil
end

local has_checkpoint = is_file(CHECKPOINT .. "/manifest.json")

local digits = {
  training = false,
  is_ready = has_checkpoint,  -- so that it need not train
  steps = 0, loss = nil, accuracy = nil,
  accuracy_curve = curve.new(),
  probabilities = nil,  -- of the ten classes for the latest picture: a list
  source = nil,         -- where the weights come from, in words
}

local size = has_checkpoint and { conv1 = 32, conv2 = 64, dense1 = 512 } or { conv1 = 8, conv2 = 16, dense1 = 64 }

local function network(images, train)
  local function block(x, name, number)
    x = flow.layers.conv2d(x, size[name], 5, { padding = "SAME", activation = flow.nn.relu, name = name })
    return flow.nn.max_pool2d(x, { ksize = 2, strides = 2, padding = "SAME", name = "pool" .. number })
  end
  local x = block(block(images, "conv1", 1), "conv2", 2)
  x = flow.reshape(x, { x.shape[0], -1 })
  x = flow.layers.dense(x, size.dense1, { activation = flow.nn.relu, name = "dense1" })
  if train then x = flow.nn.dropout(x, { rate = 0.3, name = "dropout" }) end
  return flow.layers.dense(x, CLASSES, { name = "dense2" })
end

local function pictures(count)
  return tp.Numpy.Placeholder({ count, 1, SIDE, SIDE })
end

local train_job = flow.global_function {
  name = "train_digits", type = "train",
  inputs = { images = pictures(BATCH), labels = tp.Numpy.Placeholder({ BATCH }, { dtype = flow.int32 }) },
  returns = tp.Callback[tp.Numpy],
} (function(images, labels)
  local loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, network(images, true))
  flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler({}, { 0.001 })):minimize(loss)
  return loss
end)

local function define_reader(name, count)
  return flow.global_function {
    name = name, inputs = { images = pictures(count) }, returns = tp.Callback[tp.Numpy],
  } (function(images)
    return flow.nn.softmax(network(images))
  end)
end
local read_job, test_job = define_reader("read_digit", 1), define_reader("test_digits", TEST_BATCH)

-- ---- training -----------------------------------------------------------------------------------------------------

local train, test

-- The share of test digits that are read right. For a task: it awaits.
local function measure()
  local right = 0
  for _, images, labels in test:batches() do
    right = right + np.sum(np.argmax(test_job(images):await(), 1):eq(labels))
  end
  digits.accuracy = right / #test
  digits.accuracy_curve:add(digits.accuracy)
end

local function take_loss(loss)
  digits.steps, digits.loss = digits.steps + 1, loss:mean()
end

local first_look  -- the task that measures before any training

-- One epoch after the other. In a task a call that finds no room waits for it, so this loop always keeps the engine
-- supplied and never stops the game.
local function train_forever()
  first_look:await()
  while digits.training do
    for i, images, labels in train:batches() do
      if not digits.training then break end
      train_job(images, labels)(take_loss)
      if (i + 1) % CHECK_EVERY == 0 then measure() end
    end
  end
end

local task

--- Switches training on or off.
function digits.train(on)
  digits.training = on
  if on and (not task or task:done()) then task = flow.spawn(train_forever) end
end

--- Loads the data and the weights, and looks how good they are.
function digits.load()
  -- A part of MNIST is enough to watch, and is there at once.
  train, test = flow.data.load_mnist(BATCH, TEST_BATCH, {
    train_examples = 19200, test_examples = 1000, shuffle = true, drop_last = true })
  local check_point = flow.train.CheckPoint()
  if has_checkpoint then
    check_point:load(CHECKPOINT)
    digits.source = "LeNet from " .. CHECKPOINT
  else
    check_point:init()
    digits.source = "a small net, learning while you draw"
  end
  first_look = flow.spawn(measure)
end

-- ---- reading ------------------------------------------------------------------------------------------------------

local asked = false

local function answer(probabilities)
  asked = false
  local list = {}
  for class = 0, CLASSES - 1 do list[class + 1] = probabilities:at(0, class) end
  digits.probabilities = list
end

--- Has a picture read, as soon as the engine has room for it; the latest answer stands in digits.probabilities.
--- @param pixels table  28 * 28 brightnesses from 0 to 1, row by row
function digits.read(pixels)
  if asked then return end
  local call = read_job(np.array(pixels, flow.float):reshape({ 1, 1, SIDE, SIDE }))
  if not call then return end  -- busy: the next frame asks again
  asked = true
  call(answer)
end

--- Forgets the latest answer.
function digits.forget()
  digits.probabilities = nil
end

return digits
