// Named buffers that outlive runs and are shared by name between the jobs of a session.
// Changed only by runs, and by reads and writes of the session while nothing runs.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/device.h"
#include "engine/tensor.h"

namespace moonflow {

struct Variable {
  std::string name;
  TensorType type;
  Buffer memory;                     // row-major; zeroed until something is written
  std::atomic<uint64_t> version{0};  // how often the session, or a run, has written it

  bool initialised() const { return version > 0; }
};

class Variables {
 public:
  // Finds the variable or makes it on `device`. Another shape or dtype under the same name is an error.
  Variable& declare(const std::string& name, const TensorType& type, Device& device);
  Variable* find(const std::string& name);
  Variable& at(const std::string& name);   // NotFound, with the nearest name
  std::vector<std::string> names() const;  // sorted

 private:
  std::map<std::string, std::unique_ptr<Variable>> variables_;  // stable addresses: plans point at the memory
};

}  // namespace moonflow
