// Files as Lua functions: folders, text, JSON, npy, npz, IDX, sounds, OFRecord, safetensors, checkpoints.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "bindings/checkpoint.h"
#include "bindings/checkpoint_directory.h"
#include "bindings/file.h"
#include "bindings/idx.h"
#include "bindings/lua_json.h"
#include "bindings/lua_module.h"
#include "bindings/npy.h"
#include "bindings/npz.h"
#include "bindings/ofrecord.h"
#include "bindings/safetensors.h"
#include "bindings/text_rows.h"
#include "bindings/wav.h"

namespace moonflow::lua {

namespace {

// core.first_bytes(path, count): what a regular file begins with, at most so many bytes.
int first_bytes(lua_State* L) {
  lua_settop(L, 2);
  std::string& bytes = push_box<std::string>(L);
  protect(L, [&] {
    const std::string path = path_at(L, 1);
    const int64_t count = integer_at(L, 2, "count", 0, 4096);
    FileSource source(path);
    bytes.resize(static_cast<size_t>(std::min(count, source.size())));
    source.read(bytes.data(), static_cast<int64_t>(bytes.size()));
  });
  push_string(L, bytes);
  return 1;
}

// ---- folders -------------------------------------------------------------------------------------------------

// core.folder_names(path) -> names of files, names of folders; both sorted, and what links lead to
int folder_names(lua_State* L) {
  lua_settop(L, 1);
  auto& files = keep<std::vector<std::string>>(L);
  auto& folders = keep<std::vector<std::string>>(L);
  protect(L, [&] {
    const std::string path = path_at(L, 1);
    const Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder) fail_errno(path, "list");
    for (const std::string& name : names_in(folder, path)) {
      struct stat facts;
      if (::fstatat(folder.get(), name.c_str(), &facts, 0) != 0) continue;  // a link to nowhere, or gone meanwhile
      if (S_ISDIR(facts.st_mode)) folders.push_back(name);
      if (S_ISREG(facts.st_mode)) files.push_back(name);
    }
  });
  push_list(L, files, push_string);
  push_list(L, folders, push_string);
  return 2;
}

// ---- text ----------------------------------------------------------------------------------------------------

// core.text_read(path, last or nil) -> all bytes of a regular file, or at most so many, the last ones; its size
int text_read(lua_State* L) {
  lua_settop(L, 2);
  std::string& text = push_box<std::string>(L);
  int64_t size = 0;
  protect_allocating(L, [&] {
    FileSource source(path_at(L, 1));
    size = source.size();
    if (!lua_isnil(L, 2)) source.seek(size - std::min(size, integer_at(L, 2, "last", 0, INT64_MAX)));
    text = source.read_rest();
  });
  push_string(L, text);
  lua_pushnumber(L, static_cast<double>(size));
  return 2;
}

// core.text_cut(path, size): the file keeps its first bytes, so many
int text_cut(lua_State* L) {
  protect(L, [&] {
    const std::string path = path_at(L, 1);
    if (::truncate(path.c_str(), integer_at(L, 2, "size", 0, INT64_MAX)) != 0) fail_errno(path, "shorten");
  });
  return 0;
}

// core.text_write(path, text): in the place of what was there
int text_write(lua_State* L) {
  protect(L, [&] {
    const std::string path = path_at(L, 1);
    replace_file(path, string_at(L, 2, "text"), nullptr, 0);
  });
  return 0;
}

// core.text_append(path, text, [head]): behind what is there, in one piece, so that whoever reads meanwhile, or after
// the process was killed, sees all of it or nothing; with the head before it where nothing is there
int text_append(lua_State* L) {
  protect(L, [&] {
    const std::string path = path_at(L, 1);
    std::string text(string_at(L, 2, "text"));
    Descriptor file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0666));
    struct stat there;
    if (!file || ::fstat(file.get(), &there) != 0) fail_errno(path, "write");
    if (there.st_size == 0) text.insert(0, optional_string_at(L, 3, "head"));
    write_all(file.get(), path, text.data(), static_cast<int64_t>(text.size()));
    close_written(std::move(file), path);
  });
  return 0;
}

// core.text_rows(array, first, rows, fmt, delimiter, called) -> lines of text, of rows that are there
int text_rows(lua_State* L) {
  lua_settop(L, 6);
  auto& text = keep<std::string>(L);
  protect_allocating(L, [&] {
    const Tensor& array = array_at(L, 1, "array");
    require(array.shape().rank() == 2, ErrorCode::ShapeMismatch, "rows are those of an array of rank 2");
    const int64_t all = array.shape()[0], first = integer_at(L, 2, "first", 0, all);
    const int64_t rows = std::min(integer_at(L, 3, "rows", 0, INT64_MAX), all - first);
    blaming(std::string(string_at(L, 6, "called")), "", [&] {
      const NumberFormat format(string_at(L, 4, "fmt"));
      text = moonflow::text_rows(array, first, rows, format, string_at(L, 5, "delimiter"));
    });
  });
  push_string(L, text);
  return 1;
}

// core.json_read(text) -> value, or nil and what is wrong with it; a null is nil
int json_read(lua_State* L) {
  lua_settop(L, 1);
  Json& value = keep<Json>(L);
  JsonFault& fault = keep<JsonFault>(L);
  bool fine = false;
  protect(L, [&] { fine = read_json(string_at(L, 1, "text"), value, fault); });
  if (fine) {
    push_json(L, value);
    return 1;
  }
  lua_pushnil(L);
  push_string(L, fault.what);
  return 2;
}

// core.json_write(value, what or nil) -> text on one line, keys in their order. Bytes that are not UTF-8 become U+FFFD;
// where it is said what the value is, they are an error, as is all else, which then begins so.
int json_write(lua_State* L) {
  lua_settop(L, 2);
  std::string& text = push_box<std::string>(L);
  protect(L, [&] {
    const std::string what(lua_isnil(L, 2) ? "value" : string_at(L, 2, "what"));
    const InvalidUtf8 invalid = lua_isnil(L, 2) ? InvalidUtf8::Replace : InvalidUtf8::Refuse;
    const Json value = json_at(L, 1, what.c_str());
    text = prefixing([&] { return write_json(value, JsonStyle::Line, invalid); }, what);
  });
  push_string(L, text);
  return 1;
}

// ---- arrays --------------------------------------------------------------------------------------------------

// core.npy_read(path) -> array, and so on
template <Tensor (*read)(const std::string&, const std::shared_ptr<HostMemory>&)>
int array_read(lua_State* L) {
  lua_settop(L, 1);
  Tensor& array = push_array(L);
  protect_allocating(L, [&] { array = read(path_at(L, 1), state_of(L).memory); });
  return 1;
}

// What errors call a string that is like a file.
constexpr const char* kBytes = "(bytes)";

// core.npy_decode(bytes) -> array
int npy_decode(lua_State* L) {
  lua_settop(L, 1);
  Tensor& array = push_array(L);
  protect_allocating(L, [&] {
    MemorySource source(string_at(L, 1, "bytes"), kBytes);
    array = read_npy(source, state_of(L).memory);
  });
  return 1;
}

// core.npy_encode(ndarray) -> bytes
int npy_encode(lua_State* L) {
  return push_bytes(L, [&] {
    const Tensor array = array_at(L, 1, "array");
    return npy_header(array.type()).append(array.data<char>(), static_cast<size_t>(array.bytes()));
  });
}

int npy_write(lua_State* L) {
  protect(L, [&] {
    const std::string path = path_at(L, 1);
    const Tensor array = array_at(L, 2, "array");
    write_npy(path, array);
  });
  return 0;
}

// core.wav_read(path, raw) -> samples, rate; core.wav_decode(bytes, raw) -> samples, rate
template <bool is_file>
int wav_read(lua_State* L) {
  lua_settop(L, 2);
  const bool raw = lua_toboolean(L, 2) != 0;
  Tensor& samples = push_array(L);
  int64_t rate = 0;
  protect_allocating(L, [&] {
    Sound sound;
    if (is_file) {
      sound = read_wav(path_at(L, 1), raw, state_of(L).memory);
    } else {
      MemorySource source(string_at(L, 1, "bytes"), kBytes);
      sound = read_wav(source, raw, state_of(L).memory);
    }
    samples = std::move(sound.samples);
    rate = sound.rate;
  });
  lua_pushnumber(L, static_cast<double>(rate));
  return 2;
}

// The bytes of a file of the sound whose samples, rate and encoding stand from `index` on.
std::string wav_at(lua_State* L, int index) {
  const Sound sound{array_at(L, index, "samples"), integer_at(L, index + 1, "rate", INT32_MIN, kExact)};
  return encode_wav(sound, string_at(L, index + 2, "encoding"));
}

// core.wav_write(path, samples, rate, encoding)
int wav_write(lua_State* L) {
  protect(L, [&] {
    const std::string path = path_at(L, 1);
    replace_file(path, wav_at(L, 2), nullptr, 0);
  });
  return 0;
}

// core.wav_encode(samples, rate, encoding) -> bytes
int wav_encode(lua_State* L) {
  return push_bytes(L, [&] { return wav_at(L, 1); });
}

}  // namespace

void push_texts(lua_State* L, const std::map<std::string, std::string>& texts) {
  lua_createtable(L, 0, static_cast<int>(texts.size()));
  for (const auto& [key, text] : texts) {
    push_string(L, key);
    push_string(L, text);
    lua_rawset(L, -3);
  }
}

void push_arrays(lua_State* L, const std::map<std::string, Tensor>& arrays) {
  lua_createtable(L, 0, static_cast<int>(arrays.size()));
  for (const auto& [name, array] : arrays) {
    push_string(L, name);
    push_array(L) = array;
    lua_rawset(L, -3);
  }
}

namespace {

std::set<std::string> names_at(lua_State* L, int index) {
  if (!lua_istable(L, index)) return {};
  const std::vector<std::string> names = strings_at(L, index, "name of an array");
  return {names.begin(), names.end()};
}

// core.npz_read(path, budget_bytes or nil, list of names or nil) -> { name -> ndarray }
int npz_read(lua_State* L) {
  lua_settop(L, 3);
  auto& arrays = keep<std::map<std::string, Tensor>>(L);
  protect_allocating(L, [&] {
    const int64_t budget = lua_isnil(L, 2) ? -1 : integer_at(L, 2, "budget_bytes", 0, kExact);
    arrays = read_npz(path_at(L, 1), budget, names_at(L, 3), state_of(L).memory);
  });
  push_arrays(L, arrays);
  return 1;
}

// core.npz_decode(bytes, list of names or nil) -> { name -> ndarray }
int npz_decode(lua_State* L) {
  lua_settop(L, 2);
  auto& arrays = keep<std::map<std::string, Tensor>>(L);
  protect_allocating(L,
                     [&] { arrays = read_npz(string_at(L, 1, "bytes"), kBytes, names_at(L, 2), state_of(L).memory); });
  push_arrays(L, arrays);
  return 1;
}

// The arrays of the table { name -> ndarray } at `index`.
std::map<std::string, Tensor> arrays_at(lua_State* L, int index) {
  table_at(L, index, "arrays");
  std::map<std::string, Tensor> arrays;
  lua_pushnil(L);
  while (lua_next(L, index) != 0) {
    const std::string name(string_at(L, -2, "name of an array"));
    arrays.emplace(name, array_at(L, -1, name.c_str()));
    lua_pop(L, 1);
  }
  return arrays;
}

int npz_write(lua_State* L) {
  lua_settop(L, 2);
  protect(L, [&] {
    const std::string path = path_at(L, 1);
    write_npz(path, arrays_at(L, 2));
  });
  return 0;
}

// core.npz_encode({ name -> ndarray }) -> bytes
int npz_encode(lua_State* L) {
  return push_bytes(L, [&] { return encode_npz(arrays_at(L, 1)); });
}

// core.ofrecord_read(path, offset) -> { name -> ndarray, bytes or list of bytes }, offset of the next; nothing at the
// end
int ofrecord_read(lua_State* L) {
  lua_settop(L, 2);
  auto& record = keep<OfRecord>(L);
  bool found = false;
  protect_allocating(L, [&] {
    const int64_t offset = integer_at(L, 2, "offset", 0, kExact);
    found = read_ofrecord(path_at(L, 1), offset, state_of(L).memory, record);
  });
  if (!found) return 0;
  push_arrays(L, record.numbers);
  for (const auto& [name, values] : record.bytes) {
    push_string(L, name);
    values.size() == 1 ? push_string(L, values[0]) : push_list(L, values, push_string);
    lua_rawset(L, -3);
  }
  lua_pushnumber(L, static_cast<double>(record.end));
  return 2;
}

// Pushes { name -> ndarray }, { key -> text }, { name -> what to say of a tensor that is left out }.
int push_safetensors(lua_State* L, const Safetensors& file) {
  push_arrays(L, file.tensors);
  push_texts(L, file.metadata);
  push_texts(L, file.left_out);
  return 3;
}

Metadata metadata_at(lua_State* L, int index) {
  table_at(L, index, "metadata");
  Metadata metadata;
  lua_pushnil(L);
  while (lua_next(L, index) != 0) {
    metadata.emplace(string_at(L, -2, "key of the metadata"), string_at(L, -1, "text of the metadata"));
    lua_pop(L, 1);
  }
  return metadata;
}

// core.safetensors_read(path) -> { name -> ndarray }, { key -> text }, { name -> why it is left out }
int safetensors_read(lua_State* L) {
  lua_settop(L, 1);
  auto& file = keep<Safetensors>(L);
  protect_allocating(L, [&] { file = load_safetensors(path_at(L, 1), state_of(L).memory); });
  return push_safetensors(L, file);
}

// core.safetensors_metadata(path) -> { key -> text }, from the header alone
int safetensors_metadata(lua_State* L) {
  lua_settop(L, 1);
  auto& metadata = keep<Metadata>(L);
  protect(L, [&] { metadata = load_safetensors_metadata(path_at(L, 1)); });
  push_texts(L, metadata);
  return 1;
}

// core.safetensors_decode(bytes) -> as safetensors_read
int safetensors_decode(lua_State* L) {
  lua_settop(L, 1);
  auto& file = keep<Safetensors>(L);
  protect_allocating(L, [&] { file = read_safetensors(string_at(L, 1, "bytes"), state_of(L).memory); });
  return push_safetensors(L, file);
}

// core.safetensors_write(path, { name -> ndarray }, { key -> text })
int safetensors_write(lua_State* L) {
  lua_settop(L, 3);
  protect(L, [&] {
    const std::string path = path_at(L, 1);
    save_safetensors(path, arrays_at(L, 2), metadata_at(L, 3));
  });
  return 0;
}

// core.safetensors_encode({ name -> ndarray }, { key -> text }) -> bytes
int safetensors_encode(lua_State* L) {
  return push_bytes(L, [&] { return write_safetensors(arrays_at(L, 1), metadata_at(L, 2)); });
}

// ---- checkpoints ---------------------------------------------------------------------------------------------

// Calls `read(entry)` with the stack index of each table in the list at `index`.
template <class Read>
void each_entry(lua_State* L, int index, const char* what, const Read& read) {
  each_at(L, index, what, [&](int entry) {
    table_at(L, entry, what);
    read(entry);
  });
}

// Pushes entry[field] without raising: `names` is a table at `names_index` that holds the field names by number, made
// in phase 1, since making a string may raise.
void get_field(lua_State* L, int entry, int names_index, int field) {
  lua_rawgeti(L, names_index, field);
  lua_rawget(L, entry);
}

void push_field_names(lua_State* L, std::initializer_list<const char*> names) { push_list(L, names, push_string); }

// core.checkpoint_remove(path)
int checkpoint_remove(lua_State* L) {
  protect(L, [&] { remove_whole_checkpoint(path_at(L, 1)); });
  return 0;
}

// core.checkpoint_write(path, { { name =, value = }, ... }, meta or nil, overwrite or nil)
int checkpoint_write(lua_State* L) {
  lua_settop(L, 4);
  push_field_names(L, {"name", "value"});
  constexpr int kNames = 5;
  protect(L, [&] {
    const std::string path = path_at(L, 1);
    std::map<std::string, Tensor> values;
    each_entry(L, 2, "variables", [&](int entry) {
      get_field(L, entry, kNames, 1);
      const std::string name(string_at(L, -1, "name of a variable"));
      get_field(L, entry, kNames, 2);
      const bool is_new = values.emplace(name, array_at(L, -1, name.c_str())).second;
      require(is_new, ErrorCode::InvalidArgument, "variable '", name, "' is given twice");
      lua_pop(L, 2);
    });
    const Json meta = lua_isnil(L, 3) ? Json(Json::Object()) : json_at(L, 3, "meta");
    const bool overwrite = !lua_isnil(L, 4) && flag_at(L, 4, "overwrite");
    write_checkpoint(path, values, meta, overwrite);
  });
  return 0;
}

// core.checkpoint_read(path, { { name =, dtype =, shape = }, ... } or nil) -> { name -> ndarray }, manifest or nil
int checkpoint_read(lua_State* L) {
  lua_settop(L, 2);
  push_field_names(L, {"name", "dtype", "shape"});
  constexpr int kNames = 3;
  auto& checkpoint = keep<Checkpoint>(L);
  protect_allocating(L, [&] {
    lua_settop(L, 4);
    const std::string path = path_at(L, 1);
    std::optional<std::vector<NamedType>> wanted;
    if (!lua_isnil(L, 2)) {
      wanted.emplace();
      each_entry(L, 2, "variables", [&](int entry) {
        NamedType variable;
        get_field(L, entry, kNames, 1);
        variable.name = std::string(string_at(L, -1, "name of a variable"));
        get_field(L, entry, kNames, 2);
        variable.type.dtype = dtype_at(L, -1, "dtype");
        get_field(L, entry, kNames, 3);
        variable.type.shape = shape_at(L, lua_gettop(L), "shape");
        lua_pop(L, 3);
        wanted->push_back(std::move(variable));
      });
    }
    checkpoint = read_checkpoint(path, wanted, state_of(L).memory);
  });
  push_arrays(L, checkpoint.values);
  push_json(L, checkpoint.manifest);
  return 2;
}

}  // namespace

void add_files(lua_State* L, State& state) {
  static const luaL_Reg kFunctions[] = {{"first_bytes", first_bytes},
                                        {"folder_names", folder_names},
                                        {"text_read", text_read},
                                        {"text_write", text_write},
                                        {"text_cut", text_cut},
                                        {"text_append", text_append},
                                        {"text_rows", text_rows},
                                        {"json_read", json_read},
                                        {"json_write", json_write},
                                        {"npy_read", array_read<read_npy>},
                                        {"npy_decode", npy_decode},
                                        {"npy_encode", npy_encode},
                                        {"npy_write", npy_write},
                                        {"npz_read", npz_read},
                                        {"npz_decode", npz_decode},
                                        {"npz_encode", npz_encode},
                                        {"npz_write", npz_write},
                                        {"idx_read", array_read<read_idx>},
                                        {"ofrecord_read", ofrecord_read},
                                        {"wav_read", wav_read<true>},
                                        {"wav_decode", wav_read<false>},
                                        {"wav_encode", wav_encode},
                                        {"wav_write", wav_write},
                                        {"safetensors_read", safetensors_read},
                                        {"safetensors_metadata", safetensors_metadata},
                                        {"safetensors_write", safetensors_write},
                                        {"safetensors_decode", safetensors_decode},
                                        {"safetensors_encode", safetensors_encode},
                                        {"checkpoint_write", checkpoint_write},
                                        {"checkpoint_read", checkpoint_read},
                                        {"checkpoint_remove", checkpoint_remove},
                                        {nullptr, nullptr}};
  set_functions(L, state, kFunctions);
}

}  // namespace moonflow::lua
