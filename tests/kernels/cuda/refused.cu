// What the module's own warnings must refuse: each part is wrong in a way that a card would show late, or never.
// Compiled by tests, with the module's options and one of the definitions; without any it is right.
#include <cuda_runtime.h>

__global__ void __launch_bounds__(1024) scale(float* values) {
  float own[96];
  for (int i = 0; i < 96; ++i) own[i] = values[i * 1024 + threadIdx.x];
#ifdef WITH_SPILL
  // All of them at once are more than the 64 registers that 1024 threads leave to each.
  __syncthreads();
  for (int round = 0; round < 50; ++round)
    for (int i = 0; i < 96; ++i) own[i] = own[i] * own[(i * 7 + 1) % 96] + 1;
#endif
  for (int i = 0; i < 96; ++i) values[i * 1024 + threadIdx.x] = 2 * own[i];
}

#ifdef WITH_CALL_OF_THE_HOST
float of_the_host(float x);
__host__ __device__ float of_both(float x) { return of_the_host(x); }
#endif

void start(float* values, cudaStream_t stream) {
#ifdef WITH_WARNING
  int unused;
#endif
#ifdef WITHOUT_STREAM
  scale<<<1, 1024>>>(values);
#endif
  scale<<<1, 1024, 0, stream>>>(values);
}
