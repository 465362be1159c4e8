-- What nginx.conf has its processes do: answers which digit is on a picture that is posted, PNG or JPEG, and how sure
-- that is, as "7 0.998". Light or dark on the other, of any size; the digit fills most of it.
local flow = require "moonflow"
local np, tp = flow.np, flow.typing

flow.config.cpu_threads(1)  -- nginx has a process for each core
flow.config.log(function(text) ngx.log(ngx.WARN, text) end)

local function lenet(images)
  local relu = flow.nn.relu
  local conv1 = flow.layers.conv2d(images, 32, 5, { padding = "SAME", activation = relu, name = "conv1" })
  local pool1 = flow.nn.max_pool2d(conv1, { ksize = 2, strides = 2, padding = "SAME" })
  local conv2 = flow.layers.conv2d(pool1, 64, 5, { padding = "SAME", activation = relu, name = "conv2" })
  local pool2 = flow.nn.max_pool2d(conv2, { ksize = 2, strides = 2, padding = "SAME" })
  local flat = flow.reshape(pool2, { pool2.shape[0], -1 })
  local hidden = flow.layers.dense(flat, 512, { activation = relu, name = "dense1" })
  return flow.layers.dense(hidden, 10, { name = "dense2" })
end

local classify = flow.global_function {
  name = "classify", inputs = { images = tp.Numpy.Placeholder({ 1, 1, 28, 28 }) }, returns = tp.Numpy,
} (function(images) return flow.nn.softmax(lenet(images)) end)

flow.train.CheckPoint():load("lenet_models_1")

-- A picture as MNIST has them: 28 rows of 28, from 0 to 1, light on dark.
local function read(bytes)
  local picture = (bytes:find("^\137PNG") and np.decode_png or np.decode_jpeg)(bytes)
  if picture.rank == 3 then picture = picture:slice(":, :, :3"):mean(2) end
  picture = np.resize_picture(picture, { 28, 28 }):astype(flow.float) / 255
  if picture[0]:mean() > 0.5 then picture = 1 - picture end
  return picture
end

local digits = {}

digits.answer = flow.text_errors(function()
  ngx.req.read_body()
  local fine, picture = pcall(read, ngx.req.get_body_data() or "")
  if not fine then
    ngx.status = ngx.HTTP_BAD_REQUEST
    return ngx.say(tostring(picture))
  end
  local sure = classify(picture:reshape({ 1, 1, 28, 28 }))[0]
  local digit = np.argmax(sure)
  ngx.say(("%d %.3f"):format(digit, sure[digit]))
end)

return digits
