-- Moonflow within Neovim's event loop, by the program of docs/embedding.md.
local host = require "host"
local process = require "process"

describe("Neovim", function()
  it("gets results from its event loop, and shows errors", function()
    local folder = process.folder("neovim")
    process.write(folder .. "/net.lua", host.program("Neovim") .. [[
local np, tp = flow.np, flow.typing
local learn = flow.global_function {
  name = "learn", type = "train", inputs = { x = tp.Numpy.Placeholder({ 16, 1 }) }, returns = tp.Callback(tp.Numpy),
} (function(x)
  local loss = flow.math.reduce_mean((flow.layers.dense(x, 1, { name = "line" }) - 3 * x - 1) ^ 2)
  flow.optimizer.Adam(0.1):minimize(loss)
  return loss
end)
local done, last, in_fast_event = 0, nil, false
for _ = 1, 200 do
  learn(np.random.uniform(-1, 1, { 16, 1 }):astype(flow.float))(function(loss)
    done, last = done + 1, loss:item()
    in_fast_event = in_fast_event or vim.in_fast_event()
    vim.api.nvim_set_var("steps", done)  -- not to be called from everywhere
  end)
end
print("waited", vim.wait(20000, function() return done == 200 end, 1))
print("steps", vim.g.steps, "learned", last < 0.01, "fast", in_fast_event)
learn(np.ones({ 3, 1 }, flow.float))
]])
    local command = host.command("/usr/bin/nvim", "--headless", "-u", "NONE", "-c", "luafile " .. folder .. "/net.lua",
      "-c", "qa!")
    local result = process.shell(command, { env = { VIMRUNTIME = host.root .. "/usr/share/nvim/runtime" } })
    local text = result.out .. result.err
    assert.truthy(text:find("waited true", 1, true), text)
    assert.truthy(text:find("steps 200 learned true fast false", 1, true), text)
    assert.truthy(text:find("net.lua:22: learn: input 'x' is float32 (3, 1), its placeholder wants float32 (16, 1)", 1,
      true), text)
    assert.equal(0, result.code)
  end)
end)
