#include "kernels/cuda/chain_source.h"

#include <cstring>
#include <map>
#include <string_view>

#include "kernels/chain_program.h"
#include "kernels/cuda/functor_text.h"
#include "kernels/elementwise_rows.h"

namespace moonflow::cuda {
namespace {

// The name of a type, as whoever compiles the source must write it: compilers tell it between these marks.
template <class F>
std::string type_name() {
  const std::string_view said = __PRETTY_FUNCTION__;
  const size_t begin = said.find("F = ") + 4;
  return std::string(said.substr(begin, said.find_first_of(";]", begin) - begin));
}

// What values of the dtype are stored as, by the name that the source has for it; T is what it computes in.
const char* stored_name(DType dtype) {
  return dtype == DType::BFloat16 ? "moonflow::BFloat16" : dtype == DType::Float16 ? "moonflow::Float16" : "T";
}

struct Link {
  std::string functor;
  int operands;
  std::vector<std::string> attrs;
};

// By the name of the op: those whose results are numbers of the dtype of their operands.
std::map<std::string, Link, std::less<>> make_links() {
  std::map<std::string, Link, std::less<>> links;
  elementwise::for_each_unary([&](auto computes, const elementwise::UnaryRow& row) {
    using Row = decltype(computes);
    std::vector<std::string> attrs;
    for (const AttrDef& attr : row.attrs) attrs.push_back(attr.name);
    if constexpr (!std::is_same_v<std::invoke_result_t<typename Row::Functor, float>, bool>)
      links[row.name] = {type_name<typename Row::Functor>(), 1, attrs};
    if constexpr (!std::is_same_v<typename Row::Gradient, functor::None>)
      links[text(row.name, "_grad")] = {type_name<typename Row::Gradient>(), 2, attrs};
  });
  elementwise::for_each_binary([&](auto computes, const elementwise::BinaryRow& row) {
    using Functor = typename decltype(computes)::Functor;
    if constexpr (!std::is_same_v<std::invoke_result_t<Functor, float, float>, bool>)
      links[row.name] = {type_name<Functor>(), 2, {}};
  });
  return links;
}

// To the bit, also where it is infinite.
std::string literal(double number) {
  uint64_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  return text("__builtin_bit_cast(double, ", bits, "ull)");
}

// The functor as an expression, with its numbers.
std::string functor_of(const elementwise::ChainOp<Link>& op) {
  if (op.link.attrs.empty()) return op.link.functor + "{}";
  std::string given;
  for (const std::string& attr : op.link.attrs)
    given += text(given.empty() ? "" : ", ", "{\"", attr, "\", ", literal(op.attrs.number(attr)), "}");
  return op.link.functor + "(moonflow::Attrs{" + given + "})";
}

}  // namespace

std::string chain_source(const Attrs& attrs, const std::vector<TensorType>& leaves, const TensorType& out) {
  const auto links = make_links();
  std::string steps;
  int64_t made = 0;  // results so far
  for (const auto& op : elementwise::ops_of_chain(links, attrs, leaves.size())) {
    std::string arguments;
    for (const int from : op.operands)
      arguments += text(arguments.empty() ? "" : ", ", from >= 0 ? "x" : "y", from >= 0 ? from : -1 - from);
    steps += text("  const T y", made, " = ", functor_of(op), "(", arguments, ");\n");
    ++made;
  }

  // Leaves of the result's type are read as it is written, single elements once, rows again and again. What is narrow
  // is computed in float.
  std::string parameters, values, singles, packs, whole, one_by_one;
  for (size_t i = 0; i < leaves.size(); ++i) {
    parameters += text(", const S* leaf", i);
    values += text(i > 0 ? ", " : "", "T x", i);
    std::string in_pack, alone;
    if (leaves[i] == out) {
      packs += text("    const Pack p", i, " = *reinterpret_cast<const Pack*>(leaf", i, " + first);\n");
      in_pack = text("T(p", i, ".values[i])");
      alone = text("T(leaf", i, "[at])");
    } else if (leaves[i].count() == 1) {
      singles += text("  const T s", i, " = T(*leaf", i, ");\n");
      in_pack = alone = text("s", i);
    } else {
      in_pack = text("T(leaf", i, "[(first + i) % ", leaves[i].count(), "])");
      alone = text("T(leaf", i, "[at % ", leaves[i].count(), "])");
    }
    whole += (i > 0 ? ", " : "") + in_pack;
    one_by_one += (i > 0 ? ", " : "") + alone;
  }
  return text("#include \"kernels/elementwise.h\"\n\n", "using T = ", out.dtype == DType::Float64 ? "double" : "float",
              ";\nusing S = ", stored_name(out.dtype), ";\nconstexpr int kN = ", elements_of_thread(out.dtype),
              ";\nstruct alignas(16) Pack { S values[kN]; };\n\n", "MOONFLOW_BOTH inline T element(", values, ") {\n",
              steps, "  return y", made - 1, ";\n}\n\n", "extern \"C\" __global__ void __launch_bounds__(",
              kChainThreads, ") chain(long long count", parameters,
              ", S* out) {\n  const long long first = (static_cast<long long>(blockIdx.x) * ", kChainThreads,
              " + threadIdx.x) * kN;\n  if (first >= count) return;\n", singles, "  if (count - first >= kN) {\n",
              packs, "    Pack result;\n", "    for (int i = 0; i < kN; ++i) result.values[i] = S(element(", whole,
              "));\n", "    *reinterpret_cast<Pack*>(out + first) = result;\n    return;\n  }\n",
              "  for (long long at = first; at < count; ++at) out[at] = S(element(", one_by_one, "));\n}\n");
}

std::vector<ChainLink> chain_links() {
  std::vector<ChainLink> result;
  for (const auto& [op, link] : make_links())
    result.push_back({op, link.operands, static_cast<int>(link.attrs.size())});
  return result;
}

std::vector<std::pair<std::string, std::string>> chain_headers() {
  // What the two headers of ours use of the standard library and of the engine, for a compiler that has neither.
  const char* const op = R"(#pragma once
#include "engine/narrow.h"
namespace moonflow {
struct Attrs {
  struct Number { const char* name; double value; };
  constexpr Attrs(Number a, Number b = {nullptr, 0}) : numbers{a, b} {}
  constexpr double number(const char* name) const {
    for (const Number& each : numbers) {
      if (each.name == nullptr) continue;
      const char *x = name, *y = each.name;
      while (*x != 0 && *x == *y) ++x, ++y;
      if (*x == *y) return each.value;
    }
    return 0;
  }
  Number numbers[2];
};
}
)";
  const char* const types = R"(#pragma once
namespace std {
template <class T, T v> struct integral_constant { static constexpr T value = v; };
using true_type = integral_constant<bool, true>;
using false_type = integral_constant<bool, false>;
template <class, class> struct is_same : false_type {};
template <class T> struct is_same<T, T> : true_type {};
template <class A, class B> constexpr bool is_same_v = is_same<A, B>::value;
template <class T> constexpr bool is_floating_point_v = is_same_v<T, float> || is_same_v<T, double>;
// The numbers of a chain are floating, whatever else the functors are for.
template <class T> constexpr bool is_integral_v = false;
template <class T> constexpr bool is_unsigned_v = false;
template <class T> constexpr bool is_signed_v = true;
template <bool, class A, class> struct conditional { using type = A; };
template <class A, class B> struct conditional<false, A, B> { using type = B; };
template <bool c, class A, class B> using conditional_t = typename conditional<c, A, B>::type;
template <class T> struct decay { using type = T; };
template <class T> struct make_unsigned { using type = T; };
template <> struct make_unsigned<int> { using type = unsigned; };
template <> struct make_unsigned<long> { using type = unsigned long; };
template <> struct make_unsigned<long long> { using type = unsigned long long; };
}
)";
  const char* const limits = R"(#pragma once
namespace std {
template <class T> struct numeric_limits;
template <> struct numeric_limits<float> {
  static constexpr int digits = 24, min_exponent = -125, max_exponent = 128;
  static constexpr float epsilon() { return 0x1p-23f; }
  static constexpr float infinity() { return __builtin_bit_cast(float, 0x7f800000); }
  static constexpr float quiet_NaN() { return __builtin_bit_cast(float, 0x7fc00000); }
  static constexpr float min() { return 0x1p-126f; }
  static constexpr float max() { return 0x1.fffffep127f; }
  static constexpr float lowest() { return -max(); }
};
template <> struct numeric_limits<double> {
  static constexpr int digits = 53, min_exponent = -1021, max_exponent = 1024;
  static constexpr double epsilon() { return 0x1p-52; }
  static constexpr double infinity() { return __builtin_bit_cast(double, 0x7ff0000000000000ll); }
  static constexpr double quiet_NaN() { return __builtin_bit_cast(double, 0x7ff8000000000000ll); }
  static constexpr double min() { return 0x1p-1022; }
  static constexpr double max() { return 0x1.fffffffffffffp1023; }
  static constexpr double lowest() { return -max(); }
};
}
)";
  std::string math = "#pragma once\nnamespace std {\n";
  for (const char* name :
       {"sqrt", "exp",  "expm1", "log",   "log1p", "sin", "cos",  "tan",  "asin",  "acos", "atan", "sinh",
        "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "ceil", "floor", "trunc", "rint", "fabs"}) {
    math += text("__device__ inline float ", name, "(float x) { return ::", name, "f(x); }\n__device__ inline double ",
                 name, "(double x) { return ::", name, "(x); }\n");
  }
  for (const char* name : {"fmod", "pow", "atan2", "copysign"}) {
    math +=
        text("__device__ inline float ", name, "(float x, float y) { return ::", name,
             "f(x, y); }\n__device__ inline double ", name, "(double x, double y) { return ::", name, "(x, y); }\n");
  }
  math +=
      "__device__ inline float abs(float x) { return ::fabsf(x); }\n"
      "__device__ inline double abs(double x) { return ::fabs(x); }\n}\n";
  return {
      {"kernels/elementwise.h", kElementwiseText},
      {"kernels/elementary.h", kElementaryText},
      {"kernels/elementary_parts.h", kElementaryPartsText},
      {"engine/narrow.h", kNarrowText},
      {"engine/op.h", op},
      {"cmath", math},
      {"cstdint",
       "#pragma once\nusing int8_t = signed char;\nusing uint8_t = unsigned char;\nusing uint16_t = unsigned short;\n"
       "using int32_t = int;\n"
       "using uint32_t = unsigned;\nusing int64_t = long long;\nusing uint64_t = unsigned long long;\n"},
      {"limits", limits},
      {"type_traits", types}};
}

}  // namespace moonflow::cuda
