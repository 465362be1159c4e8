std = "luajit"
max_line_length = 120
cache = false
files["tests/lua"] = { std = "+busted" }
files["samples/love"] = { std = "+love" }
