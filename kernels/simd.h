// One loop, compiled for the instruction sets that matter, chosen by the processor it runs on. The build itself asks for
// none of them, so a binary runs on any x86-64 (and on anything else without the wide versions).
// A loop compiled this way gives the same values for any thread count; between processors the last bit may differ,
// because the wide versions fuse multiply and add.
#pragma once

namespace moonflow::cpu {

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
