-- Every sample runs alone, in a quick form: a small data set and one epoch.
local ffi = require "ffi"
local process = require "process"
local small_mnist = require "small_mnist"

describe("the sample", function()
  local folder, data

  setup(function()
    data = small_mnist()
    folder = process.folder("samples")
  end)

  local function run(name, ...)
    local result = process.moonflow({ process.source .. "/samples/" .. name, ... }, {
      folder = folder,
      env = { MOONFLOW_DATA = data },
    })
    assert.equal(0, result.code, result.out .. result.err)
    return result.out
  end

  -- The numbers of a printed array.
  local function numbers(text)
    local all = {}
    for number in text:gmatch("%-?%d+%.%d*[e%d+-]*") do all[#all + 1] = tonumber(number) end
    return all
  end

  for name, count in pairs({ ["watch.lua"] = 5, ["watch_oldest.lua"] = 10 }) do
    it(name .. " shows max(x, 0) before it ends", function()
      local input, output = run(name):match("in:%s*(%b[])%s*out:?%s*(%b[])")
      input, output = numbers(input), numbers(output)
      assert.equal(count, #output)
      -- Beside others a number may be printed with more digits than it needs, which name the same float32.
      local function float(x) return tonumber(ffi.cast("float", x)) end
      for i, x in ipairs(input) do assert.equal(float(math.max(x, 0)), float(output[i])) end
    end)
  end

  it("watch_diff.lua shows gradients whose rows sum to zero", function()
    local out = run("watch_diff.lua")
    local _, times = out:gsub("watch_diff_handler:", "")
    assert.equal(5, times)
    assert.truthy(out:find("(100, 10)\tfloat32", 1, true))
    local row = numbers(out:match("%[%[(.-)%]"))
    assert.equal(10, #row)
    local sum = 0
    for _, x in ipairs(row) do sum = sum + x end
    assert.near(0, sum, 1e-5)
  end)

  it("watch_diff_oldest.lua shows a value and its gradient", function()
    local out = run("watch_diff_oldest.lua")
    assert.truthy(out:find("logits\t(8, 10)\tfloat32", 1, true))
    assert.truthy(out:find("logits_grad\t(8, 10)\tfloat32", 1, true))
  end)

  it("watch_scope.lua shows variables and values by their logical blob names", function()
    local out = run("watch_scope.lua")
    local values, grads = out:match("view watched tensors\n(.*)view watched grad tensors\n(.*)$")
    for _, text in ipairs({ values, grads }) do
      local kinds = {}
      for kind in text:gmatch("Dense_%d+([^\n]+)\n") do kinds[#kinds + 1] = kind end
      table.sort(kinds)
      assert.same({ "-bias/out", "-weight/out", "_bias_add/out_0", "_matmul/out_0" }, kinds)
    end
  end)

  it("lenet_train.lua trains and saves what lenet_eval.lua loads", function()
    local out = run("lenet_train.lua", 1)
    assert.truthy(out:find("model saved", 1, true))
    assert.truthy(run("lenet_eval.lua"):match("accuracy: %d+%.%d%%\n$"))
  end)

  it("resnet18_train.lua trains, and tells the accuracy by its running statistics", function()
    local out = run("resnet18_train.lua", 2, 2)
    assert.truthy(out:match("^0%s+%d+%.%d+\n"))
    assert.truthy(out:match("accuracy on 20 test images: %d+%.%d%%\n$"))
  end)

  it("resnet50.lua trains in mixed precision, and tells its top-5 accuracy and its speed", function()
    local out = run("resnet50.lua", 3, 2, "cpu", 32)
    local step = "step %d, loss %d+%.%d+, %d+%.%d%% in the top 5\n"
    assert.truthy(out:match("^" .. step .. step .. "%d+%.%d images in a second\n$"))
  end)

  it("gan_mnist.lua trains two jobs in turns, and draws a sheet of digits", function()
    local out = run("gan_mnist.lua", 3, folder .. "/digits.png", 4)
    assert.truthy(out:match("^step 0, loss of the discriminator %d+%.%d+, of the generator %d+%.%d+\ndigits in "))
    local file = assert(io.open(folder .. "/digits.png", "rb"))
    assert.equal("\137PNG\r\n\26\n\0\0\0\13IHDR\0\0\1\24\0\0\1\24\8\0", file:read(26)) -- 280 by 280, grey
    file:close()
  end)

  it("transformer_train.lua learns a text and goes on from a word of it", function()
    local path = folder .. "/text.txt"
    local file = assert(io.open(path, "wb"))
    file:write(("the cat sat on the mat. "):rep(20))
    file:close()
    local out = run("transformer_train.lua", 51, path)
    local first, last = out:match("step 0, loss ([%d.]+)\nstep 50, loss ([%d.]+)\n")
    assert.truthy(tonumber(last) < 0.5 * tonumber(first))
    assert.equal(#"The " + 200 + 1, #out:match("loss [%d.]+\n(The .*)$"))
  end)

  it("mlp_train_async.lua trains and saves what mlp_eval_async.lua loads", function()
    local out = run("mlp_train_async.lua", 8)
    local first, last = out:match("^([%d.]+)\n.-([%d.]+)\n$")
    assert.truthy(tonumber(last) < tonumber(first))
    local accuracy = run("mlp_eval_async.lua"):match("accuracy: (%d+%.%d)%%\n$")
    assert.truthy(tonumber(accuracy) > 90)
  end)
end)
