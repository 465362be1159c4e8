#include "kernels/cuda/compiler.h"

#include <cuda_runtime_api.h>
#include <nvrtc.h>

#include <algorithm>

#include "engine/error.h"
#include "kernels/cuda/code_cache.h"
#include "kernels/cuda/library.h"

namespace moonflow::cuda {
namespace {

struct Nvrtc {
  Library library{"libnvrtc.so.13"};
  MOONFLOW_SYMBOL(nvrtcCompileProgram);
  MOONFLOW_SYMBOL(nvrtcCreateProgram);
  MOONFLOW_SYMBOL(nvrtcDestroyProgram);
  MOONFLOW_SYMBOL(nvrtcGetCUBIN);
  MOONFLOW_SYMBOL(nvrtcGetCUBINSize);
  MOONFLOW_SYMBOL(nvrtcGetErrorString);
  MOONFLOW_SYMBOL(nvrtcGetNumSupportedArchs);
  MOONFLOW_SYMBOL(nvrtcGetProgramLog);
  MOONFLOW_SYMBOL(nvrtcGetProgramLogSize);
  MOONFLOW_SYMBOL(nvrtcGetSupportedArchs);

  void check(nvrtcResult result, const std::string& log = {}) const {
    require(result == NVRTC_SUCCESS, ErrorCode::Internal,
            "NVRTC could not compile a kernel: ", nvrtcGetErrorString(result), log.empty() ? "" : "\n", log);
  }
};

struct Program {
  const Nvrtc& nvrtc;
  nvrtcProgram handle = nullptr;
  ~Program() {
    if (handle) nvrtc.nvrtcDestroyProgram(&handle);
  }
};

}  // namespace

std::string obstacle_to_compiling(int capability) {
  try {
    const Nvrtc nvrtc;
    int count = 0;
    nvrtc.check(nvrtc.nvrtcGetNumSupportedArchs(&count));
    std::vector<int> known(static_cast<size_t>(count));
    nvrtc.check(nvrtc.nvrtcGetSupportedArchs(known.data()));
    if (std::find(known.begin(), known.end(), capability) != known.end()) return "";
    return text(nvrtc.library.path(), " does not know cards of capability ", capability / 10, ".", capability % 10,
                "; install a newer one, or set MOONFLOW_CUDA_PATH to its folder");
  } catch (const Error& error) {
    return error.what();
  }
}

std::string compile(const std::string& source, const Headers& headers, int capability) {
  const std::string target = text("--gpu-architecture=sm_", capability);
  // Functions without a word on where they run are the card's: constructors from attributes.
  const std::vector<const char*> options{target.c_str(), "--std=c++17", "--device-as-default-execution-space"};
  std::string key = text("CUDA ", CUDART_VERSION);
  for (const char* option : options) key += text(' ', option);
  key += "\n" + source;
  std::vector<const char*> names, texts;
  for (const auto& [name, content] : headers) {
    key += "\n" + name + "\n" + content;
    names.push_back(name.c_str());
    texts.push_back(content.c_str());
  }
  const std::string folder = cache_folder();
  if (std::string kept = read_cached(folder, key); !kept.empty()) return kept;

  const Nvrtc nvrtc;
  Program program{nvrtc};
  nvrtc.check(nvrtc.nvrtcCreateProgram(&program.handle, source.c_str(), "chain.cu", static_cast<int>(headers.size()),
                                       texts.data(), names.data()));
  const nvrtcResult result =
      nvrtc.nvrtcCompileProgram(program.handle, static_cast<int>(options.size()), options.data());
  if (result != NVRTC_SUCCESS) {
    size_t bytes = 0;
    std::string log;
    if (nvrtc.nvrtcGetProgramLogSize(program.handle, &bytes) == NVRTC_SUCCESS && bytes > 0) {
      log.resize(bytes);
      nvrtc.nvrtcGetProgramLog(program.handle, log.data());
      log.resize(bytes - 1);
    }
    nvrtc.check(result, log);
  }
  size_t bytes = 0;
  nvrtc.check(nvrtc.nvrtcGetCUBINSize(program.handle, &bytes));
  std::string code(bytes, '\0');
  nvrtc.check(nvrtc.nvrtcGetCUBIN(program.handle, code.data()));
  write_cached(folder, key, code);
  return code;
}

}  // namespace moonflow::cuda
