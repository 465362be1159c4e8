// Unix sockets that never wait, and the one descriptor an event loop looks at for everything that Moonflow waits for.
// A socket serves its owner only: the file has mode 0600, and who connects must be the same user. What cannot be sent
// at once is kept, up to a bound. No signal is ever raised.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>

#include "bindings/file.h"
#include "bindings/lua_module.h"

namespace moonflow::lua {

namespace {

constexpr size_t kKept = 1 << 20;  // bytes that wait to be sent
constexpr size_t kRead = 1 << 16;

// A descriptor with its owner, and what belongs to it.
struct SocketBox {
  int descriptor = -1;
  std::string path;      // of a listening one, removed with it
  dev_t device = 0;      // of the path: what is there later may be another's
  ino_t file = 0;
  std::string outgoing;  // not sent yet
  pid_t process = ::getpid();

  SocketBox() = default;
  SocketBox(const SocketBox&) = delete;
  SocketBox& operator=(const SocketBox&) = delete;
  ~SocketBox() { close(); }
  void close() {
    if (descriptor < 0) return;
    ::close(descriptor);
    descriptor = -1;
    struct stat there;
    const bool is_ours = !path.empty() && process == ::getpid() && ::lstat(path.c_str(), &there) == 0 &&
                         there.st_dev == device && there.st_ino == file;  // a fork's is still served
    if (is_ours) ::unlink(path.c_str());
    path.clear();
    outgoing.clear();
  }
};

struct WaiterBox {
  int descriptor = -1;
  pid_t process = ::getpid();

  WaiterBox() = default;
  WaiterBox(const WaiterBox&) = delete;
  WaiterBox& operator=(const WaiterBox&) = delete;
  // A fork shares with its parent what is watched, so it gets a waiter of its own under the same number.
  void make() {
    const int made = ::epoll_create1(EPOLL_CLOEXEC);
    if (made < 0) fail_errno("epoll", "make");
    if (descriptor < 0) {
      descriptor = made;
    } else {
      ::dup3(made, descriptor, O_CLOEXEC);
      ::close(made);
    }
    process = ::getpid();
  }
  ~WaiterBox() {
    if (descriptor >= 0) ::close(descriptor);
  }
};

}  // namespace

template <>
inline constexpr Tag kTagOf<SocketBox> = Tag::Socket;
template <>
inline constexpr Tag kTagOf<WaiterBox> = Tag::Waiter;

namespace {

SocketBox& self(lua_State* L) { return box_at<SocketBox>(L, 1, "a socket"); }

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  require(path.size() < sizeof address.sun_path, ErrorCode::InvalidArgument, "the path of a socket has at most ",
          sizeof address.sun_path - 1, " bytes, '", path, "' is longer");
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

int new_socket() {
  const int made = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (made < 0) fail_errno("socket", "make");
  return made;
}

bool connect_to(int descriptor, const sockaddr_un& address) {
  return ::connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

// Removes the socket of a process that ended without it. Anything else at that path is an error.
void clear_place(const std::string& path, const sockaddr_un& address) {
  struct stat there {};
  if (::lstat(path.c_str(), &there) != 0) return;
  require(S_ISSOCK(there.st_mode), ErrorCode::Io, "'", path, "' is there already, and is no socket");
  SocketBox probe;
  probe.descriptor = new_socket();
  require(!connect_to(probe.descriptor, address) && errno == ECONNREFUSED, ErrorCode::Io, "the socket '", path,
          "' is in use by another process");
  ::unlink(path.c_str());
}

// core.listen(path) -> socket
int listen(lua_State* L) {
  lua_settop(L, 1);
  SocketBox& box = push_box<SocketBox>(L);
  protect(L, [&] {
    const std::string path = path_at(L, 1);
    const sockaddr_un address = address_of(path);
    clear_place(path, address);
    box.descriptor = new_socket();
    ::fchmod(box.descriptor, 0600);  // the mode that bind gives to the file
    if (::bind(box.descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      fail_errno(path, "bind");
    struct stat made {};
    if (::lstat(path.c_str(), &made) != 0) fail_errno(path, "bind");
    box.path = path;
    box.device = made.st_dev;
    box.file = made.st_ino;
    if (::chmod(path.c_str(), 0600) != 0 || ::listen(box.descriptor, 8) != 0) fail_errno(path, "listen on");
  });
  return 1;
}

// core.connect(path) -> socket
int connect(lua_State* L) {
  lua_settop(L, 1);
  SocketBox& box = push_box<SocketBox>(L);
  protect(L, [&] {
    const std::string path = path_at(L, 1);
    box.descriptor = new_socket();
    if (!connect_to(box.descriptor, address_of(path))) fail_errno(path, "connect to");
  });
  return 1;
}

bool is_same_user(int descriptor) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::geteuid();
}

// socket:accept() -> socket, or nil when nobody waits. Other users are sent away.
int accept(lua_State* L) {
  lua_settop(L, 1);
  SocketBox& box = push_box<SocketBox>(L);
  protect(L, [&] {
    for (;;) {
      box.descriptor = ::accept4(self(L).descriptor, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (box.descriptor < 0 || is_same_user(box.descriptor)) return;
      box.close();
    }
  });
  return box.descriptor < 0 ? 0 : 1;
}

// socket:read() -> text, "" when nothing has come; nil when the other side is gone
int read(lua_State* L) {
  lua_settop(L, 1);
  std::string& text = push_box<std::string>(L);
  bool gone = false;
  protect(L, [&] {
    const SocketBox& box = self(L);
    text.resize(kRead);
    const ssize_t got = ::recv(box.descriptor, text.data(), text.size(), 0);
    gone = got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
    text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  });
  if (gone) return 0;
  push_string(L, text);
  return 1;
}

// Sends what waits, as far as it goes. False when the other side is gone.
bool flush(SocketBox& box) {
  size_t sent = 0;
  while (sent < box.outgoing.size()) {
    const ssize_t step = ::send(box.descriptor, box.outgoing.data() + sent, box.outgoing.size() - sent, MSG_NOSIGNAL);
    if (step < 0 && errno == EINTR) continue;
    if (step < 0 && errno != EAGAIN) return false;
    if (step < 0) break;
    sent += static_cast<size_t>(step);
  }
  box.outgoing.erase(0, sent);
  return true;
}

// socket:write(text) -> bytes that still wait; nil, "full" when too much waits and nothing of this was taken; nil,
// "gone"
int write(lua_State* L) {
  const char* problem = nullptr;
  size_t waiting = 0;
  protect(L, [&] {
    SocketBox& box = self(L);
    const std::string_view text = string_at(L, 2, "text");
    if (box.descriptor < 0 || !flush(box)) {
      problem = "gone";
    } else if (!text.empty() && box.outgoing.size() + text.size() > kKept) {
      problem = "full";
    } else {
      box.outgoing += text;
      if (!flush(box)) problem = "gone";
    }
    waiting = box.outgoing.size();
  });
  if (problem) {
    lua_pushnil(L);
    lua_pushstring(L, problem);
    return 2;
  }
  lua_pushnumber(L, static_cast<double>(waiting));
  return 1;
}

int descriptor(lua_State* L) {
  int found = -1;
  protect(L, [&] { found = self(L).descriptor; });
  lua_pushnumber(L, found);
  return 1;
}

int close(lua_State* L) {
  protect(L, [&] { self(L).close(); });
  return 0;
}

// core.waiter() -> waiter, whose descriptor is readable while one of those it watches is ready
int make_waiter(lua_State* L) {
  lua_settop(L, 0);
  WaiterBox& box = push_box<WaiterBox>(L);
  protect(L, [&] { box.make(); });
  return 1;
}

WaiterBox& waiter(lua_State* L) {
  WaiterBox& box = box_at<WaiterBox>(L, 1, "a waiter");
  if (box.process != ::getpid()) box.make();
  return box;
}

// waiter:watch(descriptor, also_for_writing)
int watch(lua_State* L) {
  protect(L, [&] {
    const int watched = static_cast<int>(integer_at(L, 2, "descriptor", 0, INT_MAX));
    epoll_event event{};
    event.events = EPOLLIN | (lua_toboolean(L, 3) ? EPOLLOUT : 0u);
    const int of = waiter(L).descriptor;
    if (::epoll_ctl(of, EPOLL_CTL_MOD, watched, &event) != 0 && ::epoll_ctl(of, EPOLL_CTL_ADD, watched, &event) != 0)
      fail_errno("descriptor", "watch a");
  });
  return 0;
}

// waiter:forget(descriptor); a closed one is forgotten already
int forget(lua_State* L) {
  protect(L, [&] {
    const int watched = static_cast<int>(integer_at(L, 2, "descriptor", 0, INT_MAX));
    ::epoll_ctl(waiter(L).descriptor, EPOLL_CTL_DEL, watched, nullptr);
  });
  return 0;
}

// waiter:wait(timeout_ms) -> boolean
int wait(lua_State* L) {
  bool ready = false;
  protect(L, [&] {
    epoll_event event{};
    ready = ::epoll_wait(waiter(L).descriptor, &event, 1, static_cast<int>(integer_at(L, 2, "ms", 0, INT_MAX))) > 0;
  });
  lua_pushboolean(L, ready);
  return 1;
}

int waiter_descriptor(lua_State* L) {
  int found = -1;
  protect(L, [&] { found = waiter(L).descriptor; });
  lua_pushnumber(L, found);
  return 1;
}

}  // namespace

void add_socket(lua_State* L, State& state) {
  static const luaL_Reg kFunctions[] = {
      {"listen", listen}, {"connect", connect}, {"waiter", make_waiter}, {nullptr, nullptr}};
  static const luaL_Reg kSocket[] = {{"accept", accept}, {"read", read},   {"write", write},
                                     {"fd", descriptor}, {"close", close}, {nullptr, nullptr}};
  static const luaL_Reg kWaiter[] = {
      {"watch", watch}, {"forget", forget}, {"wait", wait}, {"fd", waiter_descriptor}, {nullptr, nullptr}};
  set_functions(L, state, kFunctions);
  new_class(L, state, Tag::Socket, finalize<SocketBox>, "moonflow socket", kSocket);
  new_class(L, state, Tag::Waiter, finalize<WaiterBox>, "moonflow waiter", kWaiter);
}

}  // namespace moonflow::lua
