// What a host is told about GPUs, in C and in C++. The modules are those of tests/kernels/cuda/odd_module.cpp.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include <moonflow.hpp>

namespace {

void name_module(const char* kind) {
  const std::string path = std::string(MOONFLOW_TEST_MODULES "/module_") + kind + ".so";
  setenv("MOONFLOW_CUDA_MODULE", path.c_str(), 1);
}

std::string taken(mf_status* status, mf_code code) {
  CHECK(mf_status_code(status) == code);
  const std::string message = status ? mf_status_message(status) : "";
  mf_status_free(status);
  return message;
}

}  // namespace

TEST_CASE("a host asks for the GPUs of its machine, without a session") {
  name_module("good");
  int32_t count = -1;
  CHECK(taken(mf_gpu_count(&count), MF_OK) == "");
  CHECK(count == 2);
  mf_gpu gpu{};
  gpu.struct_size = sizeof gpu;
  CHECK(taken(mf_gpu_info(1, &gpu), MF_OK) == "");
  CHECK(std::string(gpu.name) == "second card");
  CHECK(gpu.memory_bytes == 1 << 21);
  CHECK(gpu.capability == 80);
  CHECK(mf_get_api(MF_API_VERSION)->gpu_info == mf_gpu_info);

  const std::vector<moonflow::Gpu> gpus = moonflow::gpus();
  REQUIRE(gpus.size() == 2);
  CHECK(gpus[0].name == "first card");
}

TEST_CASE("a host without a GPU is told why, which is no exception in C++") {
  name_module("another_build");
  int32_t count = -1;
  const std::string reason = taken(mf_gpu_count(&count), MF_UNSUPPORTED);
  CHECK(count == 0);
  CHECK(reason.find("take both from one build") != std::string::npos);
  mf_gpu gpu{};
  gpu.struct_size = sizeof gpu;
  CHECK(taken(mf_gpu_info(0, &gpu), MF_UNSUPPORTED) == reason);
  std::string told;
  CHECK(moonflow::gpus(&told).empty());
  CHECK(told == reason);
  CHECK(moonflow::gpus().empty());
}

TEST_CASE("wrong arguments of a question about GPUs give a status that names them") {
  name_module("good");
  mf_gpu gpu{};
  gpu.struct_size = sizeof gpu;
  CHECK(taken(mf_gpu_info(2, &gpu), MF_OUT_OF_RANGE).find("2 GPUs") != std::string::npos);
  CHECK(taken(mf_gpu_info(-1, &gpu), MF_OUT_OF_RANGE) != "");
  gpu.struct_size = 8;
  CHECK(taken(mf_gpu_info(0, &gpu), MF_INVALID_ARGUMENT).find("struct_size of gpu") != std::string::npos);
  CHECK(taken(mf_gpu_info(0, nullptr), MF_INVALID_ARGUMENT).find("gpu is NULL") != std::string::npos);
  CHECK(taken(mf_gpu_count(nullptr), MF_INVALID_ARGUMENT).find("count is NULL") != std::string::npos);
}
