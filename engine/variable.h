// Named buffers that outlive runs and are shared by name between the jobs of a session, on whatever device those run.
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

// A variable has a copy on each device where a job uses it. Its home is the copy that was written last; the others
// are brought up to date when somebody is about to read them.
struct Variable {
  // A copy under the type and in the layout that a plan reads it in. Plans of one session that read it so share it,
  // and the last of them takes it along; whichever finds it behind the variable makes it again.
  struct Form {
    TensorType type;
    Layout layout;
    Buffer memory;
    uint64_t version = ~uint64_t{0};  // of the variable that it was made of; not yet of any
  };
  struct Copy {
    Device& device;
    Stream& stream;  // for moving it, while no run uses it
    Buffer memory;   // row-major; zeroed until something is written
    uint64_t version = 0;
    std::vector<std::weak_ptr<Form>> forms = {};

    std::shared_ptr<Form> find_form(const TensorType& as, const Layout& layout) const;  // nullptr where it has none
    void add_form(const std::shared_ptr<Form>& form);                                   // or sees that it has it
  };

  std::string name;
  TensorType type;
  std::atomic<uint64_t> version{0};  // how often the session, or a run, has written it
  Copy* home = nullptr;
  std::vector<std::unique_ptr<Copy>> copies;  // stable addresses: plans point at the memory

  bool initialised() const { return version > 0; }
  Copy* on(const Device& device) const;  // nullptr where it has none
  // What is written to this copy now is the variable's new value.
  void note_write(Copy& copy) {
    copy.version = ++version;
    home = &copy;
  }
  // Moves the value of the home to this copy and waits for it, unless it is there already.
  void refresh(Copy& copy) const;
  // The value of the home, from and to the host's memory.
  void read(void* to) const;
  void write(const void* from);
};

class Variables {
 public:
  struct Wanted {
    std::string name;
    TensorType type;
  };
  // Finds these variables or makes them, with copies on `device`: all or none. Another shape or dtype under the same
  // name is an error.
  std::vector<Variable*> declare(const std::vector<Wanted>& wanted, Device& device);
  // Throws when the name stands for a variable of another type.
  void expect(const std::string& name, const TensorType& type);
  // Nobody may point at them any more.
  void forget(const std::vector<std::string>& names);
  Variable* find(const std::string& name);
  Variable& at(const std::string& name);   // NotFound, with the nearest name
  std::vector<std::string> names() const;  // sorted
  std::vector<std::string> without_value() const;  // of those that nobody has written, sorted
  uint64_t changes() const { return changes_; }  // rises where there is one more, or one less
  int64_t bytes() const;                         // of all copies and their forms
  // Whether any variable has a second copy, so that copies may be behind. Any thread.
  bool have_copies() const { return have_copies_.load(std::memory_order_relaxed); }

 private:
  std::map<const Device*, std::unique_ptr<Stream>> streams_;
  std::map<std::string, std::unique_ptr<Variable>> variables_;  // stable addresses
  std::atomic<bool> have_copies_{false};
  uint64_t changes_ = 0;
};

}  // namespace moonflow
