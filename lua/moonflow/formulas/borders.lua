--- How an axis goes on beyond its ends, for flow.np.pad, flow.pad and ONNX's Pad.

local np = require "moonflow.np.functions"

--- By mode, a function of places, an integer array that may go beyond both ends, and of the size of the axis, 1 or
--- more. It gives the places within the axis whose elements stand there.
---   "edge": that at the end of the axis
---   "reflect": the axis running backwards, without its last element again, as in a mirror that stands on it
---   "symmetric": the axis running backwards, with its last element again
---   "wrap": the axis from its other end on
return {
  edge = function(places, size) return np.clip(places, 0, size - 1) end,
  wrap = function(places, size) return places % size end,
  symmetric = function(places, size)
    places = places % (2 * size)
    return np.minimum(places, 2 * size - 1 - places)
  end,
  reflect = function(places, size)
    if size == 1 then return places * 0 end
    places = places % (2 * size - 2)
    return np.minimum(places, 2 * size - 2 - places)
  end,
}
