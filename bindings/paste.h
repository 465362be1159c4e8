// What is pasted into a terminal. In its mode 2004 a terminal puts that between two marks, so that it does not look
// like keys; programs that have not asked for the mode would read the marks.
#pragma once

#include <signal.h>

#include <string>
#include <string_view>

namespace moonflow {

constexpr const char* kPasteBegin = "\\e[200~";  // as libedit's bindings spell it
constexpr std::string_view kPasteEnd = "\x1b[201~";

// The mode is on from `begin` to `end`, but for the time that Ctrl-Z stops the process: after a SIGCONT it is to be
// renewed.
class PasteMode {
 public:
  void begin();
  void renew() const;
  void end();

 private:
  bool begun_ = false;
  struct sigaction before_ = {};
};

// What stood between the marks, as text: without control characters other than TAB and line breaks, and without line
// breaks at its end. A line ends with CR, LF or both in any order, since a terminal's driver may exchange them.
std::wstring pasted_text(const std::string& bytes);

}  // namespace moonflow
