#include "bindings/stored.h"

#include <algorithm>
#include <cstring>

namespace moonflow {

namespace {

// Elements of `Narrow` lie at the end of the array, and each is read before the place of its wide form, which begins
// further ahead, is written.
template <class Narrow, class Wide>
void widen(const Tensor& array, bool swapped) {
  const char* from = array.data<char>() + array.count() * static_cast<int64_t>(sizeof(Wide) - sizeof(Narrow));
  Wide* const to = array.data<Wide>();
  for (int64_t i = 0; i < array.count(); ++i, from += sizeof(Narrow)) {
    char bytes[sizeof(Narrow)];
    std::memcpy(bytes, from, sizeof bytes);
    if (swapped) std::reverse(bytes, bytes + sizeof bytes);
    Narrow value;
    std::memcpy(&value, bytes, sizeof value);
    to[i] = value;
  }
}

constexpr std::string_view kBool = "BOOL", kUInt64 = "U64";
constexpr Stored kAll[] = {{"f4", "F32", DType::Float32, 4},
                           {"f8", "F64", DType::Float64, 8},
                           {"f2", "F16", DType::Float16, 2},
                           {"", "BF16", DType::BFloat16, 2},
                           {"i1", "I8", DType::Int8, 1},
                           {"u1", "U8", DType::UInt8, 1},
                           {"i2", "I16", DType::Int32, 2, widen<int16_t, int32_t>},
                           {"u2", "U16", DType::Int32, 2, widen<uint16_t, int32_t>},
                           {"i4", "I32", DType::Int32, 4},
                           {"u4", "U32", DType::Int64, 4, widen<uint32_t, int64_t>},
                           {"i8", "I64", DType::Int64, 8},
                           {"u8", kUInt64, DType::Int64, 8},
                           {"b1", kBool, DType::Int8, 1}};

const Stored* named(std::string_view name, std::string_view Stored::*format) {
  const auto found = std::find_if(std::begin(kAll), std::end(kAll),
                                  [&](const Stored& stored) { return !name.empty() && stored.*format == name; });
  return found != std::end(kAll) ? found : nullptr;
}

}  // namespace

const Stored* stored_in_npy(std::string_view name) { return named(name, &Stored::npy); }
const Stored* stored_in_safetensors(std::string_view name) { return named(name, &Stored::safetensors); }

// Of a dtype the first one that is not widened.
const Stored& stored_as(DType dtype) {
  return *std::find_if(std::begin(kAll), std::end(kAll),
                       [&](const Stored& stored) { return stored.dtype == dtype && stored.widen == nullptr; });
}

void swap_bytes(const Tensor& array) {
  const int64_t size = size_of(array.dtype());
  auto* bytes = array.data<unsigned char>();
  for (int64_t i = 0; i < array.count(); ++i) std::reverse(bytes + i * size, bytes + (i + 1) * size);
}

std::optional<int64_t> read_stored(ByteSource& source, const Stored& stored, bool swapped, const Tensor& array) {
  const int64_t bytes = array.count() * stored.size;
  source.read(array.data<char>() + (array.bytes() - bytes), bytes);
  if (stored.widen != nullptr)
    stored.widen(array, swapped);
  else if (swapped)
    swap_bytes(array);
  if (stored.safetensors == kBool) {
    auto* flags = array.data<int8_t>();
    std::transform(flags, flags + array.count(), flags, [](int8_t flag) { return static_cast<int8_t>(flag != 0); });
  }
  if (stored.safetensors == kUInt64) {
    const auto* numbers = array.data<int64_t>();
    const auto* beyond = std::find_if(numbers, numbers + array.count(), [](int64_t number) { return number < 0; });
    if (beyond != numbers + array.count()) return beyond - numbers;
  }
  return std::nullopt;
}

}  // namespace moonflow
