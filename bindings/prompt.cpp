#include "bindings/prompt.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>

#include "bindings/calling.h"
#include "bindings/interruption.h"
#if MOONFLOW_LINE_EDITING
#include "bindings/editor.h"
#else
namespace moonflow {
enum class Read { Line, Interrupted, End };
}
#endif

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
  Outcome evaluate(const std::string& text) {
    Outcome outcome;
    if (call("evaluate", &text, 2)) outcome = {lua_toboolean(lua_, -2) != 0, lua_toboolean(lua_, -1) != 0};
    lua_settop(lua_, index_);
    return outcome;
  }

  Outcome pump() {
    Outcome outcome;
    if (call("pump", nullptr, 2)) outcome = {lua_toboolean(lua_, -2) != 0, lua_toboolean(lua_, -1) != 0};
    lua_settop(lua_, index_);
    return outcome;
  }

  int descriptor() {
    const int found = call("descriptor", nullptr, 1) && lua_isnumber(lua_, -1) ? lua_tointeger(lua_, -1) : -1;
    lua_settop(lua_, index_);
    return found;
  }

#if MOONFLOW_LINE_EDITING
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
#endif

 private:
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
Read read_plain(const char* prompt, std::string& line) {
  std::fputs(prompt, stdout);
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

class Prompt {
 public:
  explicit Prompt(lua_State* L) : conversation_(L), terminal_(isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)) {
#if MOONFLOW_LINE_EDITING
    if (terminal_) {
      EditorHost host;
      host.complete = [this](const std::string& before) { return conversation_.complete(chunk_ + before); };
      host.descriptor = [this] { return conversation_.descriptor(); };
      host.pump = [this] { return !conversation_.pump().leave; };
      editor_ = std::make_unique<Editor>(std::move(host), history_path());
    }
#endif
  }

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
  // Lines until they are complete, or wrong for good. False at the end of the input.
  bool read_chunk() {
    chunk_.clear();
    for (std::string line;;) {
      switch (read_line(chunk_.empty() ? "> " : ">> ", line)) {
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
#if MOONFLOW_LINE_EDITING
        if (editor_) editor_->remember(chunk_);
#endif
        return true;
      }
      chunk_ += '\n';
    }
  }

  Read read_line(const char* prompt, std::string& line) {
#if MOONFLOW_LINE_EDITING
    if (editor_) return editor_->read(prompt, line);
#endif
    return read_plain(terminal_ ? prompt : "", line);
  }

  Conversation conversation_;
  const bool terminal_;
  std::string chunk_;
#if MOONFLOW_LINE_EDITING
  std::unique_ptr<Editor> editor_;
#endif
};

}  // namespace

bool run_prompt(lua_State* L) {
  const bool fine = Prompt(L).run();
  lua_pop(L, 1);
  return fine;
}

}  // namespace moonflow
