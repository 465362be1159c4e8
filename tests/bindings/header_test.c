/* The header in the oldest C that hosts are written in, with the warnings that they may have on: it compiles. */
#include "moonflow.h"

mf_array array_of_a_host(const float* floats, const int32_t* numbers);

mf_array array_of_a_host(const float* floats, const int32_t* numbers) {
  return floats ? mf_floats(floats, 3) : mf_int32s(numbers, 3);
}
