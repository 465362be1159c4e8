#include "bindings/lua_attrs.h"

namespace moonflow::lua {

namespace {

constexpr int kDepth = 8;              // of nested lists
constexpr int64_t kNumbers = 1 << 20;  // in one attribute

// Reads the numbers of a nested list in order, through `read(index)` of one element.
template <class Read>
void flatten(lua_State* L, int index, const char* what, int depth, Read& read) {
  require(depth <= kDepth, ErrorCode::InvalidArgument, what, ": lists are nested more than ", kDepth, " deep");
  const int64_t count = list_size_at(L, index, what);
  require(count <= kNumbers, ErrorCode::InvalidArgument, what, ": a list of ", count, " numbers is too long");
  each_at(L, index, what, [&](int at) {
    if (lua_type(L, at) == LUA_TTABLE)
      flatten(L, at, what, depth + 1, read);
    else
      read(at);
  });
}

Ints ints_at(lua_State* L, int index, const char* what) {
  if (const Shape* shape = find_box<Shape>(L, index)) return shape->dims();
  Ints ints;
  const auto read = [&](int at) { ints.push_back(integer_at(L, at, what)); };
  if (lua_type(L, index) == LUA_TTABLE)
    flatten(L, index, what, 1, read);
  else
    read(index);
  return ints;
}

Floats floats_at(lua_State* L, int index, const char* what) {
  Floats floats;
  const auto read = [&](int at) { floats.push_back(number_at(L, at, what)); };
  if (lua_type(L, index) == LUA_TTABLE)
    flatten(L, index, what, 1, read);
  else
    read(index);
  return floats;
}

AttrValue attr_at(lua_State* L, int index, const AttrValue& like, const char* what) {
  struct Visitor {
    lua_State* L;
    int index;
    const char* what;
    AttrValue operator()(bool) const { return flag_at(L, index, what); }
    AttrValue operator()(int64_t) const { return integer_at(L, index, what); }
    AttrValue operator()(double) const { return number_at(L, index, what); }
    AttrValue operator()(const std::string&) const { return std::string(string_at(L, index, what)); }
    AttrValue operator()(DType) const { return dtype_at(L, index, what); }
    AttrValue operator()(const Ints&) const { return ints_at(L, index, what); }
    AttrValue operator()(const Floats&) const { return floats_at(L, index, what); }
  };
  return std::visit(Visitor{L, index, what}, like);
}

}  // namespace

Attrs attrs_at(lua_State* L, int index, const OpDef& op) {
  Attrs attrs;
  if (lua_isnoneornil(L, index)) return attrs;
  table_at(L, index, "attributes");
  lua_pushnil(L);
  while (lua_next(L, index) != 0) {
    const std::string name(string_at(L, -2, "name of an attribute"));
    const AttrDef* def = op.attr(name);
    if (def == nullptr) {
      std::vector<std::string> names;
      for (const AttrDef& known : op.attrs) names.push_back(known.name);
      fail(ErrorCode::InvalidArgument, "has no option '", name, "'", did_you_mean(name, names));
    }
    if (!def->table_form.empty() && (lua_type(L, -1) == LUA_TTABLE || lua_type(L, -1) == LUA_TNUMBER))
      def = op.attr(def->table_form);
    char what[80];  // an option that is in no error costs no allocation
    std::snprintf(what, sizeof what, "option '%s'", name.c_str());
    attrs.set(def->name, attr_at(L, -1, def->fallback, what));
    lua_pop(L, 1);
  }
  return attrs;
}

void push_attr(lua_State* L, const AttrValue& value) {
  struct Visitor {
    lua_State* L;
    void operator()(bool flag) const { lua_pushboolean(L, flag); }
    void operator()(int64_t integer) const { lua_pushnumber(L, static_cast<double>(integer)); }
    void operator()(double number) const { lua_pushnumber(L, number); }
    void operator()(const std::string& string) const { push_string(L, string); }
    void operator()(DType dtype) const { lua_pushstring(L, name(dtype)); }
    void operator()(const Ints& ints) const { push_list(L, ints, lua_pushnumber); }
    void operator()(const Floats& floats) const { push_list(L, floats, lua_pushnumber); }
  };
  std::visit(Visitor{L}, value);
}

const char* attr_type_name(const AttrValue& value) {
  static constexpr const char* kNames[] = {"bool", "int", "float", "string", "dtype", "ints", "floats"};
  static_assert(std::variant_size_v<AttrValue> == std::size(kNames));
  return kNames[value.index()];
}

}  // namespace moonflow::lua
