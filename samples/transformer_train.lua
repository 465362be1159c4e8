-- Trains a small transformer to continue a text, one character after the other, and lets it write.
-- Without a text it learns the documents of this project, some 90,000 characters.
-- usage: moonflow transformer_train.lua [steps] [text file ...]
local flow = require "moonflow"
local np, tp = flow.np, flow.typing

local STEPS = tonumber(arg[1]) or 1000
local BATCH_SIZE, LENGTH, WIDTH, HEADS, LAYERS = 16, 64, 128, 4, 2

-- ---- the text -----------------------------------------------------------------------------------------------------

local here = arg[0]:match("^(.*)/[^/]*$") or "."
local files = { unpack(arg, 2) }
if #files == 0 then
  for i, name in ipairs { "README.md", "docs/design.md", "docs/porting.md", "docs/ops.md" } do
    files[i] = here .. "/../" .. name
  end
end
local parts = {}
for i, path in ipairs(files) do
  local file = assert(io.open(path, "rb"))
  parts[i] = file:read("*a")
  file:close()
end
local text = table.concat(parts, "\n")

-- Characters are numbered from 0 in the order in which they come.
local characters, number_of = {}, {}
for character in text:gmatch(".") do
  if not number_of[character] then
    number_of[character] = #characters
    characters[#characters + 1] = character
  end
end
assert(#text > LENGTH + 1, "the text is too short")
print(("%d characters, %d different ones"):format(#text, #characters))

-- Pieces of the text from random places, and the same one character further on.
local function batch()
  local now, following = {}, {}
  for row = 1, BATCH_SIZE do
    local start = np.random.randint(1, #text - LENGTH)
    now[row], following[row] = {}, {}
    for i = 1, LENGTH do
      now[row][i] = number_of[text:sub(start + i - 1, start + i - 1)]
      following[row][i] = number_of[text:sub(start + i, start + i)]
    end
  end
  return np.array(now, flow.int32), np.array(following, flow.int32)
end

-- ---- the network --------------------------------------------------------------------------------------------------

local initializer = flow.random_normal_initializer(0, 0.02)

local function dense(x, units, name, activation)
  return flow.layers.dense(x, units, { name = name, activation = activation, kernel_initializer = initializer })
end

local function normal(x, name)
  return flow.layers.layer_norm(x, { begin_norm_axis = 2, name = name })
end

-- Every place looks at itself and at those before it.
local function attention(x, name)
  local function heads(part)
    return flow.reshape(dense(x, WIDTH, name .. "-" .. part), { x.shape[0], LENGTH, HEADS, WIDTH / HEADS })
  end
  local seen = flow.nn.dot_product_attention(heads("query"), heads("key"), heads("value"),
    { causal = true, rate = 0.1, name = name })
  return dense(flow.reshape(seen, x.shape:table()), WIDTH, name .. "-out")
end

-- Integers (batch, LENGTH) to logits of the next character at every place.
local function transformer(tokens)
  local places = flow.get_variable("places", { shape = { LENGTH, WIDTH }, initializer = initializer })
  local x = flow.layers.embedding(tokens, #characters, WIDTH, {
    embeddings_initializer = initializer, name = "embedding" }) + places
  for i = 1, LAYERS do
    local name = "block" .. i
    x = x + flow.nn.dropout(attention(normal(x, name .. "-norm1"), name .. "-attention"), { rate = 0.1 })
    local hidden = dense(normal(x, name .. "-norm2"), 4 * WIDTH, name .. "-hidden", flow.math.gelu)
    x = x + flow.nn.dropout(dense(hidden, WIDTH, name .. "-output"), { rate = 0.1 })
  end
  return dense(normal(x, "norm"), #characters, "logits")
end

local train_job = flow.global_function {
  type = "train",
  inputs = {
    tokens = tp.Numpy.Placeholder({ BATCH_SIZE, LENGTH }, { dtype = flow.int32 }),
    following = tp.Numpy.Placeholder({ BATCH_SIZE, LENGTH }, { dtype = flow.int32 }),
  },
  returns = tp.Numpy,
} (function(tokens, following)
  local loss = flow.nn.sparse_softmax_cross_entropy_with_logits(following, transformer(tokens))
  flow.optimizer.AdamW(flow.optimizer.CosineScheduler(1e-3, STEPS), { weight_decay = 0.01 }):minimize(loss)
  return loss
end)

local predict_job = flow.global_function {
  type = "predict",
  inputs = { tokens = tp.Numpy.Placeholder({ 1, LENGTH }, { dtype = flow.int32 }) },
  returns = tp.Numpy,
} (function(tokens)
  return flow.nn.softmax(transformer(tokens))
end)

-- ---- training and writing -----------------------------------------------------------------------------------------

-- Goes on from `start`, each character drawn with its probability.
local function write(start, count)
  local written = start
  for _ = 1, count do
    local last = written:sub(-LENGTH)
    local tokens = np.zeros({ 1, LENGTH }, flow.int32)
    for i = 1, #last do tokens[0][i - 1] = number_of[last:sub(i, i)] or 0 end
    local probabilities = predict_job(tokens)[0][#last - 1]
    local rest, choice = np.random.uniform(0, 1), 0
    while choice < #characters - 1 and rest > probabilities[choice] do
      rest = rest - probabilities[choice]
      choice = choice + 1
    end
    written = written .. characters[choice + 1]
  end
  return written
end

flow.train.CheckPoint():init()
local progress = flow.progress(STEPS, { desc = "steps" })
for step in progress do
  local loss = train_job(batch())
  if step % 50 == 0 then progress:print(("step %d, loss %.3f"):format(step, loss:mean())) end
end
print(write("The ", 200))
