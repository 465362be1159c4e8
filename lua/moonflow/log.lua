--- flow.log: what a run of training says about itself, in a file that grows while it runs; and flow.report, which
-- makes a page of such files. The rest of both is read when it is first needed, for many programs do without.

local arguments = require "moonflow.arguments"
local os, require = os, require

local log = {}

local open_signature = arguments.signature("flow.log.open",
  { { "path", "string" }, { "overwrite", "boolean", false }, { "append", "boolean", false },
    { "config", "dictionary?" } })

--- Opens the log of a run: `local log = flow.log.open("runs/lenet")`, and in the loop
--- `log:write { step = i, loss = loss:mean() }`. The folder gets `metrics.jsonl`, one JSON object on each line: first
--- the run (its command, seed, device, threads, version and time), then what is written, line by line and at once, so
--- that `tail -f` shows it and a killed run leaves whole lines. `flow.report` makes a page of it. It has
---   :write { step = i, loss = x }         numbers, or arrays of one element
---   :histogram(name, array, step)         how the values of an array are distributed
---   :histogram_of(name)                   a handler for watches that does that
---   :images(name, array, step)            pictures, as a PNG file beside it
---   :job(train_job)                       the layers and the graph of a job
---   :close()
--- @param path string         the folder, which is made
--- @param overwrite? boolean  true: in place of the log that is there
--- @param append? boolean     true: go on in the log that is there, if there is one, as training does from a checkpoint
--- @param config? table       what else is to be remembered of the run: { batch_size = 100, optimizer = "Adam" }
--- @return Log
--- @error a log is there and neither is said; the folder cannot be written
function log.open(...)
  local given = open_signature:parse(...)
  return require("moonflow.log_file").open(given, os.date("!%Y-%m-%dT%H:%M:%SZ"), os.remove)
end

local report_signature = arguments.signature("flow.report", { { "runs", "any" }, { "path", "string?" } })

--- Makes a page of the logs of one or several runs, which a browser shows without a network: curves of all that was
--- written, those of several runs over one another, histograms, pictures, and the layers and graphs of jobs.
--- @param runs string|table  the folder of a log, or a list of such
--- @param path? string       the file to write; default: report.html in the first folder
--- @return string            the file that was written
--- @error a folder without a log; a log that cannot be read
function log.report(...)
  local given = report_signature:parse(...)
  return require("moonflow.report").write(given.runs, given.path)
end

return log
