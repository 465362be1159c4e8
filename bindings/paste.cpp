#include "bindings/paste.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cwchar>
#include <cwctype>

namespace moonflow {

namespace {

constexpr std::string_view kModeOn = "\x1b[?2004h", kModeOff = "\x1b[?2004l";

void put(std::string_view mode) {
  std::fwrite(mode.data(), 1, mode.size(), stdout);
  std::fflush(stdout);
}

// In the place of what SIGTSTP does by itself.
void stop(int) {
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, kModeOff.data(), kModeOff.size());
  struct sigaction by_itself = {}, ours = {};
  by_itself.sa_handler = SIG_DFL;
  sigaction(SIGTSTP, &by_itself, &ours);
  raise(SIGTSTP);
  sigaction(SIGTSTP, &ours, nullptr);
  raise(SIGCONT);  // without a shell that could go on with it, nothing was stopped
  errno = error;
}

}  // namespace

void PasteMode::begin() {
  const char* terminal = std::getenv("TERM");
  if (!terminal || std::strcmp(terminal, "dumb") == 0) return;
  begun_ = true;
  sigaction(SIGTSTP, nullptr, &before_);
  if (before_.sa_handler == SIG_DFL) {  // else somebody wants it ignored
    struct sigaction action = {};
    action.sa_handler = stop;
    action.sa_flags = SA_NODEFER;  // so that it stops within the handler
    sigaction(SIGTSTP, &action, nullptr);
  }
  renew();
}

void PasteMode::renew() const {
  if (begun_) put(kModeOn);
}

void PasteMode::end() {
  if (!begun_) return;
  sigaction(SIGTSTP, &before_, nullptr);
  put(kModeOff);
  begun_ = false;
}

std::wstring pasted_text(const std::string& bytes) {
  std::wstring text;
  std::mbstate_t shift{};
  wchar_t line_break = 0;  // before this place
  for (size_t at = 0; at < bytes.size();) {
    wchar_t c = 0;
    const size_t length = std::mbrtowc(&c, &bytes[at], bytes.size() - at, &shift);
    const bool is_letter = length > 0 && length <= bytes.size() - at;
    at += is_letter ? length : 1;
    if (!is_letter) {
      shift = {};
    } else if (c == L'\r' || c == L'\n') {
      const bool is_second = line_break && line_break != c;
      if (!is_second) text += L'\n';
      line_break = is_second ? 0 : c;
      continue;
    } else if (c == L'\t' || !std::iswcntrl(static_cast<wint_t>(c))) {
      text += c;
    }
    line_break = 0;
  }
  text.erase(text.find_last_not_of(L'\n') + 1);
  return text;
}

}  // namespace moonflow
