--- The tables of a job: its layers, `job:summary()`, and the steps of its plan, `job:summary { plan = true }`.

local core = require "moonflow.core"
local session = require "moonflow.session"

local summary = {}

--- A number with marks between thousands: 1,663,370.
function summary.marked(number)
  local text = ("%d"):format(number)
  repeat
    local count
    text, count = text:gsub("^(%d+)(%d%d%d)", "%1,%2")
  until count == 0
  return text
end
local marked = summary.marked

--- Rows of cells as lines, the first being the headings. Columns whose heading is in `right` are aligned to the right.
function summary.text_of(rows, right)
  local widths = {}
  for _, row in ipairs(rows) do
    for i, cell in ipairs(row) do widths[i] = math.max(widths[i] or 0, #cell) end
  end
  local lines = {}
  for k, row in ipairs(rows) do
    local cells = {}
    for i, cell in ipairs(row) do
      local space = (" "):rep(widths[i] - #cell)
      cells[i] = right[rows[1][i]] and space .. cell or cell .. space
    end
    lines[k] = ("  " .. table.concat(cells, "  ")):gsub("%s+$", "")
  end
  return table.concat(lines, "\n")
end

local table_text = summary.text_of

--- The type of what users see of a node: of an op's output "out" where it has one.
function summary.output_text(graph, node)
  local shown = node.outputs[1]
  for _, id in ipairs(node.outputs) do
    if graph:blob_name(id):match("/out_0$") then shown = id end
  end
  if not shown then return "" end
  local dtype, shape = graph:type(shown)
  return dtype .. " " .. tostring(shape)
end
local output_text = summary.output_text

--- The first `count` ops of a graph (those of the body), each as { id, name, op, output, parameters, site }: the number
--- of its node, the type of its output as text, how many parameters it reads that none before it has read. Also how
--- many parameters there are, and how many of them are not trained; `frozen` is the set of the names of those.
function summary.layers(graph, count, frozen)
  local layers, readers, total, kept = {}, {}, 0, 0
  local nodes = graph:nodes()
  for _, node in ipairs(nodes) do
    if node.kind == "variable" and not node.name:match("^System%-") then readers[node.outputs[1]] = node.name end
  end
  for id, node in ipairs(nodes) do
    if node.kind == "op" then
      if #layers == count then break end
      local parameters = 0
      for _, input in ipairs(node.inputs) do
        if input and readers[input] then
          local _, shape = graph:type(input)
          parameters = parameters + shape:count()
          if frozen[readers[input]] then kept = kept + shape:count() end
          readers[input] = nil  -- counted where it is read first
        end
      end
      total = total + parameters
      layers[#layers + 1] = { id = id, name = node.name, op = node.op, output = output_text(graph, node),
                              parameters = parameters, site = node.site }
    end
  end
  return layers, total, kept
end

--- The same as a table of text.
function summary.text(graph, count, frozen)
  local rows = { { "name", "op", "output", "parameters", "made at" } }
  local layers, total, kept = summary.layers(graph, count, frozen)
  for i, layer in ipairs(layers) do
    local read = layer.parameters > 0 and marked(layer.parameters) or ""
    rows[i + 1] = { layer.name, layer.op, layer.output, read, layer.site or "" }
  end
  return table_text(rows, { parameters = true }) .. "\n  parameters: " .. marked(total)
    .. (kept > 0 and ", of them " .. marked(kept) .. " frozen" or "")
end

-- ---- the plan -----------------------------------------------------------------------------------------------------

local peaks = {}  -- of the CPU with so many threads, in flops per second; measured once

local function peak_flops(threads)
  peaks[threads] = peaks[threads] or core.measure_peak_flops(threads)
  return peaks[threads]
end

local function ms_text(seconds)
  return (seconds < 1e-4 and "%.5f" or "%.3f"):format(seconds * 1e3)
end

--- The steps of a plan in order, with their branches where there are several: those of one follow each other, and those
--- of different ones go side by side where neither needs the other. Times come from the runs that a profile has seen.
--- `threads`: those of its kernels; default: the session's.
function summary.plan_text(handle, threads)
  local info, steps = handle:info(), handle:steps()
  threads = threads or session.settings.threads or 0
  local right = { branch = true, ms = true, ["GFLOP/s"] = true, ["GB/s"] = true, peak = true }
  local rows = { { "step", "output", "ms", "GFLOP/s", "GB/s", "peak", "made at" } }
  local total, on_cpu = 0, info.device:find("^cpu")
  if info.branches > 1 then table.insert(rows[1], 3, "branch") end
  for _, step in ipairs(steps) do
    local ms, gflops, gbytes, share = "", "", "", ""
    if step.launches > 0 then
      local seconds = step.ns / step.launches / 1e9
      total = total + seconds
      ms = ms_text(seconds)
      gbytes = ("%.1f"):format(step.bytes / seconds / 1e9)
      if step.flops > 0 then
        gflops = ("%.1f"):format(step.flops / seconds / 1e9)
        if on_cpu then share = ("%.0f%%"):format(100 * step.flops / seconds / peak_flops(threads)) end
      end
    end
    rows[#rows + 1] = { step.label, step.output, ms, gflops, gbytes, share, step.site }
    if info.branches > 1 then table.insert(rows[#rows], 3, tostring(step.branch)) end
  end
  local kept = info.kept_steps > 0 and "the first " .. info.kept_steps .. " kept until a variable changes, " or ""
  local merged = info.merged_ops > 0 and info.merged_ops .. " ops computed with equal ones, " or ""
  local text = table_text(rows, right) .. "\n  " .. #steps .. " steps, " .. merged .. kept .. "the last "
    .. #steps - info.first_write .. " write variables; values take " .. marked(info.arena_bytes) .. " bytes, at least "
    .. marked(info.arena_lower_bound) .. (on_cpu and "" or "; on " .. info.device)
    .. (info.form_bytes > 0 and "; variables in other layouts " .. marked(info.form_bytes) .. " bytes" or "")
  if total > 0 then return text .. ("; %s ms in steps"):format(ms_text(total)) end
  return text .. "\n  no times yet: flow.profiler.start(), run it, flow.profiler.stop()"
end

return summary
