// OFRecord, the files of OneFlow's data sets: records one behind the other, each its length (8 bytes, little-endian)
// and a protobuf message of named features. Reading trusts nothing: a length is checked before memory is taken.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/tensor.h"

namespace moonflow {

struct OfRecord {
  // Of a feature of numbers: float32, float64, int32 or int64 of shape (count).
  std::map<std::string, Tensor> numbers;
  // Of one of bytes, such as encoded pictures.
  std::map<std::string, std::vector<std::string>> bytes;
  int64_t end = 0;  // where the next record begins
};

// The record that begins at `offset`; false where the file ends.
bool read_ofrecord(const std::string& path, int64_t offset, const std::shared_ptr<HostMemory>& memory,
                   OfRecord& record);

}  // namespace moonflow
