// All the ops of Moonflow, and the devices they run on.
#pragma once

#include <memory>
#include <vector>

#include "engine/op.h"

namespace moonflow {

// The catalog of a process, made when it is first asked for.
std::shared_ptr<const Catalog> all_ops();

// The CPU through oneDNN and own loops. `threads` = 0: one per core that this process may use. `memory` = nullptr: its
// own.
std::unique_ptr<Device> make_cpu_device(int threads = 0, std::shared_ptr<HostMemory> memory = nullptr);
// The CPU for a thread with deadlines: one thread, and own loops alone, whose launches neither allocate nor lock.
std::unique_ptr<Device> make_real_time_cpu_device(std::shared_ptr<HostMemory> memory = nullptr);

// Floating-point operations per second (a multiply-add counts as two) that `threads` cores reach on registers alone,
// measured for some milliseconds: what the speed of a kernel is compared with.
double measure_peak_flops(int threads);

// Those of the instruction sets that kernels are chosen by which this processor has: "avx2", "avx512f", ...
std::vector<const char*> cpu_features();

// One function per family, each in the file of its name.
void add_elementwise(Catalog& catalog);
void add_array_elements(Catalog& catalog);
void add_fill(Catalog& catalog);
void add_fourier(Catalog& catalog);
void add_reduce(Catalog& catalog);
void add_argmax(Catalog& catalog);
void add_shape(Catalog& catalog);
void add_slice(Catalog& catalog);
void add_index(Catalog& catalog);
void add_rows_update(Catalog& catalog);
void add_scatter(Catalog& catalog);
void add_sort(Catalog& catalog);
void add_cumsum(Catalog& catalog);
void add_matmul(Catalog& catalog);
void add_matmul_update(Catalog& catalog);
void add_matmul_bfloat16_update(Catalog& catalog);
void add_conv(Catalog& catalog);
void add_quantized_conv(Catalog& catalog);
void add_bias(Catalog& catalog);
void add_pool(Catalog& catalog);
void add_resample(Catalog& catalog);
void add_resample_axis(Catalog& catalog);
void add_grid_sample(Catalog& catalog);
void add_softmax(Catalog& catalog);
void add_attention(Catalog& catalog);
void add_cross_entropy(Catalog& catalog);
void add_ctc(Catalog& catalog);
void add_loss(Catalog& catalog);
void add_l2_normalize(Catalog& catalog);
void add_loss_scale(Catalog& catalog);
void add_collective(Catalog& catalog);
void add_classifier(Catalog& catalog);
void add_norm(Catalog& catalog);
void add_layer_norm(Catalog& catalog);
void add_linalg(Catalog& catalog);
void add_moments(Catalog& catalog);
void add_random(Catalog& catalog);
void add_dense_back(Catalog& catalog);
void add_dense_pair(Catalog& catalog);
void add_dense_update(Catalog& catalog);
void add_update(Catalog& catalog);
void add_schedule(Catalog& catalog);

}  // namespace moonflow
