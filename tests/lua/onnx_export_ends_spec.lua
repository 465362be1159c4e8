-- job:export_onnx: numbers at the ends of their dtypes, which a file gives as the job does.
local flow = require "moonflow"
local models = require "onnx_models"

local np, tp = flow.np, flow.typing

local path
before_each(function() path = models.begin() end)
after_each(models.finish)

-- What the job of a body gives for x, the file gives that is written of it, to the last bit. Gives the operators of the
-- file, and the numbers.
local function same_again(x, body)
  flow.clear_default_session()
  local shape = x.shape:table()
  local job = flow.global_function {
    name = "net", inputs = { x = tp.Numpy.Placeholder(shape, { dtype = x.dtype }) }, returns = tp.Numpy,
  } (body)
  job:export_onnx(path)
  local model = flow.onnx.load(path, { name = "again" })
  local wanted, got = job(x), models.job_of(model, shape, x.dtype)(x)
  assert.equal(wanted.dtype, got.dtype)
  assert.is_true(np.allclose(got, wanted, { rtol = 0, atol = 0, equal_nan = true }),
    tostring(got) .. tostring(wanted))
  local operators = {}
  for _, entry in ipairs(model._nodes) do operators[#operators + 1] = entry.op end
  return table.concat(operators, " "), got
end

describe("numbers at their ends, in a file that is written,", function()
  -- Our reader's Cast has the ends by itself, so what others need is to be seen in the operators.
  it("are cast from floats by what has the ends and no NaN before the Cast", function()
    local inf = math.huge
    local list = { -inf, inf, 0 / 0, 1e30, -300, 128, -129, 256, -0.7, 1.9, 2 ^ 31, -2 ^ 31, 2 ^ 63, -2 ^ 63, 2 ^ 62 }
    for _, from in ipairs { "float16", "float32", "float64" } do
      for _, to in ipairs { "int8", "uint8", "int32", "int64" } do
        local operators = same_again(np.array(list, "float64"):astype(from), function(x) return flow.cast(x, to) end)
        local is_wide = from == "float64" or from == "float32" and (to == "int8" or to == "uint8")
        assert.equal((is_wide and "" or "Cast ") .. "IsNaN Where Clip "
          .. (to == "int64" and "GreaterOrEqual Cast Constant Where" or "Cast"), operators)
      end
    end
  end)

  it("are cast by a Cast alone from whole numbers and comparisons", function()
    assert.equal("Cast", (same_again(np.array({ 300, -129, 2 ^ 31 }, "int64"), function(x)
      return flow.cast(x, "int8")
    end)))
    assert.is_nil((same_again(np.array({ 1, 0 / 0 }, "float32"), function(x)
      return flow.cast(x:gt(0), "int32")
    end)):find("Clip"))
  end)
end)
