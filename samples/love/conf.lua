function love.conf(t)
  t.identity = "moonflow"
  t.version = "11.4"
  t.window.title = "Moonflow"
  t.window.width, t.window.height = 960, 600
  for _, unused in ipairs { "audio", "joystick", "physics", "sound", "thread", "touch", "video" } do
    t.modules[unused] = false
  end
end
