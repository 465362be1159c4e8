-- Trains a small DCGAN (Radford, Metz, Chintala, 2016) to draw digits. Two training jobs share their variables by name,
-- and each trains its own part: the discriminator tells pictures of MNIST from drawn ones, the generator learns what
-- passes for real. Every 500 steps it draws the same hundred points of its space into a picture.
-- usage: moonflow gan_mnist.lua [steps, default 2000] [picture, default gan_mnist.png] [batch, default 64]
local flow = require "moonflow"
local np, tp = flow.np, flow.typing

local STEPS = tonumber(arg[1]) or 2000
local PICTURE = arg[2] or "gan_mnist.png"
local BATCH_SIZE = tonumber(arg[3]) or 64
local NOISE, ROWS, COLUMNS = 64, 10, 10

local initializer = flow.random_normal_initializer(0, 0.02)

local function leaky(x, options) return flow.nn.leaky_relu(x, 0.2, options) end

local function normal_relu(x, name)
  return flow.nn.relu(flow.layers.batch_normalization(x, { momentum = 0.9, epsilon = 1e-5, name = name }))
end

-- Noise (batch, NOISE) to pictures (batch, 1, 28, 28) from -1 to 1.
local function generator(noise)
  return flow.scope.namespace("generator", function()
    local function larger(x, filters, name, options)
      options = options or {}
      options.strides, options.padding, options.name, options.kernel_initializer = 2, "SAME", name, initializer
      return flow.layers.conv2d_transpose(x, filters, 5, options)
    end
    local seed = flow.layers.dense(noise, 64 * 7 * 7, { use_bias = false, name = "seed",
                                                        kernel_initializer = initializer })
    local x = normal_relu(flow.reshape(seed, { -1, 64, 7, 7 }), "norm1")
    x = normal_relu(larger(x, 32, "middle", { use_bias = false }), "norm2")
    return larger(x, 1, "picture", { activation = flow.math.tanh })
  end)
end

-- Pictures to logits (batch, 1): above zero means real.
local function discriminator(pictures)
  return flow.scope.namespace("discriminator", function()
    local function smaller(x, filters, name)
      return flow.layers.conv2d(x, filters, 5, {
        strides = 2, padding = "SAME", activation = leaky, name = name, kernel_initializer = initializer,
      })
    end
    local x = flow.nn.dropout(smaller(pictures, 32, "conv1"), 0.3)
    x = flow.nn.dropout(smaller(x, 64, "conv2"), 0.3)
    return flow.layers.dense(flow.reshape(x, { x.shape[0], -1 }), 1, { name = "verdict",
                                                                       kernel_initializer = initializer })
  end)
end

local function optimizer(variables)
  return flow.optimizer.Adam(1e-3, { beta1 = 0.5, variables = variables })
end

local noise_type = tp.Numpy.Placeholder({ BATCH_SIZE, NOISE })

local train_discriminator = flow.global_function {
  type = "train", returns = tp.Numpy,
  inputs = { pictures = tp.Numpy.Placeholder({ BATCH_SIZE, 1, 28, 28 }), noise = noise_type },
} (function(pictures, noise)
  -- Both kinds in one batch. Real ones count as 0.9, so that the verdict does not run away (Salimans and others, 2016).
  local logits = discriminator(flow.concat({ pictures * 2 - 1, generator(noise) }))
  local labels = flow.concat({ flow.ones({ BATCH_SIZE, 1 }) * 0.9, flow.zeros({ BATCH_SIZE, 1 }) })
  local loss = flow.nn.BCEWithLogitsLoss(logits, labels)
  optimizer("discriminator"):minimize(loss)
  return loss
end)

local train_generator = flow.global_function {
  type = "train", returns = tp.Numpy, inputs = { noise = noise_type },
} (function(noise)
  local loss = flow.nn.BCEWithLogitsLoss(discriminator(generator(noise)), flow.ones({ BATCH_SIZE, 1 }))
  optimizer("generator"):minimize(loss)
  return loss
end)

local draw = flow.global_function {
  type = "predict", returns = tp.Numpy, inputs = { noise = tp.Numpy.Placeholder({ ROWS * COLUMNS, NOISE }) },
} (function(noise)
  return (generator(noise) + 1) / 2
end)

local function noise(count)
  return np.random.normal(0, 1, { count, NOISE }):astype(flow.float)
end

-- The digits in rows and columns, as one picture.
local points = noise(ROWS * COLUMNS)
local function save_picture()
  local sheet = draw(points):reshape({ ROWS, COLUMNS, 28, 28 }):transpose({ 0, 2, 1, 3 })
  np.save_png(PICTURE, sheet:reshape({ ROWS * 28, COLUMNS * 28 }))
end

flow.train.CheckPoint():init()
local train = flow.data.load_mnist(BATCH_SIZE, BATCH_SIZE, { shuffle = 1, drop_last = true })

local step = 0
while step < STEPS do
  for _, pictures in train:batches() do
    if step == STEPS then break end
    local verdict_loss = train_discriminator(pictures, noise(BATCH_SIZE))
    local picture_loss = train_generator(noise(BATCH_SIZE))
    if step % 100 == 0 then
      print(("step %d, loss of the discriminator %.3f, of the generator %.3f"):format(step, verdict_loss:item(),
        picture_loss:item()))
    end
    step = step + 1
    if step % 500 == 0 then save_picture() end
  end
end
save_picture()
print("digits in " .. PICTURE)
