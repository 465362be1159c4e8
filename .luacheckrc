std = "luajit"
max_line_length = 120
cache = false
files["tests/lua"] = { std = "+busted" }
files["tests/hosts"] = { std = "+busted" }
files["samples/nginx"] = { std = "+ngx_lua" }
for _, game in ipairs { "samples/love", "tests/bench/love" } do
  files[game] = { std = "+love", globals = { "love" } }  -- whose fields luacheck does not all know
end
