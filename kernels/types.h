// What all families say about types: the checks of their inference, in one wording, and the types of their examples.
#pragma once

#include "engine/op.h"

namespace moonflow {

inline TensorType f32(const Shape& shape) { return {DType::Float32, shape}; }
inline TensorType bf16(const Shape& shape) { return {DType::BFloat16, shape}; }
inline TensorType i32(const Shape& shape) { return {DType::Int32, shape}; }

inline void require_floating(const OpCall& call, int i, const char* what) {
  require(is_floating(call.dtype(i)), ErrorCode::DtypeMismatch, what, " must be float32 or float64, got ",
          call.dtype(i));
}

inline void require_type(const OpCall& call, int i, const char* what, const TensorType& wanted) {
  require(call.type(i) == wanted, ErrorCode::ShapeMismatch, what, " is ", call.type(i), ", it should be ", wanted);
}

}  // namespace moonflow
