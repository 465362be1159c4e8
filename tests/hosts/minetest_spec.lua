-- A mod of a Minetest server, by the program of docs/embedding.md: it learns while the world is played, and the world
-- keeps what it has learned.
local host = require "host"
local process = require "process"

-- What stands in for players: says the guesses of the mod after so many steps, and ends the server.
local PLAYED = [[
local steps, command = 0, minetest.registered_chatcommands["hill"].func
minetest.register_globalstep(function()
  steps = steps + 1
  if steps ~= STEPS then return end
  local noise = minetest.get_perlin({ offset = 0, scale = 1, spread = { x = 99, y = 99, z = 99 }, seed = 5, octaves = 1,
    persist = 0.5 })
  local off = 0
  for x = -90, 90, 10 do
    local _, told = command("player", x .. " " .. x / 2)
    off = math.max(off, math.abs(tonumber(told) - noise:get_2d({ x = x, y = x / 2 })))
  end
  minetest.log("action", ("off by %.3f at most"):format(off))
  minetest.log("action", "require is " .. tostring(pcall(require, "moonflow")))
  if FAILS then command("player", "up there") end
  minetest.request_shutdown()
end)
]]

describe("Minetest", function()
  local world

  local function play(steps, fails)
    process.write(world .. "/worldmods/hills/init.lua", host.program("A Minetest mod")
      .. PLAYED:gsub("STEPS", steps):gsub("FAILS", tostring(fails)))
    local result = process.shell("timeout 100 " .. host.command("/usr/games/minetestserver", "--config",
      world .. "/minetest.conf", "--world", world, "--gameid", "devtest", "--logfile", world .. "/log"),
      { env = { HOME = world } })
    return result.out .. result.err
  end

  setup(function()
    world = process.folder("world")
    os.execute("mkdir -p " .. process.quote(world .. "/worldmods/hills"))
    process.write(world .. "/worldmods/hills/mod.conf", "name = hills\n")
    process.write(world .. "/world.mt", "gameid = devtest\nbackend = dummy\nplayer_backend = dummy\n"
      .. "auth_backend = files\nmod_storage_backend = dummy\n")
    process.write(world .. "/minetest.conf", "secure.trusted_mods = hills\nport = 30497\nbind_address = 127.0.0.1\n"
      .. "dedicated_server_step = 0.01\n")
  end)

  it("learns in the steps of its server, and keeps that with the world", function()
    local first = play(900)
    local learned = tonumber(first:match("off by ([%d.]+) at most"))
    assert.truthy(learned and learned < 0.3, first)
    assert.truthy(first:find("require is false", 1, true), first)
    local again = play(2)
    local kept = tonumber(again:match("off by ([%d.]+) at most"))
    assert.truthy(kept and kept < 0.3, again)
  end)

  it("says what is wrong", function()
    local text = play(2, true)
    assert.truthy(text:find("hills/init.lua:%d+: attempt to perform arithmetic on local 'x'"), text)
  end)
end)
