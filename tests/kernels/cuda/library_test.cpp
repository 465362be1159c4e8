// Where NVIDIA's libraries are looked for, with a library that every machine has under names that none has.
#include "kernels/cuda/library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include <catch2/catch.hpp>

#include "engine/error.h"

namespace fs = std::filesystem;
using moonflow::cuda::Library;

namespace {

// A folder with links to the C++ library at these places, and MOONFLOW_CUDA_PATH set to it while it lives.
class Installation {
 public:
  explicit Installation(std::initializer_list<const char*> files) {
    std::string name = (fs::temp_directory_path() / "moonflow_library_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    root_ = name;
    Dl_info info{};
    REQUIRE(dladdr(dlsym(RTLD_DEFAULT, "__cxa_throw"), &info) != 0);
    for (const char* file : files) {
      fs::create_directories((root_ / file).parent_path());
      fs::create_symlink(fs::canonical(info.dli_fname), root_ / file);
    }
    setenv("MOONFLOW_CUDA_PATH", root_.c_str(), 1);
  }
  ~Installation() {
    unsetenv("MOONFLOW_CUDA_PATH");
    fs::remove_all(root_);
  }
  const fs::path& root() const { return root_; }

 private:
  fs::path root_;
};

std::string message_of(const char* soname) {
  try {
    const Library library(soname);
  } catch (const moonflow::Error& error) {
    CHECK(error.code == moonflow::ErrorCode::Unsupported);
    return error.what();
  }
  return "opened";
}

}  // namespace

TEST_CASE("a library is found by name, in a toolkit's folders, and in those of Python's packages") {
  const Installation there(
      {"libmoonflow_a.so.7", "lib/libmoonflow_b.so.7", "lib64/libmoonflow_c.so.7", "thing/lib/libmoonflow_d.so.7"});
  CHECK(Library("libm.so.6").path() == "libm.so.6");
  CHECK(Library("libmoonflow_a.so.7").path() == there.root() / "libmoonflow_a.so.7");
  CHECK(Library("libmoonflow_b.so.7").path() == there.root() / "lib/libmoonflow_b.so.7");
  CHECK(Library("libmoonflow_c.so.7").path() == there.root() / "lib64/libmoonflow_c.so.7");
  CHECK(Library("libmoonflow_d.so.7").path() == there.root() / "thing/lib/libmoonflow_d.so.7");
}

TEST_CASE("a library that is not there is named, with where it was looked for and what to do") {
  const std::string plain = message_of("libmoonflow_none.so.7");
  CHECK(plain.find("libmoonflow_none.so.7") != std::string::npos);
  CHECK(plain.find("/usr/local/cuda/lib64") != std::string::npos);
  CHECK(plain.find("set MOONFLOW_CUDA_PATH") != std::string::npos);
  const Installation there({"other.so"});
  CHECK(message_of("libmoonflow_none.so.7").find("MOONFLOW_CUDA_PATH=" + there.root().string()) != std::string::npos);
}

TEST_CASE("a library that does not open says why, and one that lacks a function which") {
  const Installation there({"libmoonflow_a.so.7"});
  fs::create_directories(there.root() / "lib");
  std::FILE* const file = std::fopen((there.root() / "lib/libmoonflow_broken.so.7").c_str(), "w");
  REQUIRE(file != nullptr);
  std::fputs("not a library", file);
  std::fclose(file);
  CHECK(message_of("libmoonflow_broken.so.7").find("lib/libmoonflow_broken.so.7") != std::string::npos);
  try {
    const Library library("libmoonflow_a.so.7");
    (void)library.symbol("moonflow_no_such_function");
    FAIL_CHECK("found it");
  } catch (const moonflow::Error& error) {
    CHECK(std::string(error.what()).find("has no moonflow_no_such_function") != std::string::npos);
  }
}
