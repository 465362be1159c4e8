--- A source of random choices, the same everywhere (the minimal standard generator).
return function(seed, place)
  local state = (seed * 7919 + place * 104729 + 12345) % 2147483646 + 1
  local g = {}
  function g.below(n)
    state = state * 48271 % 2147483647
    return math.floor(state / 2147483647 * n)
  end
  function g.one_of(list) return list[1 + g.below(#list)] end
  function g.chance(n) return g.below(n) == 0 end
  for _ = 1, 4 do g.below(2) end  -- near seeds begin alike
  return g
end
