// Kernels that are made while a script runs, compiled for a card that is not there: every element-wise op that may
// stand in a chain, in every dtype, and chains with leaves of every kind. Also what is kept of them on disk.
//
// Exits with 77 where there is no NVRTC, unless MOONFLOW_REQUIRE_NVRTC=1 is set.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "engine/error.h"
#include "kernels/cuda/chain_source.h"
#include "kernels/cuda/code_cache.h"
#include "kernels/cuda/compiler.h"
#include "kernels/cuda/library.h"

namespace fs = std::filesystem;
using namespace moonflow;
using namespace moonflow::cuda;

namespace {

int failed = 0;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("FAILED: %s\n", what);
  ++failed;
}

// An ELF file for the machine code of capability 9.0, with the kernel in it.
bool is_code(const std::string& code) {
  constexpr int kFlags = 48;  // of the header; bits 8 to 15 say for which cards
  return code.size() > 64 && code.compare(0, 4, "\177ELF") == 0 && static_cast<unsigned char>(code[kFlags + 1]) == 90 &&
         code.find(".text.chain") != std::string::npos;
}

void expect_compiles(const Attrs& attrs, const std::vector<TensorType>& leaves, const TensorType& out,
                     const std::string& what) {
  try {
    expect(is_code(compile(chain_source(attrs, leaves, out), chain_headers(), 90)), (what + " is no code").c_str());
  } catch (const Error& error) {
    expect(false, (what + ": " + error.what()).c_str());
  }
}

// All links in one chain, which adds up what each makes of the leaves.
void compile_every_link(DType dtype) {
  const TensorType type{dtype, {100}};
  std::string ops = "add";
  Ints operands{0, 1};
  Floats numbers;
  int64_t made = 1;
  for (const ChainLink& link : chain_links()) {
    ops += " " + link.op + " add";
    operands.push_back(0);
    if (link.operands == 2) operands.push_back(1);
    operands.push_back(-made);
    operands.push_back(-made - 1);
    for (int i = 0; i < link.numbers; ++i) numbers.push_back(0.5 + i);
    made += 2;
  }
  expect_compiles({{"ops", ops}, {"operands", operands}, {"numbers", numbers}}, {type, type}, type, "all ops");
}

void compile_every_kind_of_leaf(DType dtype) {
  const TensorType out{dtype, {5, 70}}, row{dtype, {70}}, single{dtype, {}};
  expect_compiles({{"ops", std::string("multiply leaky_relu add exp tanh_grad subtract multiply")},
                   {"operands", Ints{1, 0, -1, -1, 2, -3, -4, -3, -5, 3, -6, -2}},
                   {"numbers", Floats{-1.0 / 0.0}}},
                  {row, out, out, single}, out, "a chain of seven");
}

// ---- what is kept --------------------------------------------------------------------------------------------

fs::path only_file(const fs::path& folder) {
  fs::path found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    expect(found.empty(), "one key has one file");
    found = entry.path();
  }
  return found;
}

void try_cache(const fs::path& root) {
  const std::string folder = (root / "a" / "b").string(), key = "key", code("co\0de", 5);
  expect(read_cached(folder, key).empty(), "nothing is kept at first");
  write_cached(folder, key, code);
  expect(read_cached(folder, key) == code, "what was kept is found");
  expect(read_cached(folder, "other").empty(), "another key finds nothing");
  expect(read_cached("", key).empty(), "without a folder nothing is found");
  const fs::path file = only_file(folder);
  std::string whole;
  std::getline(std::ifstream(file, std::ios::binary), whole, '\r');

  const auto with = [&](const std::string& content) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << content;
    return read_cached(folder, key);
  };
  expect(with(whole) == code, "the file is what it was");
  for (size_t length = 0; length < whole.size(); ++length)
    expect(with(whole.substr(0, length)).empty(), "a file cut short is none");
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    expect(with(changed).empty(), "a file with a bit changed is none");
  }
  expect(with(whole + "x").empty(), "a file that is longer is none");
  expect(with(whole) == code, "the file is mended");
  fs::permissions(file, fs::perms::group_write, fs::perm_options::add);
  expect(read_cached(folder, key).empty(), "what others may write is none of ours");
  fs::remove(file);
  fs::create_symlink("/etc/passwd", file);
  expect(read_cached(folder, key).empty(), "a link is not followed");
  write_cached(folder, key, code);
  expect(read_cached(folder, key) == code && !fs::is_symlink(file), "a link is replaced");
  fs::remove(file);
  mkfifo(file.c_str(), 0600);
  expect(read_cached(folder, key).empty(), "nobody waits for a pipe");
}

}  // namespace

int main() {
  std::string root = (fs::temp_directory_path() / "moonflow_made_XXXXXX").string();
  if (!mkdtemp(root.data())) return 1;
  try_cache(root);
  setenv("MOONFLOW_CACHE", "", 1);
  int result = 77;
  try {
    const Library there("libnvrtc.so.13");
    result = 0;
  } catch (const Error& error) {
    const char* const required = std::getenv("MOONFLOW_REQUIRE_NVRTC");
    std::printf("nothing compiled: %s\n", error.what());
    if (required && std::string(required) == "1") ++failed;
  }
  if (result == 0) {
    for (const DType dtype : {DType::Float32, DType::Float64, DType::BFloat16, DType::Float16}) {
      compile_every_link(dtype);
      compile_every_kind_of_leaf(dtype);
    }
  }
  if (result == 0 && failed == 0) {
    setenv("MOONFLOW_CACHE", (root + "/kernels").c_str(), 1);
    compile_every_kind_of_leaf(DType::Float32);
    expect(fs::file_size(only_file(root + "/kernels")) > 1000, "what was compiled is kept");
    compile_every_kind_of_leaf(DType::Float32);
    only_file(root + "/kernels");
  }
  fs::remove_all(root);
  std::printf("%zu ops, %d failed\n", chain_links().size(), failed);
  return failed > 0 ? 1 : result;
}
