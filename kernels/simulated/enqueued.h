// What is enqueued on a simulated card and not done yet: pieces of work, marks of events, graphs.
#pragma once

#include "kernels/simulated/runtime.h"

namespace moonflow::cuda::simulated {

struct SimulatedRuntime::Piece {
  std::string name;
  std::function<void()> work;
  std::vector<Range> reads = {}, writes = {};
};

// An event as it was recorded once: in a stream, or in a graph that is being captured.
struct SimulatedRuntime::Mark {
  bool done = false;
  Clock clock;
  std::shared_ptr<Capture> capture;
  std::vector<int> nodes;
};

struct SimulatedRuntime::Event {
  std::shared_ptr<Mark> latest;  // none before the first
};

struct Node {
  std::vector<int> after;  // nodes
  int branch;              // 0 is that of the stream whose capture it is
};

struct SimulatedRuntime::Capture {
  std::thread::id thread;
  Queue* origin;
  bool ended = false;
  std::string spoilt_by;  // nothing: it is whole
  std::vector<Piece> pieces;
  std::vector<Node> nodes;       // by piece
  std::vector<Queue*> branches;  // the streams that take part
};

struct SimulatedRuntime::Graph {
  std::vector<Piece> pieces;
  std::vector<Node> nodes;
  std::vector<int> lines;            // by branch; that of branch 0 is the stream's
  std::shared_ptr<Mark> last_start;  // a graph waits for itself
};

struct SimulatedRuntime::Item {
  enum Kind { Work, Record, Wait, Start } kind;
  Clock host = {};  // what the host knew when it enqueued this
  Piece piece = {};
  std::shared_ptr<Mark> mark = nullptr;
  // Of each piece: the work's, or the graph's by node.
  std::vector<Uses> uses = {};
  // Of a graph that is under way.
  std::shared_ptr<Graph> graph = nullptr;
  std::shared_ptr<Mark> before = nullptr;  // its start before this one
  bool begun = false;
  std::vector<int> ready = {};
  std::vector<int> missing = {};  // by node: how many it still waits for
  std::vector<Clock> after = {};  // by node
  int left = 0;
};

struct SimulatedRuntime::Queue {
  SimulatedRuntime& runtime;
  int number;
  int line;
  std::deque<Item> items = {};
  Clock clock = {};
  std::vector<Range> reads = {}, writes = {};  // what launches touch
  std::shared_ptr<Capture> capture = nullptr;
  std::vector<int> last_nodes = {};  // of the capture

  std::string name() const { return text("stream ", number); }
};

}  // namespace moonflow::cuda::simulated
