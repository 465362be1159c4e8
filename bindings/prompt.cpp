#include "bindings/prompt.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>

#include "bindings/calling.h"
#include "bindings/editor.h"
#include "bindings/interruption.h"

namespace moonflow {

namespace {

// A Lua object and its methods, called protected; what goes wrong is said on standard error.
class Conversation {
 public:
  explicit Conversation(lua_State* L) : lua_(L), index_(lua_gettop(L)) {}

  bool incomplete(const std::string& text) {
    const bool more = call("incomplete", &text, 1) && lua_toboolean(lua_, -1);
    lua_settop(lua_, index_);
    return more;
  }

  struct Outcome {
    bool fine = false, leave = false;
  };
  Outcome evaluate(const std::string& text) { return outcome_of("evaluate", &text); }
  Outcome pump() { return outcome_of("pump", nullptr); }

  int descriptor() {
    const int found = call("descriptor", nullptr, 1) && lua_isnumber(lua_, -1) ? lua_tointeger(lua_, -1) : -1;
    lua_settop(lua_, index_);
    return found;
  }

  Completions complete(const std::string& text) {
    Completions found;
    if (call("complete", &text, 2) && lua_isstring(lua_, -2) && lua_istable(lua_, -1)) {
      found.word = lua_tostring(lua_, -2);
      for (size_t i = 1; i <= lua_objlen(lua_, -1); ++i) {
        lua_rawgeti(lua_, -1, static_cast<int>(i));
        if (lua_isstring(lua_, -1)) found.choices.emplace_back(lua_tostring(lua_, -1));
        lua_pop(lua_, 1);
      }
    }
    lua_settop(lua_, index_);
    return found;
  }

 private:
  Outcome outcome_of(const char* method, const std::string* text) {
    Outcome outcome;
    if (call(method, text, 2)) outcome = {lua_toboolean(lua_, -2) != 0, lua_toboolean(lua_, -1) != 0};
    lua_settop(lua_, index_);
    return outcome;
  }

  bool call(const char* method, const std::string* text, int results) {
    lua_getfield(lua_, index_, method);
    lua_pushvalue(lua_, index_);
    if (text) lua_pushlstring(lua_, text->data(), text->size());
    return calling::call(lua_, text ? 2 : 1, results);
  }

  lua_State* lua_;
  const int index_;
};

// Without a terminal, or without the editor.
class PlainLines final : public Lines {
 public:
  explicit PlainLines(bool prompts) : prompts_(prompts) {}

  Read read(const std::string& prompt, std::string& line) override {
    if (prompts_) std::fputs(prompt.c_str(), stdout);
    std::fflush(stdout);
    line.clear();
    for (int c; (c = std::getc(stdin)) != '\n';) {
      if (c != EOF) {
        line += static_cast<char>(c);
      } else if (std::ferror(stdin) && errno == EINTR) {
        std::clearerr(stdin);
        if (interruption::take()) return Read::Interrupted;
      } else {
        return line.empty() ? Read::End : Read::Line;
      }
    }
    return interruption::take() ? Read::Interrupted : Read::Line;
  }
  void remember(const std::string&) override {}

 private:
  const bool prompts_;
};

class Prompt {
 public:
  explicit Prompt(lua_State* L)
      : conversation_(L), terminal_(isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)), lines_(open_lines()) {}

  bool run() {
    bool fine = true;
    while (read_chunk()) {
      const Conversation::Outcome outcome = conversation_.evaluate(chunk_);
      const Conversation::Outcome delivered = conversation_.pump();
      fine = delivered.fine && outcome.fine && fine;
      interruption::take();
      std::fflush(stdout);
      if (outcome.leave || delivered.leave) return fine || terminal_;
    }
    if (terminal_) std::fputc('\n', stdout);
    return fine || terminal_;
  }

 private:
  std::unique_ptr<Lines> open_lines() {
#if MOONFLOW_LINE_EDITING
    if (terminal_) {
      EditorHost host;
      host.complete = [this](const std::string& before) { return conversation_.complete(chunk_ + before); };
      host.descriptor = [this] { return conversation_.descriptor(); };
      host.pump = [this] { return !conversation_.pump().leave; };
      return std::make_unique<Editor>(std::move(host), history_path());
    }
#endif
    return std::make_unique<PlainLines>(terminal_);
  }

  // Lines until they are complete, or wrong for good. False at the end of the input.
  bool read_chunk() {
    chunk_.clear();
    for (std::string line;;) {
      switch (lines_->read(chunk_.empty() ? "> " : ">> ", line)) {
        case Read::End:
          return !chunk_.empty();
        case Read::Interrupted:
          chunk_.clear();
          continue;
        case Read::Line:
          break;
      }
      chunk_ += line;
      const bool more = conversation_.incomplete(chunk_);
      if (interruption::take()) {
        chunk_.clear();
        continue;
      }
      if (!more) {
        lines_->remember(chunk_);
        return true;
      }
      chunk_ += '\n';
    }
  }

  Conversation conversation_;
  const bool terminal_;
  std::string chunk_;
  const std::unique_ptr<Lines> lines_;
};

}  // namespace

bool run_prompt(lua_State* L) {
  const bool fine = Prompt(L).run();
  lua_pop(L, 1);
  return fine;
}

}  // namespace moonflow
