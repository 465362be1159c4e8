-- The web server of samples/nginx: pictures of MNIST's test set, posted as files, and what comes back.
local host = require "host"
local process = require "process"

local MODULES = host.root .. "/usr/lib/nginx/modules/"
local URL = "http://127.0.0.1:8080/digit"

describe("nginx", function()
  local folder

  local function get(...)
    local result = process.shell(host.command("/usr/bin/curl", "-s", "-m", "20", "-w", " %{http_code}", ...))
    local text, code = result.out:match("^(.-)\n (%d+)$")
    return text, tonumber(code)
  end
  local function ask(file) return get("--data-binary", "@" .. folder .. "/" .. file, URL) end

  -- Calls `body` while the server runs, with a function that gives its log.
  local function serving(conf, body)
    local pid, log = "/tmp/moonflow-nginx.pid", folder .. "/log"
    local modules = "env LUA_PATH; env LUA_CPATH; load_module " .. MODULES .. "ndk_http_module.so; load_module "
      .. MODULES .. "ngx_http_lua_module.so;"
    os.execute(("cd %s && %s >%s 2>&1 &"):format(process.quote(folder),
      host.command("/usr/sbin/nginx", "-c", folder .. "/" .. conf, "-g", modules), process.quote(log)))
    assert.equal(0, process.shell(("timeout 20 sh -c 'until [ -s %s ]; do sleep 0.1; done'"):format(pid)).code,
      process.read(log))
    local fine, problem = pcall(body, function() return process.read(log) end,
      function() os.execute("kill -HUP $(cat " .. pid .. ")") end)
    os.execute(("pid=$(cat %s); kill -QUIT $pid; timeout 20 sh -c \"while kill -0 $pid 2>&-; do sleep 0.1; done\"")
      :format(pid))
    if not fine then error(problem, 0) end
  end

  setup(function()
    folder = process.folder("nginx")
    os.execute(("ln -s %s/samples %s/"):format(process.quote(process.source), process.quote(folder)))
  end)

  it("says in its log what a process lacks", function()
    serving("samples/nginx/nginx.conf", function(log)
      process.write(folder .. "/hello", "hello")
      local _, code = ask("hello")
      assert.equal(500, code)
      assert.truthy(log():find("init_worker_by_lua error: samples/nginx/digits.lua:%d+: [^\n]*lenet_models_1"), log())
    end)
  end)

  it("tells which digit is on a picture", function()
    local trained = process.moonflow({ process.source .. "/samples/lenet_train.lua", "1" }, { folder = folder })
    assert.equal(0, trained.code, trained.err)
    process.write(folder .. "/pictures.lua", [[
local flow = require "moonflow"
local np = flow.np
local _, test = flow.data.load_mnist(100, 100)
for _, images, labels in test:batches() do
  for i = 0, 49 do np.save_png(i .. "_" .. labels[i], (images[i][0] * 255):astype("uint8")) end
  local large = np.resize_picture(255 * (1 - images[0][0]), 200):astype("uint8")
  np.save_jpeg("large_" .. labels[0], np.stack({ large, large, large }, 2))  -- dark on light, and in colours
  break
end
]])
    assert.equal(0, process.moonflow({ "pictures.lua" }, { folder = folder }).code)
    serving("samples/nginx/nginx.conf", function(log, reload)
      local right, count = 0, 0
      for file in io.popen("ls " .. process.quote(folder)):lines() do
        local digit = file:match("^%d+_(%d)%.png$")
        if digit then
          local text, code = ask(file)
          assert.equal(200, code, log())
          assert.truthy(text:find("^%d [01]%.%d%d%d$"), text)
          right, count = right + (text:sub(1, 1) == digit and 1 or 0), count + 1
        end
      end
      assert.equal(50, count)
      assert.is_true(right >= 47, right .. " of 50")

      local large = io.popen("cd " .. process.quote(folder) .. " && ls large*"):read("*l")
      assert.equal(large:match("_(%d)"), (ask(large)):sub(1, 1))
      local text, code = ask("hello")
      assert.equal(400, code)
      assert.truthy(text:find("the string of 5 bytes is no JPEG picture", 1, true), text)

      reload()
      os.execute("sleep 2")
      assert.equal(large:match("_(%d)"), (ask(large)):sub(1, 1))
      assert.equal("", log())
    end)
  end)

  it("answers others while a slow net computes, and tells each what was wrong with its own", function()
    process.write(folder .. "/later.lua", [[
local flow = require "moonflow"
local tp = flow.typing
]] .. host.program("nginx") .. [[
local pick = flow.global_function {
  name = "pick", returns = tp.Callback(tp.Numpy),
  inputs = { values = tp.Numpy.Placeholder({ 3 }), at = tp.Numpy.Placeholder({ 1 }, { dtype = flow.int32 }) },
} (function(values, at)
  local slow = flow.math.reduce_max(flow.sort(flow.random.uniform({ shape = { 200000 } })))
  return flow.gather(values, at) + 0 * slow
end)
local values = flow.np.array({ 10, 20, 30 }, flow.float)
return { answer = flow.text_errors(function()
  ngx.say(("%d"):format(wait(pick(values, flow.np.array({ tonumber(ngx.var.arg_at) }, flow.int32))):item()))
end) }
]])
    local conf = process.read(process.source .. "/samples/nginx/nginx.conf")
    conf = conf:gsub("samples/nginx/%?", "?"):gsub('"digits"', '"later"')
      :gsub("worker_processes auto", "worker_processes 1")
    process.write(folder .. "/later.conf", conf)
    serving("later.conf", function(log)
      local urls = {}
      for i = 0, 19 do urls[#urls + 1] = URL .. "?at=" .. i % 4 end  -- there is no place 3
      local all = process.shell(host.command("/usr/bin/curl", "-s", "-m", "20", "--parallel", "--parallel-max", "20",
        unpack(urls)))
      local count = {}
      for line in all.out:gmatch("[^\n]+") do count[line] = (count[line] or 0) + 1 end
      assert.same({ 5, 5, 5 }, { count["10"], count["20"], count["30"] }, all.out .. log())
      local errors = 0
      for text in log():gmatch("runtime error: [^\n]*later%.lua:%d+: pick: [^\n]*\nstack traceback:\n") do
        errors = errors + (text:find("gather", 1, true) and 1 or 0)
      end
      assert.equal(5, errors, log())
    end)
  end)
end)
