// What every Lua function of `moonflow.core` shares: userdata boxes, one firewall between C++ exceptions and Lua
// errors, and strict readers of arguments. Used on the thread of its lua_State only.
//
// Every function has three phases. (1) It makes room for its result on the Lua stack, while no C++ object with a
// destructor is alive. (2) It works inside `protect`, where Lua is only read, by calls that cannot raise. (3) It pushes
// what it found. So a Lua error never crosses a frame with live C++ objects, and a C++ exception never crosses Lua's.
// What is too large to be a plain local in phase 3 lives in a box of its own (`keep`).
//
// Whatever takes memory from Lua may run finalizers, and they may call anything: release an array, fail, pull a
// completion. So what is pushed piece by piece is held by a box that no script can reach, or copied to the C stack.
#pragma once

#include <lua.hpp>

#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "engine/error.h"
#include "engine/op.h"
#include "engine/session.h"
#include "engine/tensor.h"

namespace moonflow::lua {

// ---- boxes ---------------------------------------------------------------------------------------------------

enum class Tag { None, Array, Shape, Text, Session, Graph, Plan, Prepared, Socket, Waiter, Reading };
constexpr int kTags = static_cast<int>(Tag::Reading) + 1;

// What the boxes of one tag have in common in a lua_State: no other object has its address.
struct Kind {
  int metatable_ref = LUA_NOREF;
};

// The first word is zero because other libraries take any userdata for their own and follow its first word: with a
// zero there they report a clean error instead of reading wild memory.
struct Header {
  void* zero = nullptr;
  const Kind* kind = nullptr;  // whose it is and what it holds; nullptr once it is finalized
};

template <class T>
struct Box {
  Header header;
  T value;
};

struct SessionBox {
  std::shared_ptr<Session> session;     // shared: graphs and plans keep it, and finalizers run in any order
  std::vector<Tensor> inputs, outputs;  // of an op that is being evaluated; kept as those of PlanBox are
};

struct GraphBox {
  std::shared_ptr<Session> session;
  std::unique_ptr<Graph> graph;
  std::string job;
};

struct PlanBox {
  std::shared_ptr<Session> session;  // before the plan, whose memory is of the session's device
  std::shared_ptr<Plan> plan;
  std::vector<Tensor> feeds, tapped;  // of a call under way; kept, so that the next one allocates nothing for them
};

struct PreparedBox {
  std::weak_ptr<Session> session;  // whose weights it takes, as long as there is one
  std::shared_ptr<PreparedCall> call;

  void publish() const {
    const std::shared_ptr<Session> open = session.lock();
    require(open && !open->closed(), ErrorCode::WrongState,
            "the session of this prepared call is closed; prepare it again");
    open->publish(call);
  }
};

template <class T>
constexpr Tag kTagOf = Tag::None;
template <>
inline constexpr Tag kTagOf<Tensor> = Tag::Array;
template <>
inline constexpr Tag kTagOf<Shape> = Tag::Shape;
template <>
inline constexpr Tag kTagOf<std::string> = Tag::Text;
template <>
inline constexpr Tag kTagOf<SessionBox> = Tag::Session;
template <>
inline constexpr Tag kTagOf<GraphBox> = Tag::Graph;
template <>
inline constexpr Tag kTagOf<PlanBox> = Tag::Plan;
template <>
inline constexpr Tag kTagOf<PreparedBox> = Tag::Prepared;

// An error on the C stack. Long messages are cut.
struct PlainError {
  ErrorCode code = ErrorCode::OutOfMemory;
  char message[4096] = "out of memory";
  char op[512] = "";
  char job[256] = "";
  char where[512] = "";

  PlainError() = default;
  explicit PlainError(const Error& error);
};

// One per lua_State: the first upvalue of every function of the module. When the lua_State closes it gives up what it
// owns, but stays usable, since finalizers run in any order and may still call the module.
struct State {
  std::shared_ptr<HostMemory> memory;  // shared with the blocks it gave
  InterruptFlag interrupted;           // of all sessions of this lua_State, or nullptr: each has its own
  void (*interrupt)() = nullptr;       // as that of Given
  std::shared_ptr<Session> newest;     // the session made last, until it is closed
  bool looks_at_each_poll = false;     // Lua looks at something else in each poll, so none may be spared it
  static constexpr int64_t kLeastWatermark = int64_t{64} << 20;
  int64_t collect_above = kLeastWatermark;  // live bytes at which the next array first collects garbage
  std::string own_folder;                   // chunk names of the library's own files start with it
  std::optional<Error> fault;               // on its way from `protect` to Lua
  Kind kinds[kTags];
  int methods_ref = LUA_NOREF;     // of arrays
  int properties_ref = LUA_NOREF;  // name of a property of arrays -> its number
  int dtypes_ref = LUA_NOREF;      // dtype -> its name, so that it need not be made a string again
  int error_ref = LUA_NOREF;       // the metatable of error tables
  int tostring_ref = LUA_NOREF;    // Lua's own tostring, to read 64-bit cdata

  Kind& kind(Tag tag) { return kinds[static_cast<int>(tag)]; }
  const Kind& kind(Tag tag) const { return kinds[static_cast<int>(tag)]; }
  // Frames of the library itself are not where the user's fault is.
  bool is_own(const char* source) const {
    return !own_folder.empty() && std::strncmp(source, own_folder.c_str(), own_folder.size()) == 0;
  }
  void note(Error error) noexcept { fault = std::move(error); }
  PlainError take_fault() noexcept;
  bool faults_with_memory() const { return fault && fault->code == ErrorCode::OutOfMemory; }
};

// What a host gives to the lua_State it opens the module in: set in the registry under kGivenKey, as a light userdata,
// while luaopen_moonflow_core runs.
struct Given {
  std::shared_ptr<HostMemory> memory;
  InterruptFlag interrupted;
  void (*interrupt)() = nullptr;  // stops the state's program, from any thread, where that can be
};
constexpr const char* kGivenKey = "moonflow.given";

inline State& state_of(lua_State* L) { return *static_cast<State*>(lua_touserdata(L, lua_upvalueindex(1))); }

inline void push_metatable(lua_State* L, Tag tag) {
  lua_rawgeti(L, LUA_REGISTRYINDEX, state_of(L).kind(tag).metatable_ref);
}

// Pushes an empty box; may raise for want of memory. Whoever has the state at hand hands it in, which spares looking
// it up.
template <class T>
T& push_box(lua_State* L, const State& state) {
  static_assert(std::is_nothrow_default_constructible_v<T>);
  const Kind& kind = state.kind(kTagOf<T>);
  auto* box = new (lua_newuserdata(L, sizeof(Box<T>))) Box<T>();
  box->header.kind = &kind;
  lua_rawgeti(L, LUA_REGISTRYINDEX, kind.metatable_ref);
  lua_setmetatable(L, -2);
  return box->value;
}
template <class T>
T& push_box(lua_State* L) {
  return push_box<T>(L, state_of(L));
}

// The box at `index`, or nullptr when something else is there. The header alone decides, and not the metatable, which a
// script may move to another userdata.
template <class T>
Box<T>* find_whole_box(lua_State* L, int index, const State& state) {
  auto* box = static_cast<Box<T>*>(lua_touserdata(L, index));
  if (box == nullptr || lua_objlen(L, index) != sizeof(Box<T>)) return nullptr;  // a light one has no length
  return box->header.kind == &state.kind(kTagOf<T>) ? box : nullptr;
}
template <class T>
T* find_box(lua_State* L, int index, const State& state) {
  Box<T>* const box = find_whole_box<T>(L, index, state);
  return box ? &box->value : nullptr;
}
template <class T>
T* find_box(lua_State* L, int index) {
  return find_box<T>(L, index, state_of(L));
}

// The box at `index`, where this call has pushed it.
template <class T>
T& box_pushed(lua_State* L, int index) {
  return static_cast<Box<T>*>(lua_touserdata(L, index))->value;
}

// The finalizer of a box. Harmless when a script calls it, twice or with something else.
template <class T>
int finalize(lua_State* L) {
  if (Box<T>* box = find_whole_box<T>(L, 1, state_of(L))) {
    box->header.kind = nullptr;
    box->value.~T();
  }
  return 0;
}

// A C++ object that lives on the Lua stack until it is collected, for results that are pushed piece by piece.
template <class T>
T& keep(lua_State* L) {
  static_assert(std::is_nothrow_default_constructible_v<T>);
  lua_createtable(L, 0, 1);  // the metatable first: nothing may raise once the object is there
  lua_pushcfunction(L, [](lua_State* state) {
    if (auto* kept = static_cast<T*>(lua_touserdata(state, 1))) kept->~T();
    return 0;
  });
  lua_setfield(L, -2, "__gc");
  T* kept = new (lua_newuserdata(L, sizeof(T))) T();
  lua_insert(L, -2);
  lua_setmetatable(L, -2);
  return *kept;
}

// ---- the firewall --------------------------------------------------------------------------------------------

// Pushes an error table: code, message, op, job, where.
void push_error(lua_State* L, const PlainError& error);
// Raises the noted fault as an error table; where the error does not know its line, it is the script's that called.
[[noreturn]] void raise(lua_State* L);

// May run finalizers.
void collect_garbage(lua_State* L);

template <class Work>
bool attempt(State& state, Work& work) {
  try {
    work();
    return true;
  } catch (const std::exception&) {
    state.note(current_error());
    return false;
  }
}

// Runs `work`; what it throws becomes a Lua error once its frames are gone.
template <class Work>
void protect(lua_State* L, Work&& work) {
  if (!attempt(state_of(L), work)) raise(L);
}

// The same two for work that takes memory and can be run again: they collect garbage and try once more.
template <class Work>
bool attempt_allocating(lua_State* L, State& state, Work& work) {
  if (attempt(state, work)) return true;
  if (!state.faults_with_memory()) return false;
  state.take_fault();
  collect_garbage(L);
  return attempt(state, work);
}
template <class Work>
void protect_allocating(lua_State* L, Work&& work) {
  if (!attempt_allocating(L, state_of(L), work)) raise(L);
}

// ---- readers: for phase 2, so they throw Error and never raise --------------------------------------------------

// "a string", "nil", "an ndarray float32 (5)", for messages.
std::string describe(lua_State* L, int index);

// Up to here, on both sides of 0, a number of Lua has every integer.
constexpr int64_t kExact = int64_t{1} << 53;

// A number without a fraction within +-kExact, or a 64-bit integer cdata. `what` names the argument in messages.
int64_t integer_at(lua_State* L, int index, const char* what);
int64_t integer_at(lua_State* L, int index, const char* what, int64_t low, int64_t high);
bool find_integer(lua_State* L, int index, int64_t& value);
double number_at(lua_State* L, int index, const char* what);
bool flag_at(lua_State* L, int index, const char* what);
std::string_view string_at(lua_State* L, int index, const char* what);
std::string_view optional_string_at(lua_State* L, int index, const char* what);
std::vector<std::string> strings_at(lua_State* L, int index, const char* what);  // a list; `what` each of them is
DType dtype_at(lua_State* L, int index, const char* what);
void table_at(lua_State* L, int index, const char* what);
// The same place of the stack, counted from the bottom, where what is pushed does not move it.
inline int from_bottom(lua_State* L, int index) { return index < 0 ? lua_gettop(L) + index + 1 : index; }
// Calls read(place) with the place of each entry of the list at `index` in turn.
template <class Read>
void each_at(lua_State* L, int index, const char* what, const Read& read) {
  table_at(L, index, what);
  const int list = from_bottom(L, index), count = static_cast<int>(lua_objlen(L, index));
  for (int i = 1; i <= count; ++i) {
    lua_rawgeti(L, list, i);
    read(lua_gettop(L));
    lua_pop(L, 1);
  }
}
// What of the table at `index` lies beyond a list of `size` entries, as the end of a message: it would be lost without
// a word, since a list of Lua ends before some hole. Empty where there is nothing.
std::string flaw_of_list(lua_State* L, int index, int64_t size);
// How many entries the list at `index` has before the first that is nil, which Lua's own length need not be.
int64_t entries_at(lua_State* L, int index);
// The size of the list at `index`, which must hold nothing else.
int64_t list_size_at(lua_State* L, int index, const char* what);
// A path: a string without a zero byte, and not empty.
std::string path_at(lua_State* L, int index);

// The sizes in a list, a shape, or the single number at `index`.
std::vector<int64_t> dims_at(lua_State* L, int index, const char* what);
Shape shape_at(lua_State* L, int index, const char* what);

// The array at `index`; one that was released is an error.
Tensor& array_at(lua_State* L, int index, const char* what, const State& state);
inline Tensor& array_at(lua_State* L, int index, const char* what) { return array_at(L, index, what, state_of(L)); }

template <class T>
T& box_at(lua_State* L, int index, const char* what) {
  T* box = find_box<T>(L, index);
  if (box == nullptr) fail(ErrorCode::InvalidArgument, "expected ", what, ", got ", describe(L, index));
  return *box;
}

// ---- writers: phases 1 and 3 -------------------------------------------------------------------------------------

// Collects garbage where so much is alive of what Lua sees only small boxes of that it is time.
void collect_where_due(lua_State* L, State& state);
// An array box to be filled in phase 2. Collects garbage first where that is due.
Tensor& push_array(lua_State* L, State& state);
inline Tensor& push_array(lua_State* L) { return push_array(L, state_of(L)); }
inline void push_string(lua_State* L, std::string_view string) { lua_pushlstring(L, string.data(), string.size()); }

// Pushes the string that `make` puts together of what is on the stack.
template <class Make>
int push_bytes(lua_State* L, const Make& make) {
  std::string& bytes = push_box<std::string>(L);
  const int top = lua_gettop(L);
  protect_allocating(L, [&] {
    lua_settop(L, top);  // a first attempt may have left something
    bytes = make();
  });
  push_string(L, bytes);
  return 1;
}
// Fields of the table on top of the stack.
inline void set_number(lua_State* L, const char* field, double value) {
  lua_pushnumber(L, value);
  lua_setfield(L, -2, field);
}
inline void set_flag(lua_State* L, const char* field, bool value) {
  lua_pushboolean(L, value);
  lua_setfield(L, -2, field);
}
inline void set_string(lua_State* L, const char* field, std::string_view value) {
  push_string(L, value);
  lua_setfield(L, -2, field);
}

// Pushes a list of what push(L, element) pushes for each element.
template <class List, class Push>
void push_list(lua_State* L, const List& list, const Push& push) {
  lua_createtable(L, static_cast<int>(list.size()), 0);
  int i = 0;
  for (const auto& element : list) {
    push(L, element);
    lua_rawseti(L, -2, ++i);
  }
}
template <class List, class Push>
void set_list(lua_State* L, const char* field, const List& list, const Push& push) {
  push_list(L, list, push);
  lua_setfield(L, -2, field);
}

// Sets functions of `list` into the table on the top of the stack, with the state as upvalue.
void set_functions(lua_State* L, State& state, const luaL_Reg* list);
// Makes the metatable of a kind of box and notes it in the state; leaves it on the stack.
void new_metatable(lua_State* L, State& state, Tag tag, lua_CFunction finalizer, const char* name);
// The metatable of a kind of box that has methods only, closed to scripts; leaves nothing on the stack.
void new_class(lua_State* L, State& state, Tag tag, lua_CFunction finalizer, const char* name, const luaL_Reg* methods);

}  // namespace moonflow::lua
