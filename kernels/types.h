// What all families say about types: the checks of their inference, in one wording, and the types of their examples.
#pragma once

#include "engine/op.h"

namespace moonflow {

inline TensorType f32(const Shape& shape) { return {DType::Float32, shape}; }
inline TensorType bf16(const Shape& shape) { return {DType::BFloat16, shape}; }
inline TensorType f16(const Shape& shape) { return {DType::Float16, shape}; }
inline TensorType i32(const Shape& shape) { return {DType::Int32, shape}; }

inline void require_floating(const OpCall& call, int i, const char* what) {
  require(is_floating(call.dtype(i)), ErrorCode::DtypeMismatch, what, " must be float32 or float64, got ",
          call.dtype(i));
}

inline void require_type(const OpCall& call, int i, const char* what, const TensorType& wanted) {
  require(call.type(i) == wanted, ErrorCode::ShapeMismatch, what, " is ", call.type(i), ", it should be ", wanted);
}

inline void require_same(const OpCall& call, int a, const char* a_name, int b, const char* b_name) {
  require(call.dtype(a) == call.dtype(b), ErrorCode::DtypeMismatch, a_name, " is ", call.type(a), ", ", b_name, " is ",
          call.type(b), "; cast one of them");
  require(call.shape(a) == call.shape(b), ErrorCode::ShapeMismatch, a_name, " is ", call.shape(a), ", ", b_name, " is ",
          call.shape(b), "; they must be alike");
}

// All attributes but one, as of a gradient's op for the op itself.
inline Attrs without(const Attrs& attrs, std::string_view name) {
  Attrs rest;
  for (const auto& [key, value] : attrs) {
    if (key != name) rest.set(key, value);
  }
  return rest;
}

// All of them and one more, or another value for it.
inline Attrs with(Attrs attrs, const std::string& name, AttrValue value) {
  attrs.set(name, std::move(value));
  return attrs;
}

// ---- mixed precision (engine/mixed_precision.h) ---------------------------------------------------------------

// The attribute by which an op that is given what is narrow is told the dtype of its result.
inline AttrDef mixed_result_attr() {
  return {"mixed", std::string(),
          "of automatic mixed precision: \"float32\", or the dtype of the inputs, which are then bfloat16 or float16, "
          "and summed in float32"};
}

// The dtype that "mixed" names, where `narrow` is the other choice.
inline DType mixed_dtype(const std::string& mixed, DType narrow) {
  require(mixed == name(DType::Float32) || mixed == name(narrow), ErrorCode::InvalidArgument, "mixed is \"", mixed,
          "\", wanted \"float32\" or \"", narrow, "\"");
  return mixed == name(narrow) ? narrow : DType::Float32;
}

// The dtype of the result of an op with that attribute.
inline DType mixed_result(const OpCall& call) {
  const DType dtype = call.dtype(0);
  const std::string& mixed = call.attrs.string("mixed");
  if (mixed.empty()) return dtype;
  require(is_narrow(dtype), ErrorCode::DtypeMismatch, "mixed precision needs bfloat16 or float16, got ", dtype);
  return mixed_dtype(mixed, dtype);
}

// For NarrowUse::pays of an op whose CPU kernels know no narrow dtype: converting what they read and give costs more
// than the half of the bytes saves.
inline bool never_on_cpu(const OpCall&, DType) { return false; }

// How such an op goes along with what is narrow, where kernels were made for that. These inputs stay float32.
inline NarrowUse follows_off_cpu(std::vector<int> keeps_float32 = {}) {
  NarrowUse use;
  use.role = NarrowUse::Follows;
  use.keeps_float32 = std::move(keeps_float32);
  use.pays = never_on_cpu;
  return use;
}

}  // namespace moonflow
