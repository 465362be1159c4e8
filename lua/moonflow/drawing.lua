--- The graph of a job as it was traced, before any rewrite, and the steps of its plan: for Graphviz (`job:dot`), and
-- for a log, whose report draws them.

local core = require "moonflow.core"
local errors = require "moonflow.errors"
local summary = require "moonflow.summary"

local drawing = {}

-- ---- the graph ----------------------------------------------------------------------------------------------------

-- The nodes of a graph, what made each value, and the node at which those of the body end.
local function read(plan)
  local nodes, maker, last, ops = plan.graph:nodes(), {}, 0, 0
  for id, node in ipairs(nodes) do
    for _, value in ipairs(node.outputs) do maker[value] = id end
    if node.kind == "op" and ops < plan.op_count then ops, last = ops + 1, id end
  end
  return nodes, maker, last
end

-- What is marked: node -> word, of results and of watched values and gradients.
local function read_marks(plan, nodes, maker)
  local returned, watched = {}, {}
  local names = {}
  for _, result in ipairs(plan.results) do names[result.name] = true end
  for id, node in ipairs(nodes) do
    for _, value in ipairs(node.outputs) do
      if names[plan.graph:blob_name(value)] then returned[id] = true end
    end
  end
  for token, handle in pairs(plan.watches) do
    local id = maker[plan.shown[token]]
    if id and not handle.shows_gradient then
      watched[id] = watched[id] == "gradient" and "value and gradient" or watched[id] or "value"
    elseif id then
      watched[id] = watched[id] == "value" and "value and gradient" or watched[id] or "gradient"
    end
  end
  return returned, watched
end

-- How many ops are those of the gradients and of the update.
local function count_backward(nodes, last)
  local count = 0
  for id = last + 1, #nodes do count = count + (nodes[id].kind == "op" and 1 or 0) end
  return count
end

-- What the library supplies itself, such as the seed and the number of the step.
local function is_own(node)
  return node.kind ~= "op" and node.name:find("^System%-") ~= nil
end

local function milliseconds(step)
  return step.launches > 0 and step.ns / step.launches / 1e6 or nil
end

-- The steps of the compiled plan, each with the numbers (from 1) of those whose values it reads.
local function step_records(plan)
  local steps = plan.handle:steps()
  for i, step in ipairs(steps) do
    steps[i] = { label = step.label, output = step.output, site = step.site ~= "" and step.site or nil,
                 ms = milliseconds(step), inputs = #step.reads > 0 and step.reads or nil }
  end
  return steps
end

--- A job as plain data: its layers as job:summary() tells them, preceded by its inputs, each with the numbers (from 1)
--- of the ones that it reads, and the steps of its plan.
function drawing.record(job)
  local plan = job.plan
  local nodes, maker, last = read(plan)
  local returned, watched = read_marks(plan, nodes, maker)
  local layers, total, frozen = summary.layers(plan.graph, plan.op_count, plan.frozen)
  local ops, place = {}, {}
  local function add(id, op)
    op.id, op.returned, op.watched = nil, returned[id], watched[id]
    ops[#ops + 1], place[id] = op, #ops + 1
  end
  for id = 1, last do
    local node = nodes[id]
    if node.kind == "feed" and not is_own(node) then
      add(id, { name = node.name, op = "input", output = summary.output_text(plan.graph, node), site = node.site })
    end
  end
  for _, layer in ipairs(layers) do
    local id, inputs = layer.id, {}
    for _, value in ipairs(nodes[id].inputs) do inputs[#inputs + 1] = value and place[maker[value]] or nil end
    layer.inputs = #inputs > 0 and inputs or nil
    add(id, layer)
  end
  local losses = {}
  for i, value in ipairs(plan.losses) do losses[i] = place[maker[value]] end
  return { name = job.name, type = job.type, signature = tostring(job), ops = ops, parameters = total,
           frozen = frozen > 0 and frozen or nil, backward = count_backward(nodes, last),
           losses = losses[1] and losses or nil,
           steps = step_records(plan) }
end

-- ---- Graphviz -----------------------------------------------------------------------------------------------------

local COLOURS = { op = "#eef2f8", feed = "#dff3e6", variable = "#ffffff", constant = "#ffffff" }
local WATCHED = "#cfe8fc"

-- What stands in a label or name: a backslash begins an escape there, and a line break is one.
local function quoted(text)
  return '"' .. text:gsub("\\", "\\\\"):gsub('"', '\\"'):gsub("[%c\127]", " ") .. '"'
end

local function label(...)
  local lines = {}
  for i = 1, select("#", ...) do
    local line = select(i, ...)
    if line and line ~= "" then lines[#lines + 1] = quoted(line):sub(2, -2) end
  end
  return '"' .. table.concat(lines, "\\n") .. '"'
end

-- The nodes in the frames of their layers and namespaces: { name =, [1..n] = node or frame }. A name that goes on after
-- a dash is of that layer; a frame around one node alone is left out.
local function frames_of(nodes, shown)
  local members, ids = {}, {}
  for id = 1, #nodes do
    if shown[id] then
      ids[#ids + 1] = id
      for at in nodes[id].name:gmatch("()%-") do
        local prefix = nodes[id].name:sub(1, at - 1)
        members[prefix] = (members[prefix] or 0) + 1
      end
    end
  end
  for _, id in ipairs(ids) do
    local name = nodes[id].name
    if members[name] then members[name] = members[name] + 1 end
  end
  local root, frames = {}, {}
  local function frame(prefix)
    if frames[prefix] then return frames[prefix] end
    local parent = root
    for at in prefix:gmatch("()%-") do
      local outer = prefix:sub(1, at - 1)
      if members[outer] > 1 then parent = frame(outer) end
    end
    frames[prefix] = { name = prefix }
    parent[#parent + 1] = frames[prefix]
    return frames[prefix]
  end
  for _, id in ipairs(ids) do
    local name, inner = nodes[id].name, root
    for at in (name .. "-"):gmatch("()%-") do
      local prefix = name:sub(1, at - 1)
      if (members[prefix] or 0) > 1 then inner = frame(prefix) end
    end
    inner[#inner + 1] = id
  end
  return root
end

local function node_line(plan, id, node, mark)
  local given = summary.output_text(plan.graph, node)
  local kind = node.kind == "op" and node.op or node.kind == "feed" and "input" or node.kind
  local style = { "rounded,filled" }
  if mark.backward or node.kind == "variable" or node.kind == "constant" then style[1] = "rounded,filled,dashed" end
  local colour = mark.watched and WATCHED or COLOURS[node.kind]
  local words = mark.watched and "watched: " .. mark.watched
  return ("n%d [label=%s, tooltip=%s, style=%s, fillcolor=%s%s%s];"):format(id,
    label(node.name, node.name ~= kind and kind, given, words), quoted(node.site ~= "" and node.site or node.name),
    quoted(style[1]), quoted(colour), mark.returned and ", peripheries=2" or "",
    mark.backward and ', color="#9aa5b5", fontcolor="#5b6675"' or mark.watched and ', color="#0072b2"' or "")
end

-- A text in the making, and the function that adds a line to it.
local function begin(name)
  local out = {}
  local function put(depth, line) out[#out + 1] = ("  "):rep(depth) .. line end
  put(0, "digraph " .. quoted(name) .. " {")
  put(1, 'graph [fontname="Helvetica", fontsize=11, labeljust="l", color="#c5ccd8", style="rounded", ranksep=0.35];')
  put(1, 'node [shape="box", fontname="Helvetica", fontsize=10, color="#6b7686"];')
  put(1, 'edge [color="#6b7686", arrowsize=0.7];')
  return out, put
end

local LIGHT = ' [style="dashed", color="#9aa5b5"]'
local WRITES = ' [style="dashed", color="#9aa5b5", constraint=false]'

-- The ops up to the node `stop`, and of the rest what they read.
local function shown_of(nodes, maker, stop, with_backward)
  local shown = {}
  for id = 1, stop do
    local node = nodes[id]
    if node.kind == "op" then
      shown[id] = true
      for _, value in ipairs(node.inputs) do
        local source = value and maker[value]
        if source and (with_backward or not is_own(nodes[source])) then shown[source] = true end
      end
    elseif node.kind == "feed" and not is_own(node) then
      shown[id] = true
    end
  end
  return shown
end

-- The nodes in their frames; `line_of(id)` is that of a node.
local function put_nodes(put, root, line_of)
  local clusters = 0
  local function put_frame(frame, depth)
    for _, child in ipairs(frame) do
      if type(child) == "number" then
        put(depth, line_of(child))
      else
        clusters = clusters + 1
        put(depth, "subgraph cluster_" .. clusters .. " {")
        put(depth + 1, "label=" .. label(child.name) .. ";")
        put_frame(child, depth + 1)
        put(depth, "}")
      end
    end
  end
  put_frame(root, 1)
end

-- What each node reads, and what it writes: an op without outputs writes its first input.
local function put_edges(put, nodes, maker, shown, stop, last)
  for id = 1, stop do
    local node = nodes[id]
    for _, value in ipairs(shown[id] and node.inputs or {}) do
      local source = value and maker[value]
      if source and shown[source] then
        put(1, ("n%d -> n%d%s;"):format(source, id, id > last and LIGHT or ""))
      end
    end
    local written = shown[id] and node.kind == "op" and #node.outputs == 0 and node.inputs[1]
    if written and shown[maker[written]] then
      put(1, ("n%d -> n%d%s;"):format(id, maker[written], WRITES))
    end
  end
end

local function traced_dot(job, options)
  local plan = job.plan
  local nodes, maker, last = read(plan)
  local returned, watched = read_marks(plan, nodes, maker)
  local stop, backward = options.backward and #nodes or last, count_backward(nodes, last)
  local shown = shown_of(nodes, maker, stop, options.backward)
  local out, put = begin(job.name)
  put_nodes(put, frames_of(nodes, shown), function(id)
    return node_line(plan, id, nodes[id], { backward = id > last, watched = watched[id], returned = returned[id] })
  end)
  put_edges(put, nodes, maker, shown, stop, last)
  if backward > 0 and not options.backward then
    put(1, ('backward [label="gradients and update\\n%d ops", style="rounded,dashed", color="#9aa5b5", '
      .. 'fontcolor="#5b6675"];'):format(backward))
    for _, value in ipairs(plan.losses) do put(1, ("n%d -> backward%s;"):format(maker[value], LIGHT)) end
  end
  put(0, "}")
  return table.concat(out, "\n") .. "\n"
end

-- From pale to orange as a share of the longest time grows.
local function heat(share)
  local function mixed(pale, hot) return math.floor(pale + (hot - pale) * share + 0.5) end
  return ("#%02x%02x%02x"):format(mixed(0xee, 0xf4), mixed(0xf2, 0xa2), mixed(0xf8, 0x5c))
end

-- How taps are called that are of values a step makes.
local function tap_words(plan, taps)
  local watched, returned
  for _, token in ipairs(taps) do
    if plan.watches[token] then watched = true else returned = true end
  end
  return watched, returned
end

local function plan_dot(job)
  local plan, steps, longest = job.plan, job.plan.handle:steps(), 0
  for _, step in ipairs(steps) do longest = math.max(longest, milliseconds(step) or 0) end
  local out, put = begin(job.name)
  local places, count = {}, 0

  -- The box of a feed or variable, made where it is first used; nil for those of the library itself.
  local function box(kind, name)
    local key = kind .. name
    if not places[key] and not name:find("^System%-") then
      count = count + 1
      places[key] = "b" .. count
      put(1, ("b%d [label=%s, style=%s, fillcolor=%s];"):format(count, label(name, kind),
        quoted(kind == "variable" and "rounded,filled,dashed" or "rounded,filled"),
        quoted(COLOURS[kind == "variable" and "variable" or "feed"])))
    end
    return places[key]
  end
  local function edge(from, to, form)
    if from and to then put(1, from .. " -> " .. to .. (form or "") .. ";") end
  end

  for i, step in ipairs(steps) do
    local op, name = step.label:match("^(%S+) '(.*)'$")
    local ms, place = milliseconds(step), "s" .. i
    local watched, returned = tap_words(plan, step.taps)
    put(1, ("%s [label=%s, tooltip=%s, style=\"rounded,filled\", fillcolor=%s%s%s];"):format(place,
      label(name or step.label, op ~= name and op, step.output, ms and ("%.3f ms"):format(ms), watched and "watched"),
      quoted(step.site ~= "" and step.site or step.label),
      quoted(watched and WATCHED or ms and heat(ms / longest) or COLOURS.op), returned and ", peripheries=2" or "",
      watched and ', color="#0072b2"' or ""))
    for _, feed in ipairs(step.feeds) do edge(box("input", feed), place) end
    for _, variable in ipairs(step.variables) do edge(box("variable", variable), place) end
    for _, maker in ipairs(step.reads) do edge("s" .. maker, place) end
    for _, written in ipairs(step.written) do edge(place, box("variable", written), WRITES) end
  end
  put(0, "}")
  return table.concat(out, "\n") .. "\n"
end

--- The graph of a job in the DOT language.
--- @param job Job
--- @param options table  path, backward, plan: as job:dot has them
function drawing.dot(job, options)
  local text = options.plan and plan_dot(job) or traced_dot(job, options)
  if options.path then errors.blaming("job:dot", core.text_write, options.path, text) end
  return text
end

return drawing
