#include "bindings/editor.h"

#include <fcntl.h>
#include <histedit.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cwchar>
#include <filesystem>
#include <fstream>

#include "bindings/interruption.h"
#include "bindings/paste.h"

namespace moonflow {

namespace fs = std::filesystem;

// ---- history -------------------------------------------------------------------------------------------------

namespace {

constexpr size_t kEntries = 2000;  // kept; the file is shortened when it has grown to twice as many

// An entry is one line of the file: a line break in it is "\n", a backslash "\\".
std::string escaped(const std::string& entry) {
  std::string line;
  for (const char c : entry) line += c == '\n' ? "\\n" : c == '\\' ? "\\\\" : std::string(1, c);
  return line + "\n";
}

std::string unescaped(const std::string& line) {
  std::string entry;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\\' && i + 1 < line.size()) {
      ++i;
      entry += line[i] == 'n' ? '\n' : line[i];
    } else {
      entry += line[i];
    }
  }
  return entry;
}

}  // namespace

class Editor::History {
 public:
  explicit History(std::string path) : path_(std::move(path)), list_(history_init()) {
    HistEvent event;
    ::history(list_, &event, H_SETSIZE, static_cast<int>(kEntries));
    size_t lines = 0;
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line); ++lines) put_last(unescaped(line));
    shorten();
    if (lines > 2 * kEntries) rewrite();
    fill();
  }
  ~History() { history_end(list_); }
  History(const History&) = delete;
  History& operator=(const History&) = delete;

  void add(const std::string& entry) {
    if (entry.find_first_not_of(" \t\n") == entry.npos) return;
    put_last(entry);
    shorten();
    fill();
    // Appended in one write, so several prompts may share the file.
    const int file = path_.empty() ? -1 : ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return;
    const std::string line = escaped(entry);
    [[maybe_unused]] const ssize_t written = ::write(file, line.data(), line.size());
    ::close(file);
  }

  ::History* list() const { return list_; }
  const std::vector<std::string>& entries() const { return entries_; }

 private:
  // Each entry is there once, at the place where it was typed last.
  void put_last(const std::string& entry) {
    const auto earlier = std::find(entries_.rbegin(), entries_.rend(), entry);
    if (earlier != entries_.rend()) entries_.erase(std::next(earlier).base());
    entries_.push_back(entry);
  }
  void shorten() {
    if (entries_.size() > kEntries) entries_.erase(entries_.begin(), entries_.end() - kEntries);
  }
  void fill() {
    HistEvent event;
    ::history(list_, &event, H_CLEAR);
    for (const std::string& entry : entries_) ::history(list_, &event, H_ENTER, entry.c_str());
  }
  void rewrite() {
    const std::string fresh = path_ + ".new";
    {
      std::ofstream file(fresh, std::ios::trunc);
      ::chmod(fresh.c_str(), 0600);
      for (const std::string& entry : entries_) file << escaped(entry);
      if (!file.flush()) return;
    }
    std::error_code none;
    fs::rename(fresh, path_, none);
  }

  std::string path_;
  std::vector<std::string> entries_;
  ::History* list_;
};

std::string history_path() {
  std::error_code none;
  fs::path path;
  if (const char* chosen = std::getenv("MOONFLOW_HISTORY")) {
    return chosen;
  } else if (const char* state = std::getenv("XDG_STATE_HOME"); state && *state) {
    path = fs::path(state) / "moonflow";
  } else if (const char* home = std::getenv("HOME"); home && *home) {
    path = fs::path(home) / ".local" / "state" / "moonflow";
  } else {
    return {};
  }
  fs::create_directories(path, none);
  return (path / "history").string();
}

// ---- the terminal --------------------------------------------------------------------------------------------

namespace {

constexpr int kBusyMs = 50;  // how long to leave alone a descriptor that stays readable though it was served

volatile sig_atomic_t resized = 0;
volatile sig_atomic_t continued = 0;

int columns_of_terminal() {
  winsize size{};
  ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
  return size.ws_col > 0 ? size.ws_col : 80;
}

// A Ctrl-C comes during a wait, or not before the next: never between the last look for it and the wait.
struct HeldInterrupt {
  HeldInterrupt() {
    sigset_t held;
    sigemptyset(&held);
    sigaddset(&held, SIGINT);
    pthread_sigmask(SIG_BLOCK, &held, &before);
  }
  ~HeldInterrupt() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
  HeldInterrupt(const HeldInterrupt&) = delete;
  HeldInterrupt& operator=(const HeldInterrupt&) = delete;
  sigset_t before;
};

struct Place {
  int row = 0, column = 0;
};

// Where the cursor stands after `text` on a terminal of so many columns.
void advance(Place& place, const char* text, const char* end, int columns) {
  std::mbstate_t shift{};
  while (text < end) {
    wchar_t c = 0;
    const size_t bytes = std::mbrtowc(&c, text, static_cast<size_t>(end - text), &shift);
    if (bytes == 0 || bytes > static_cast<size_t>(end - text)) {
      c = L'?';
      shift = {};
      ++text;
    } else {
      text += bytes;
    }
    if (c == L'\n') {
      ++place.row;
      place.column = 0;
      continue;
    }
    const int width = c == L'\t' ? 8 - place.column % 8 : std::max(c < 32 ? 2 : wcwidth(c), 0);
    if (place.column + width > columns) {
      ++place.row;
      place.column = 0;
    }
    place.column += width;
  }
  if (place.column >= columns) {
    ++place.row;
    place.column = 0;
  }
}

std::string in_columns(const std::vector<std::string>& words) {
  constexpr size_t kMost = 200;
  size_t widest = 0;
  for (const std::string& word : words) widest = std::max(widest, word.size());
  const size_t per_line = std::max<size_t>(1, static_cast<size_t>(columns_of_terminal()) / (widest + 2));
  std::string text;
  for (size_t i = 0; i < std::min(words.size(), kMost); ++i) {
    text += words[i];
    const bool last = (i + 1) % per_line == 0 || i + 1 == words.size();
    text += last ? "\n" : std::string(widest + 2 - words[i].size(), ' ');
  }
  if (words.size() > kMost) text += "\n... and " + std::to_string(words.size() - kMost) + " more\n";
  return text;
}

// The longest beginning that all have, in whole letters.
std::string shared_start(const std::vector<std::string>& words) {
  std::string start = words.front();
  for (const std::string& word : words) {
    const auto differ = std::mismatch(start.begin(), start.end(), word.begin(), word.end()).first;
    start.erase(differ, start.end());
  }
  const std::string& word = words.front();
  const auto is_within_letter = [&] { return start.size() < word.size() && (word[start.size()] & 0xC0) == 0x80; };
  while (is_within_letter()) start.pop_back();
  return start;
}

}  // namespace

class Editor::Terminal {
 public:
  Terminal(EditorHost host, const History& history) : host_(std::move(host)), history_(history) {
    // For letters beyond ASCII. Nothing else of the locale is taken over, since numbers must keep their point.
    if (!std::setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
    struct sigaction action = {};
    action.sa_handler = [](int) { resized = 1; };
    sigaction(SIGWINCH, &action, nullptr);
    action.sa_handler = [](int) { continued = 1; };
    sigaction(SIGCONT, &action, nullptr);
    edit_ = el_init("moonflow", stdin, stdout, stderr);
    el_set(edit_, EL_CLIENTDATA, this);
    el_set(edit_, EL_PROMPT, &Terminal::prompt);
    el_set(edit_, EL_EDITOR, "emacs");
    el_set(edit_, EL_SIGNAL, 0);
    el_set(edit_, EL_GETCFN, &Terminal::get_key);
    el_set(edit_, EL_HIST, ::history, history.list());
    el_set(edit_, EL_ADDFN, "moonflow-complete", "Complete the word", &Terminal::on_tab);
    el_set(edit_, EL_BIND, "^I", "moonflow-complete", nullptr);
    el_set(edit_, EL_ADDFN, "moonflow-paste", "Insert what is pasted", &Terminal::on_paste);
    el_set(edit_, EL_BIND, kPasteBegin, "moonflow-paste", nullptr);
    el_set(edit_, EL_ADDFN, "moonflow-earlier", "Recall the entry before", &Terminal::on_up);
    for (const char* key : {"\\e[A", "\\eOA", "^P"}) el_set(edit_, EL_BIND, key, "moonflow-earlier", nullptr);
    el_set(edit_, EL_ADDFN, "moonflow-later", "Recall the entry behind", &Terminal::on_down);
    for (const char* key : {"\\e[B", "\\eOB", "^N"}) el_set(edit_, EL_BIND, key, "moonflow-later", nullptr);
    el_set(edit_, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    el_set(edit_, EL_BIND, "\\e[3~", "ed-delete-next-char", nullptr);
    el_set(edit_, EL_BIND, "\\e[1~", "ed-move-to-beg", nullptr);
    el_set(edit_, EL_BIND, "\\e[4~", "ed-move-to-end", nullptr);
    for (const char* key : {"\\e[1;5C", "\\e[1;3C"}) el_set(edit_, EL_BIND, key, "em-next-word", nullptr);
    for (const char* key : {"\\e[1;5D", "\\e[1;3D"}) el_set(edit_, EL_BIND, key, "ed-prev-word", nullptr);
    // Insert, both of Page and F5 to F12: letters of keys that mean nothing would be left in the line.
    for (const int number : {2, 5, 6, 15, 17, 18, 19, 20, 21, 23, 24})
      el_set(edit_, EL_BIND, ("\\e[" + std::to_string(number) + "~").c_str(), "ed-ignore", nullptr);
    for (const char* key : {"\\eOP", "\\eOQ", "\\eOR", "\\eOS"}) el_set(edit_, EL_BIND, key, "ed-ignore", nullptr);
  }
  ~Terminal() { el_end(edit_); }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  Read read(const std::string& prompt, std::string& line) {
    prompt_ = prompt;
    interrupted_ = false;
    typed_ahead_ = true;  // until no key is there, which can be told once the terminal is in our mode
    recalled_ = history_.entries().size();
    int count = 0;
    paste_mode_.begin();
    const char* typed = el_gets(edit_, &count);
    paste_mode_.end();
    if (interrupted_) return Read::Interrupted;
    if (!typed || count <= 0) return Read::End;
    line.assign(typed, static_cast<size_t>(count));
    if (!line.empty() && line.back() == '\n') line.pop_back();
    return Read::Line;
  }

 private:
  static Terminal& self(EditLine* edit) {
    void* data = nullptr;
    el_get(edit, EL_CLIENTDATA, &data);
    return *static_cast<Terminal*>(data);
  }
  static char* prompt(EditLine* edit) { return self(edit).prompt_.data(); }
  static int get_key(EditLine* edit, wchar_t* key) { return self(edit).next_key(key); }
  static unsigned char on_tab(EditLine* edit, int) { return self(edit).complete(); }
  static unsigned char on_paste(EditLine* edit, int) { return self(edit).paste(); }
  static unsigned char on_up(EditLine* edit, int) { return self(edit).recall(-1); }
  static unsigned char on_down(EditLine* edit, int) { return self(edit).recall(1); }

  // 1 and a key, 0 at the end of the input, -1 when Ctrl-C drops the line.
  int next_key(wchar_t* key) {
    std::mbstate_t shift{};
    for (;;) {
      if (ahead_.empty()) {
        typed_ahead_ = typed_ahead_ && key_is_there();
        const Key key_state = read_ahead(1);
        if (key_state != Key::Ready) return key_state == Key::Interrupted ? -1 : 0;
      }
      const char byte = ahead_.front();
      ahead_.erase(0, 1);
      const bool is_within_letter = !std::mbsinit(&shift);
      size_t bytes = std::mbrtowc(key, &byte, 1, &shift);
      if (bytes == static_cast<size_t>(-1) && is_within_letter) {  // the letter was broken off, and another begins
        shift = {};
        bytes = std::mbrtowc(key, &byte, 1, &shift);
      }
      if (bytes == static_cast<size_t>(-2)) continue;
      if (bytes == static_cast<size_t>(-1)) {
        shift = {};
        continue;
      }
      if (bytes == 0) {
        *key = L'\0';
        // Between two lines the terminal notes a Ctrl-D as this byte.
        const LineInfo* line = el_line(edit_);
        if (typed_ahead_ && line->lastchar == line->buffer) return 0;
      }
      return 1;
    }
  }

  static bool key_is_there() {
    pollfd key = {STDIN_FILENO, POLLIN, 0};
    return ::poll(&key, 1, 0) > 0;
  }

  enum class Key { Ready, Interrupted, None };

  // Waits for keys and appends up to so many bytes of them to what has been read ahead.
  Key read_ahead(size_t most) {
    for (;;) {
      const Key key = wait_for_key();
      if (key == Key::Interrupted) {
        interrupted_ = true;
        ahead_.clear();
        leave_line();
      }
      if (key != Key::Ready) return key;
      const size_t before = ahead_.size();
      ahead_.resize(before + most);
      const ssize_t got = ::read(STDIN_FILENO, &ahead_[before], most);
      ahead_.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
      if (got > 0) return key;
      if (got == 0 || errno != EINTR) return Key::None;
    }
  }

  // Serves the host meanwhile.
  Key wait_for_key() {
    bool rest = false;
    for (;;) {
      adapt();
      const timespec busy = {0, kBusyMs * 1000 * 1000};
      pollfd waits[] = {{STDIN_FILENO, POLLIN, 0}, {-1, POLLIN, 0}};
      int ready = 0;
      {
        const HeldInterrupt held;
        if (interruption::take()) return Key::Interrupted;
        if (!rest) waits[1].fd = host_.descriptor();
        ready = ::ppoll(waits, 2, rest ? &busy : nullptr, &held.before);
      }
      if (interruption::take()) return Key::Interrupted;  // keys that came with it belong to the next line
      rest = false;
      if (ready < 0) continue;
      if (waits[1].revents) {
        bool go_on = true;
        print_above([&] { go_on = host_.pump(); });
        if (!go_on) return Key::None;
        if (interruption::take()) continue;  // it stopped what was delivered, not the line
        pollfd still = {waits[1].fd, POLLIN, 0};
        rest = ::poll(&still, 1, 0) > 0;
      }
      if (waits[0].revents) return Key::Ready;
    }
  }

  // To a new size of the window, and to a terminal that was someone else's in between.
  void adapt() {
    if (continued) {
      continued = 0;
      el_set(edit_, EL_PREP_TERM, 0);
      el_set(edit_, EL_PREP_TERM, 1);
      paste_mode_.renew();
      el_set(edit_, EL_REFRESH);
    }
    if (resized) {
      resized = 0;
      el_resize(edit_);
    }
  }

  Place place_of(const char* LineInfo::*end) const {
    const LineInfo* line = el_line(edit_);
    const int columns = columns_of_terminal();
    Place place;
    for (const char c : prompt_) place.column += (c & 0xc0) != 0x80;
    advance(place, line->buffer, line->*end, columns);
    return place;
  }

  // Takes the line off the screen, lets `print` print there, and draws the line anew below.
  template <class Print>
  void print_above(Print print) {
    const int rows = place_of(&LineInfo::cursor).row;
    std::fputs("\r", stdout);
    if (rows > 0) std::fprintf(stdout, "\x1b[%dA", rows);
    std::fputs("\x1b[J", stdout);
    std::fflush(stdout);
    print();
    // To the first column of a free line, wherever the output ended: a line of blanks wraps unless it started there.
    // As many as fill a line stay on it, until one more comes.
    std::fprintf(stdout, "%*s\r\x1b[K", columns_of_terminal(), "");
    std::fflush(stdout);
    el_set(edit_, EL_REFRESH);
  }

  // Puts the cursor on a fresh line behind what was typed.
  void leave_line() {
    const int rows = place_of(&LineInfo::lastchar).row - place_of(&LineInfo::cursor).row;
    if (rows > 0) std::fprintf(stdout, "\x1b[%dB", rows);
    std::fputs("\r\n", stdout);
    std::fflush(stdout);
  }

  unsigned char complete() {
    const LineInfo* line = el_line(edit_);
    const std::string before(line->buffer, line->cursor);
    pollfd more = {STDIN_FILENO, POLLIN, 0};
    const bool pasted = ::poll(&more, 1, 0) > 0;
    if (pasted || before.find_first_not_of(" \t") == before.npos) {
      el_insertstr(edit_, "  ");
      return CC_REFRESH;
    }
    const Completions found = host_.complete(before);
    if (found.choices.empty()) return CC_REFRESH_BEEP;
    const std::string start = shared_start(found.choices);
    if (start.size() > found.word.size()) {
      el_insertstr(edit_, start.c_str() + found.word.size());
      return CC_REFRESH;
    }
    if (found.choices.size() == 1) return CC_NORM;
    print_above([&] { std::fputs((prompt_ + before + "\n" + in_columns(found.choices)).c_str(), stdout); });
    return CC_NORM;
  }

  // Inserts what comes up to the mark of its end.
  unsigned char paste() {
    constexpr size_t kAtOnce = 4096;
    size_t end = 0;
    for (size_t looked = 0; (end = ahead_.find(kPasteEnd, looked)) == ahead_.npos;) {
      looked = ahead_.size() - std::min(ahead_.size(), kPasteEnd.size() - 1);
      if (read_ahead(kAtOnce) != Key::Ready) return CC_EOF;
    }
    const std::wstring text = pasted_text(ahead_.substr(0, end));
    ahead_.erase(0, end + kPasteEnd.size());
    return text.empty() || el_winsertstr(edit_, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
  }

  // Brings the entry before or behind into the line. Behind the last one is the line that was under way, of which
  // libedit's own function keeps no more than 1023 letters.
  unsigned char recall(int step) {
    const LineInfo* line = el_line(edit_);
    const std::string shown(line->buffer, line->lastchar);
    const std::vector<std::string>& entries = history_.entries();
    if (recalled_ == entries.size()) {
      under_way_ = shown;
      recalled_ = static_cast<size_t>(std::find(entries.begin(), entries.end(), shown) - entries.begin());  // by Ctrl-R
    }
    if (recalled_ == (step < 0 ? 0 : entries.size())) return CC_ERROR;
    recalled_ += static_cast<size_t>(step);
    el_deletestr(edit_, el_cursor(edit_, static_cast<int>(shown.size())));
    el_insertstr(edit_, (recalled_ < entries.size() ? entries[recalled_] : under_way_).c_str());
    return CC_REFRESH;
  }

  EditorHost host_;
  const History& history_;
  EditLine* edit_;
  std::string prompt_;
  PasteMode paste_mode_;
  std::string ahead_;      // keys that have been read and come next
  size_t recalled_ = 0;    // which entry the line was; their number: none
  std::string under_way_;  // the line before one was recalled
  bool interrupted_ = false;
  bool typed_ahead_ = false;  // what is read now was typed before the line began
};

Editor::Editor(EditorHost host, const std::string& history)
    : history_(std::make_unique<History>(history)), terminal_(std::make_unique<Terminal>(std::move(host), *history_)) {}

Editor::~Editor() = default;

Read Editor::read(const std::string& prompt, std::string& line) { return terminal_->read(prompt, line); }

void Editor::remember(const std::string& chunk) { history_->add(chunk); }

}  // namespace moonflow
