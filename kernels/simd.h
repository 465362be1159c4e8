// One loop, compiled for the instruction sets that matter, chosen by the processor it runs on. The build itself asks for
// none of them, so a binary runs on any x86-64 (and on anything else without the wide versions).
// A loop compiled this way gives the same values for any thread count; between processors the last bit may differ,
// because the wide versions fuse multiply and add.
#pragma once

namespace moonflow::cpu {

struct Feature {
  const char* name;
  bool present;
};

// What this processor has of the instruction sets that the loops here and those of oneDNN are chosen by. Ends with a
// feature without a name.
inline const Feature* features() {
#if defined(__x86_64__) && defined(__GNUC__)
  static const Feature list[] = {{"avx2", __builtin_cpu_supports("avx2") != 0},
                                 {"avx512f", __builtin_cpu_supports("avx512f") != 0},
                                 {"avx512_bf16", __builtin_cpu_supports("avx512bf16") != 0},
                                 {"amx", __builtin_cpu_supports("amx-tile") != 0},
                                 {nullptr, false}};
#else
  static const Feature list[] = {{nullptr, false}};
#endif
  return list;
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(MOONFLOW_PLAIN_LOOPS)

// `flatten` pulls the body into the function, where it is compiled anew for the wider registers.
template <class Body>
[[gnu::target("avx2,fma"), gnu::flatten]] void run_avx2(const Body& body) { body(); }
template <class Body>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512"), gnu::flatten]] void run_avx512(
    const Body& body) {
  body();
}

// Calls body(), a lambda around a plain loop over arithmetic types; calls out of it stay as they were compiled.
template <class Body>
void widest(const Body& body) {
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return run_avx512(body);
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return run_avx2(body);
  body();
}

#else

template <class Body>
void widest(const Body& body) { body(); }

#endif

}  // namespace moonflow::cpu
