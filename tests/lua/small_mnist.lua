-- A data set in the form of MNIST that is small enough for a test: 500 and 200 pictures, each with a bright bar whose
-- place is its label, so that a network can learn it in a few steps.
local process = require "process"

local function big_endian(n)
  return string.char(math.floor(n / 2 ^ 24) % 256, math.floor(n / 2 ^ 16) % 256, math.floor(n / 2 ^ 8) % 256, n % 256)
end

local function write_set(folder, prefix, count)
  local dark, bright = string.rep("\0", 28), string.rep("\230", 28)
  local images = { "\0\0\8\3", big_endian(count), big_endian(28), big_endian(28) }
  local labels = { "\0\0\8\1", big_endian(count) }
  for i = 0, count - 1 do
    local label = (i * 7) % 10
    for row = 0, 27 do
      images[#images + 1] = math.floor(row / 2) == label + 2 and bright or dark
    end
    labels[#labels + 1] = string.char(label)
  end
  process.write(folder .. "/" .. prefix .. "-images-idx3-ubyte", table.concat(images))
  process.write(folder .. "/" .. prefix .. "-labels-idx1-ubyte", table.concat(labels))
end

--- Makes the set anew below the working directory.
--- @return string  what MOONFLOW_DATA has to be
return function()
  local root = process.folder("small_mnist")
  process.folder("small_mnist/mnist")
  write_set(root .. "/mnist", "train", 500)
  write_set(root .. "/mnist", "t10k", 200)
  return root
end
