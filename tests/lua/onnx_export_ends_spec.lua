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

  it("are divided, and by 0 and -1 too, which would end others that run the file", function()
    for dtype, list in pairs {
      int8 = { -128, -127, 127, 5, -5, 0, -1, 1 }, uint8 = { 0, 1, 255, 200, 7, 3, 254, 128 },
      int32 = { -2 ^ 31, -2 ^ 31 + 1, 2 ^ 31 - 1, 5, -5, 0, -1, 1 }, int64 = { -2 ^ 63, 2 ^ 62, 5, -5, 0, -1, 1, -7 },
    } do
      local given = np.array(list, "float64"):astype(dtype)
      for _, name in ipairs { "floordiv", "mod" } do
        local operators = same_again(given, function(x)
          return flow.math[name](flow.reshape(x, { 8, 1 }), flow.reshape(x, { 1, 8 }))
        end)
        assert.truthy(operators:find(name == "mod" and "Where Mod" or "Where Div", 1, true), operators)
        operators = same_again(given, function(x) return flow.math[name](x, 5) end)
        assert.is_nil(operators:find("Or", 1, true))
        same_again(given, function(x) return flow.math[name](x, 0) end)
      end
    end
    local _, quotients = same_again(np.array({ -128, 127, -1 }, "int8"), function(x)
      return flow.math.floordiv(x, 5)
    end)
    models.same({ -26, 25, -1 }, quotients)
  end)
end)
