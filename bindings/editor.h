// One line after the other from a terminal, with editing, history and completion, while other things go on: the editor
// waits for keys and for a descriptor together, and what is printed meanwhile stands above the half-typed line.
// On libedit; used by the launcher's thread alone.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace moonflow {

enum class Read { Line, Interrupted, End };

// Where a prompt has its lines from: the editor, or what reads them without one.
class Lines {
 public:
  virtual ~Lines() = default;
  virtual Read read(const std::string& prompt, std::string& line) = 0;
  // Takes a whole chunk, of one line or several, into the history, where there is one.
  virtual void remember(const std::string& chunk) = 0;
};

struct Completions {
  std::string word;                  // the end of the text, which is to be completed
  std::vector<std::string> choices;  // sorted; each begins with the word
};

// What the editor asks of whoever uses it.
struct EditorHost {
  std::function<Completions(const std::string& before_cursor)> complete;
  std::function<int()> descriptor;  // readable when `pump` has something to do; -1: there is none
  std::function<bool()> pump;       // may print; false: there is nothing more to read for
};

class Editor final : public Lines {
 public:
  // `history`: the file that keeps what was typed; empty for none.
  Editor(EditorHost host, const std::string& history);
  ~Editor() override;

  Read read(const std::string& prompt, std::string& line) override;
  void remember(const std::string& chunk) override;

 private:
  class Terminal;
  class History;
  std::unique_ptr<History> history_;
  std::unique_ptr<Terminal> terminal_;
};

// $MOONFLOW_HISTORY, else moonflow/history in the XDG state folder; empty when there is no home.
std::string history_path();

}  // namespace moonflow
