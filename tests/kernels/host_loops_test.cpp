// A host with OpenMP loops of its own: whatever it has set, results are the same, and it finds it as it was.
#ifdef _OPENMP

#include <omp.h>

#include <catch2/catch.hpp>

#include "kernels/kept_threads.h"
#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

// Products and convolutions that oneDNN divides among its threads when they are prepared.
std::vector<float> results(Session& session) {
  const auto random = [](Shape shape) { return random_values({DType::Float32, std::move(shape)}, 7); };
  const Tensor x = random({8, 3, 29, 31}), filter = random({13, 3, 3, 3}), dy = random({8, 13, 27, 29});
  std::vector<float> all;
  for (const auto& outputs : {session.evaluate("matmul", {random({129, 257}), random({257, 65})}),
                              session.evaluate("conv2d_filter_grad", {dy, x}, {{"shape", Ints{13, 3, 3, 3}}}),
                              session.evaluate("conv2d_input_grad", {dy, filter}, {{"shape", Ints{8, 3, 29, 31}}})}) {
    const float* values = outputs.at(0).data<float>();
    all.insert(all.end(), values, values + outputs.at(0).count());
  }
  return all;
}

float apart(const std::vector<float>& a, const std::vector<float>& b) {
  float most = a.size() == b.size() ? 0 : INFINITY;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

}  // namespace

TEST_CASE("kernels have all their threads, or none of them waits for one that never comes") {
  Session session = make_session();
  const std::vector<float> wanted = results(session);

  omp_set_dynamic(1);
  CHECK(apart(results(session), wanted) == 0);
  std::vector<float> inside;
#pragma omp parallel num_threads(2)
#pragma omp master
  inside = results(session);
  CHECK(apart(inside, wanted) == 0);

  const int levels = omp_get_max_active_levels();
  omp_set_max_active_levels(0);
  Session lonely = make_session();
  CHECK(apart(results(lonely), wanted) < 1e-2f);  // a filter's gradient is summed in another order
  omp_set_max_active_levels(levels);
}

TEST_CASE("what a host has set for its loops is put back") {
  const int before = omp_get_max_threads();
  omp_set_num_threads(3);
  omp_set_dynamic(1);
  {
    const KeptThreads kept;
    make_session(2);
    CHECK(omp_get_max_threads() == 2);
    CHECK(omp_get_dynamic() == 0);
  }
  CHECK(omp_get_max_threads() == 3);
  CHECK(omp_get_dynamic() == 1);
  omp_set_dynamic(0);
  omp_set_num_threads(before);
}

#endif
