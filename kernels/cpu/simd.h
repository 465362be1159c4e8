// One loop, compiled for the instruction sets that matter, chosen by the processor it runs on. The build itself asks
// for none of them, so a binary runs on any x86-64 (and on anything else without the wide versions). A loop compiled
// this way gives the same values for any thread count; between processors the last bit may differ, because the wide
// versions fuse multiply and add.
#pragma once

#include <cstdint>
#include <type_traits>

// Under a sanitizer MOONFLOW_SIMULATED_AVX512 is defined: there is one version of each loop then, which saves minutes,
// and it is the one for AVX-512, made by GCC of narrower registers. That has the most in it, and few machines at hand
// run it.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(MOONFLOW_SIMULATED_AVX512)
#define MOONFLOW_SIMD_VERSIONS 1
#endif

// GCC reads an operand from memory wherever it is used, unless it is told to read it into a register once.
#ifdef MOONFLOW_SIMD_VERSIONS
#define MOONFLOW_IN_REGISTER(vector) asm("" : "+v"(vector))
#else
#define MOONFLOW_IN_REGISTER(vector)
#endif

namespace moonflow::cpu {

// A register of floats, for kernels whose speed lies in what stays in registers, which no vectoriser finds by itself.
// GCC compiles arithmetic on it for whatever instructions the function around it may use.
template <int kFloats>
struct Register {
  using Element = float;
  using Floats = Register;
  static constexpr int kWidth = kFloats;
#ifdef __aarch64__
  static constexpr int kCount = 32;  // how many there are
#else
  static constexpr int kCount = kFloats == 16 ? 32 : 16;
#endif
  typedef float Vector __attribute__((vector_size(4 * kFloats), may_alias));
  typedef int Integers __attribute__((vector_size(4 * kFloats)));
  typedef float Stored __attribute__((vector_size(4 * kFloats), may_alias, aligned(4)));  // in memory, anywhere
  typedef int StoredIntegers __attribute__((vector_size(4 * kFloats), may_alias, aligned(4)));

  static const Stored& at(const float* place) { return *reinterpret_cast<const Stored*>(place); }
  static Stored& at(float* place) { return *reinterpret_cast<Stored*>(place); }
  // GCC 12 goes byte by byte where wider registers widen in one instruction, and narrow in four.
  static void widen(const uint8_t* bytes, Integers& to) {
#ifdef MOONFLOW_SIMD_VERSIONS
    if constexpr (kFloats > 4) {
      asm("vpmovzxbd %1, %0" : "=v"(to) : "m"(*reinterpret_cast<const Bytes*>(bytes)));
      return;
    }
#endif
    convert(*reinterpret_cast<const Bytes*>(bytes), to);
  }
  static void narrow(const Integers& from, uint8_t* bytes) {
#ifdef MOONFLOW_SIMD_VERSIONS
    if constexpr (kFloats == 8) {  // integers of a byte each, so nothing saturates
      Integers packed;
      asm("vextracti128 $1, %2, %x0\n\tvpackusdw %x0, %x2, %x0\n\tvpackuswb %x0, %x0, %x0\n\tvmovq %x0, %1"
          : "=&x"(packed), "=m"(*reinterpret_cast<Bytes*>(bytes))
          : "x"(from));
      return;
    }
#endif
    convert(from, *reinterpret_cast<Bytes*>(bytes));
  }

 private:
  typedef uint8_t Bytes __attribute__((vector_size(kFloats), may_alias, aligned(1)));
  template <class From, class To>
  static void convert(const From& from, To& to) {
    to = __builtin_convertvector(from, To);
  }
};

// The same register of doubles.
template <int kDoubles>
struct Doubles {
  using Element = double;
  using Floats = Register<2 * kDoubles>;
  static constexpr int kWidth = kDoubles, kCount = Floats::kCount;
  typedef double Vector __attribute__((vector_size(8 * kDoubles), may_alias));
  typedef double Stored __attribute__((vector_size(8 * kDoubles), may_alias, aligned(8)));
  static const Stored& at(const double* place) { return *reinterpret_cast<const Stored*>(place); }
  static Stored& at(double* place) { return *reinterpret_cast<Stored*>(place); }
};

// A Register as it holds numbers of type T, float or double.
template <class T, class R>
using Holding = std::conditional_t<std::is_same_v<T, double>, Doubles<R::kWidth / 2>, R>;

// The widest instructions to use: what the processor has, or less where the environment variable MOONFLOW_SIMD says
// "avx2" or "plain", so that tests reach every version on one machine.
enum class Simd { Plain, Avx2, Avx512 };
Simd simd();
// Whether there are the tile registers of AMX for bfloat16, and the system lets this process use them. Not where
// MOONFLOW_SIMD says "avx512" or less.
bool has_tiles();
// Whether there is an instruction for the products of four bytes by four each lane (AVX512_VNNI). Not where
// MOONFLOW_SIMD says "avx2" or less.
bool has_byte_products();

#ifdef MOONFLOW_SIMD_VERSIONS

// `flatten` pulls the body into the function, where it is compiled anew for the wider registers.
template <class Body>
[[gnu::target("avx2,fma"), gnu::flatten]] void run_avx2(const Body& body) {
  body();
}
template <class Body>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512"), gnu::flatten]] void run_avx512(
    const Body& body) {
  body();
}

// Calls body(), a lambda around a plain loop over arithmetic types; calls out of it stay as they were compiled.
template <class Body>
void widest(const Body& body) {
  switch (simd()) {
    case Simd::Avx512:
      return run_avx512(body);
    case Simd::Avx2:
      return run_avx2(body);
    case Simd::Plain:
      return body();
  }
}

// The same for a body over registers: body(Register<16>()) for AVX-512, and so on down.
template <class Body>
void widest_register(const Body& body) {
  switch (simd()) {
    case Simd::Avx512:
      return run_avx512([&] { body(Register<16>()); });
    case Simd::Avx2:
      return run_avx2([&] { body(Register<8>()); });
    case Simd::Plain:
      return body(Register<4>());
  }
}

template <class Body>
[[gnu::target("avx2,fma"), gnu::flatten, gnu::noinline]] void stand_alone(Register<8>, const Body& body) {
  body();
}
template <class Body>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512"), gnu::flatten, gnu::noinline]] void
stand_alone(Register<16>, const Body& body) {
  body();
}

#else

template <class Body>
void widest(const Body& body) {
  body();
}

template <class Body>
void widest_register(const Body& body) {
#ifdef MOONFLOW_SIMULATED_AVX512
  body(Register<16>());
#else
  body(Register<4>());
#endif
}

#endif

// Calls call(n), where n is `count`, of kMost at most, as a constant of the compiler's.
template <int kMost, int kFirst = 1, class Call>
void with_count(int64_t count, const Call& call) {
  if constexpr (kFirst < kMost) {
    if (count != kFirst) return with_count<kMost, kFirst + 1>(count, call);
  }
  call(std::integral_constant<int, kFirst>());
}

// Calls body() in a function of its own, compiled as one of widest_register's for this register. A loop that needs all
// registers would otherwise share them with the loops around it.
template <int kFloats, class Body>
[[gnu::flatten, gnu::noinline]] void stand_alone(Register<kFloats>, const Body& body) {
  body();
}

}  // namespace moonflow::cpu
