--- The layer table of a job: `job:summary()`.

local summary = {}

-- A number with marks between thousands: 1,663,370.
local function marked(number)
  local text = ("%d"):format(number)
  repeat
    local count
    text, count = text:gsub("^(%d+)(%d%d%d)", "%1,%2")
  until count == 0
  return text
end

local function table_text(rows)
  local widths = {}
  for _, row in ipairs(rows) do
    for i, cell in ipairs(row) do widths[i] = math.max(widths[i] or 0, #cell) end
  end
  local lines = {}
  for k, row in ipairs(rows) do
    local cells = {}
    for i, cell in ipairs(row) do
      local space = (" "):rep(widths[i] - #cell)
      cells[i] = i == 4 and space .. cell or cell .. space
    end
    lines[k] = ("  " .. table.concat(cells, "  ")):gsub("%s+$", "")
  end
  return table.concat(lines, "\n")
end

-- The type of what users see of an op: its output "out" where it has one.
local function output_text(graph, node)
  local shown = node.outputs[1]
  for _, id in ipairs(node.outputs) do
    if graph:blob_name(id):match("/out_0$") then shown = id end
  end
  if not shown then return "" end
  local dtype, shape = graph:type(shown)
  return dtype .. " " .. tostring(shape)
end

--- The first `count` ops of a graph (those of the body) with their outputs, the parameters each one reads, and the
--- lines they were made at.
function summary.text(graph, count)
  local rows, readers, total, ops = { { "name", "op", "output", "parameters", "made at" } }, {}, 0, 0
  local nodes = graph:nodes()
  for _, node in ipairs(nodes) do
    if node.kind == "variable" and not node.name:match("^System%-") then readers[node.outputs[1]] = node.name end
  end
  for _, node in ipairs(nodes) do
    if node.kind == "op" then
      ops = ops + 1
      if ops > count then break end
      local parameters = 0
      for _, input in ipairs(node.inputs) do
        if input and readers[input] then
          local _, shape = graph:type(input)
          parameters = parameters + shape:count()
          readers[input] = nil  -- counted where it is read first
        end
      end
      total = total + parameters
      local read = parameters > 0 and marked(parameters) or ""
      rows[#rows + 1] = { node.name, node.op, output_text(graph, node), read, node.site or "" }
    end
  end
  return table_text(rows) .. "\n  parameters: " .. marked(total)
end

return summary
