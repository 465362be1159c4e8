// core.draw_uniform, core.draw_normal and core.draw_integer: the one number that an op of kernels/random.cpp gives for
// a shape of no axes, without the arrays and attributes that an op takes.
#include "bindings/lua_element.h"
#include "bindings/lua_module.h"
#include "engine/default_floats.h"
#include "kernels/random_draws.h"

namespace moonflow::lua {

namespace {

// The block of the draw at stack positions 1 and 2: the seed of a generator, and how many draws it has made before.
philox::Block block_at(lua_State* L) {
  static const uint64_t kKey = philox::hash_of("np.random");  // that of all draws of flow.np.random
  return philox::Sequence(element_at<int64_t>(L, 1), kKey, element_at<int64_t>(L, 2)).block(0);
}

template <class Draw>
double first_of(const philox::Block& block, const Draw& draw) {
  const DefaultFloats floats;
  decltype(draw.of({})) first, second;
  draw.both(block, first, second);
  return static_cast<double>(first);
}

// core.draw_uniform(seed, draws, low, high): float32
int draw_uniform(lua_State* L) {
  double drawn = 0;
  protect(L, [&] {
    const double low = number_at(L, 3, "low"), high = number_at(L, 4, "high");
    drawn = first_of(block_at(L), draws::Uniform<float>(low, high, DType::Float32));
  });
  lua_pushnumber(L, drawn);
  return 1;
}

// core.draw_normal(seed, draws, mean, stddev): float32
int draw_normal(lua_State* L) {
  double drawn = 0;
  protect(L, [&] {
    drawn = first_of(block_at(L), draws::Normal<float>{number_at(L, 3, "mean"), number_at(L, 4, "stddev")});
  });
  lua_pushnumber(L, drawn);
  return 1;
}

// core.draw_integer(seed, draws, low, high)
int draw_integer(lua_State* L) {
  double drawn = 0;
  protect(L, [&] {
    const int64_t low = integer_at(L, 3, "low"), high = integer_at(L, 4, "high");
    require(low < high, ErrorCode::InvalidArgument, "low must be below high, got ", low, " and ", high);
    drawn = first_of(block_at(L), draws::Integer<int64_t>{low, static_cast<uint64_t>(high - low)});
  });
  lua_pushnumber(L, drawn);
  return 1;
}

}  // namespace

void add_draws(lua_State* L, State& state) {
  static const luaL_Reg kFunctions[] = {
      {"draw_uniform", draw_uniform}, {"draw_normal", draw_normal}, {"draw_integer", draw_integer}, {nullptr, nullptr}};
  set_functions(L, state, kFunctions);
}

}  // namespace moonflow::lua
