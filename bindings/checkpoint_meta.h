// What the original system notes of a variable beside its bytes, from its version 0.2 on: the file `meta`, a message in
// protobuf's text format, such as  shape { dim: 2 dim: 3 } data_type: kFloat
#pragma once

#include <string>
#include <string_view>

#include "engine/tensor.h"

namespace moonflow {

constexpr const char* kMeta = "meta";

// Throws, with `where` in front, for what is no such message, or a data type that there is none of here.
TensorType type_in_meta(std::string_view text, const std::string& where);

}  // namespace moonflow
