// NumPy's .npz archives: a zip of .npy members, stored or deflated. Reading refuses bombs before they are inflated.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "engine/tensor.h"

namespace moonflow {

// Most bytes that the arrays of a file of `file_bytes` may have together, unless the caller says otherwise.
int64_t npz_budget(int64_t file_bytes);

// The arrays by name, without ".npy": these, or all of them where none is named. `budget_bytes` < 0: npz_budget.
std::map<std::string, Tensor> read_npz(const std::string& path, int64_t budget_bytes,
                                       const std::set<std::string>& names, const std::shared_ptr<HostMemory>& memory);
// Of the bytes of such a file, which errors call `name`.
std::map<std::string, Tensor> read_npz(std::string_view bytes, const std::string& name,
                                       const std::set<std::string>& names, const std::shared_ptr<HostMemory>& memory);
// Uncompressed, and the same bytes for the same arrays at any time.
void write_npz(const std::string& path, const std::map<std::string, Tensor>& arrays);
// The bytes of such a file.
std::string encode_npz(const std::map<std::string, Tensor>& arrays);

}  // namespace moonflow
