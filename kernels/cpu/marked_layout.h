// Private layouts that are no blocks of axes: a mark that no other layout of the CPU has, then a form.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "engine/device.h"

namespace moonflow::cpu {

// `Form` are integers of 64 bits alone, so there is no padding, and `kMark` is its own.
template <class Form>
Layout marked_layout(const Form& form, int64_t bytes) {
  static_assert(std::is_trivially_copyable_v<Form> && sizeof(Form) % sizeof(int64_t) == 0);
  Layout layout;
  layout.description.resize(sizeof Form::kMark + sizeof form);
  std::memcpy(layout.description.data(), Form::kMark, sizeof Form::kMark);
  std::memcpy(layout.description.data() + sizeof Form::kMark, &form, sizeof form);
  layout.bytes = bytes;
  return layout;
}

template <class Form>
bool is_marked(const Layout& layout) {
  return layout.description.size() == sizeof Form::kMark + sizeof(Form) &&
         std::memcmp(layout.description.data(), Form::kMark, sizeof Form::kMark) == 0;
}

template <class Form>
Form marked_form(const Layout& layout) {
  Form form;
  std::memcpy(&form, layout.description.data() + sizeof Form::kMark, sizeof form);
  return form;
}

}  // namespace moonflow::cpu
