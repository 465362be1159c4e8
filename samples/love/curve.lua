--- Curve: the course of a number, in a bounded number of points. When it is full, neighbours are joined to their mean,
-- and from then on twice as many values make a point.
local kMaxPoints = 240

local Curve = {}
Curve.__index = Curve

function Curve:add(value)
  self.sum, self.count = self.sum + value, self.count + 1
  if self.count < self.per_point then return end
  self.points[#self.points + 1] = self.sum / self.count
  self.sum, self.count = 0, 0
  if #self.points < kMaxPoints then return end
  local joined = {}
  for i = 1, #self.points, 2 do joined[#joined + 1] = (self.points[i] + self.points[i + 1]) / 2 end
  self.points, self.per_point = joined, 2 * self.per_point
end

return {
  new = function() return setmetatable({ points = {}, sum = 0, count = 0, per_point = 1 }, Curve) end,
}
