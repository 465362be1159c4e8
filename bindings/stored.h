// How files hold the elements of arrays: as an array does, or in a form that there is no dtype for. Such is read as a
// wider one that holds it: int16 and uint16 as int32, uint32 as int64, uint64 as int64 where it fits, bool as int8.
#pragma once

#include <optional>
#include <string_view>

#include "bindings/file.h"
#include "engine/tensor.h"

namespace moonflow {

struct Stored {
  std::string_view npy, safetensors;  // what the formats call it; empty where one has none such
  DType dtype;                        // of the array
  int size;                           // bytes of an element in the file
  void (*widen)(const Tensor& array, bool swapped) = nullptr;  // where these are fewer than the array's
};

// None where there is no dtype that holds it.
const Stored* stored_in_npy(std::string_view name);
const Stored* stored_in_safetensors(std::string_view name);
// As an array of this dtype does.
const Stored& stored_as(DType dtype);

// Reads all elements of an array of the dtype of `stored`. Gives the place of a uint64 that is beyond int64, if one is.
std::optional<int64_t> read_stored(ByteSource& source, const Stored& stored, bool swapped, const Tensor& array);

// Reverses the bytes of each element in place.
void swap_bytes(const Tensor& array);

}  // namespace moonflow
