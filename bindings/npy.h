// NumPy's .npy format, versions 1 to 3. Reading trusts nothing: only numbers and bool, sizes checked before memory is
// taken, nothing is ever executed; object arrays, which are pickles, are refused.
#pragma once

#include <memory>
#include <string>

#include "bindings/file.h"
#include "engine/tensor.h"

namespace moonflow {

// Reads one array that is all of the source. Big-endian and Fortran order are converted.
Tensor read_npy(ByteSource& source, const std::shared_ptr<HostMemory>& memory);
Tensor read_npy(const std::string& path, const std::shared_ptr<HostMemory>& memory);

// What stands before the elements of an array of this type.
std::string npy_header(const TensorType& type);
void write_npy(const std::string& path, const Tensor& array);

}  // namespace moonflow
