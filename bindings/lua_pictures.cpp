// Pictures as Lua functions: one of a file, and many as one array, which threads of their own may read.
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <thread>
#include <utility>

#include "bindings/file.h"
#include "bindings/jpeg.h"
#include "bindings/lua_module.h"
#include "bindings/picture_batch.h"
#include "bindings/png.h"

namespace moonflow::lua {

namespace {

// Pictures that are being read. In a fork there are no threads that read them.
struct ReadingBox {
  std::shared_ptr<PictureReading> reading;
  pid_t process = ::getpid();

  ReadingBox() = default;
  ReadingBox(const ReadingBox&) = delete;
  ReadingBox& operator=(const ReadingBox&) = delete;
  ~ReadingBox() {
    if (process != ::getpid()) new std::shared_ptr<PictureReading>(std::move(reading));
  }
};

}  // namespace

template <>
inline constexpr Tag kTagOf<ReadingBox> = Tag::Reading;

namespace {

// The string at place 1: a path, or the bytes themselves.
template <bool is_file>
EncodedPicture picture_at(lua_State* L, const char* kind) {
  if (is_file) return EncodedPicture::of_file(path_at(L, 1), kind);
  size_t size = 0;
  const char* const bytes = lua_tolstring(L, 1, &size);
  return EncodedPicture::of_bytes({bytes, size}, kind);
}

// core.png_read(path, raw) -> array, core.png_decode(bytes, raw) -> array
template <bool is_file>
int png_read(lua_State* L) {
  lua_settop(L, 2);
  const bool raw = lua_toboolean(L, 2) != 0;
  Tensor& array = push_array(L);
  protect_allocating(L, [&] { array = decode_png(picture_at<is_file>(L, "PNG"), raw, state_of(L).memory); });
  return 1;
}

// core.jpeg_read(path, upright) -> array, core.jpeg_decode(bytes, upright) -> array
template <bool is_file>
int jpeg_read(lua_State* L) {
  lua_settop(L, 2);
  const bool upright = lua_toboolean(L, 2) != 0;
  Tensor& array = push_array(L);
  protect_allocating(L, [&] {
    const EncodedPicture picture = picture_at<is_file>(L, "JPEG");
    array = decode_jpeg(picture, upright ? Orientation::of_jpeg(picture.bytes) : Orientation(), state_of(L).memory);
  });
  return 1;
}

// jpeg_write(path, picture, quality)
int jpeg_write(lua_State* L) {
  protect(L, [&] {
    const std::string path = path_at(L, 1);
    const Tensor picture = array_at(L, 2, "picture");
    replace_file(path, encode_jpeg(picture, static_cast<int>(lua_tointeger(L, 3))), nullptr, 0);
  });
  return 0;
}

// jpeg_encode(picture, quality) -> bytes
int jpeg_encode(lua_State* L) {
  return push_bytes(L, [&] { return encode_jpeg(array_at(L, 1, "picture"), static_cast<int>(lua_tointeger(L, 2))); });
}

int png_write(lua_State* L) {
  protect(L, [&] {
    const std::string path = path_at(L, 1);
    const Tensor picture = array_at(L, 2, "picture");
    replace_file(path, encode_png(picture), nullptr, 0);
  });
  return 0;
}

// png_encode(picture) -> bytes
int png_encode(lua_State* L) {
  return push_bytes(L, [&] { return encode_png(array_at(L, 1, "picture")); });
}

// Of so many pictures, from a float64 (pictures, 6).
std::vector<PictureCut> cuts_at(lua_State* L, int index, int64_t count) {
  std::vector<PictureCut> cuts;
  if (lua_isnil(L, index)) return cuts;
  const Tensor& numbers = array_at(L, index, "cuts");
  const TensorType wanted{DType::Float64, {count, 6}};
  require(numbers.type() == wanted, ErrorCode::ShapeMismatch, "cuts: expected ", wanted, ", got ", numbers.type());
  for (int64_t i = 0; i < count; ++i) {
    const double* const cut = numbers.data<double>() + 6 * i;
    cuts.push_back({cut[0], cut[1], cut[2], cut[3], cut[4], cut[5] != 0});
  }
  return cuts;
}

// core.pictures_begin(strings, are_files, upright, height, width, channels, cuts or nil, passes_over,
// threads or nil, raw, paths of masks or nil) -> reading, by so many threads beside the caller's; nil: as many as leave
// it a core, but one
int pictures_begin(lua_State* L) {
  lua_settop(L, 11);
  ReadingBox& box = push_box<ReadingBox>(L);
  protect_allocating(L, [&] {
    PictureRequest wanted;
    wanted.sources = strings_at(L, 1, "a picture");
    wanted.are_files = lua_toboolean(L, 2) != 0;
    wanted.upright = lua_toboolean(L, 3) != 0;
    wanted.size = {integer_at(L, 4, "height"), integer_at(L, 5, "width"),
                   static_cast<int>(integer_at(L, 6, "channels", 1, 3))};
    wanted.cuts = cuts_at(L, 7, static_cast<int64_t>(wanted.sources.size()));
    wanted.passes_over_broken = lua_toboolean(L, 8) != 0;
    wanted.raw = lua_toboolean(L, 10) != 0;
    if (!lua_isnil(L, 11)) wanted.masks = strings_at(L, 11, "a mask");
    require(wanted.masks.empty() || wanted.masks.size() == wanted.sources.size(), ErrorCode::InvalidArgument,
            "there are ", wanted.masks.size(), " masks of ", wanted.sources.size(), " pictures");
    const int others = std::max(1, static_cast<int>(std::thread::hardware_concurrency()) - 1);
    const int threads = lua_isnil(L, 9) ? others : static_cast<int>(integer_at(L, 9, "threads", 0, INT_MAX));
    box.reading = std::make_shared<PictureReading>(std::move(wanted), threads, state_of(L).memory);
  });
  return 1;
}

// core.pictures_take(reading) -> array, { number -> what is wrong with it } of those that could not be read, masks
// where there are any
int pictures_take(lua_State* L) {
  lua_settop(L, 1);
  Tensor& array = push_array(L);
  Tensor& masks = push_array(L);
  auto& broken = keep<std::map<int64_t, Error>>(L);
  protect(L, [&] {
    ReadingBox& box = box_at<ReadingBox>(L, 1, "pictures that are being read");
    require(box.process == ::getpid(), ErrorCode::WrongState, "these pictures are read by the process before the fork");
    array = box.reading->take();
    masks = box.reading->masks();
    broken = box.reading->broken();
  });
  lua_pushvalue(L, 2);
  lua_createtable(L, 0, static_cast<int>(broken.size()));
  for (const auto& [i, error] : broken) {
    lua_pushnumber(L, static_cast<double>(i + 1));
    push_string(L, error.what());
    lua_rawset(L, -3);
  }
  if (masks.shape().rank() != 3) return 2;
  lua_pushvalue(L, 3);
  return 3;
}

}  // namespace

void add_pictures(lua_State* L, State& state) {
  static const luaL_Reg kFunctions[] = {{"jpeg_read", jpeg_read<true>},
                                        {"jpeg_decode", jpeg_read<false>},
                                        {"jpeg_write", jpeg_write},
                                        {"jpeg_encode", jpeg_encode},
                                        {"png_read", png_read<true>},
                                        {"png_decode", png_read<false>},
                                        {"png_write", png_write},
                                        {"png_encode", png_encode},
                                        {"pictures_begin", pictures_begin},
                                        {"pictures_take", pictures_take},
                                        {nullptr, nullptr}};
  set_functions(L, state, kFunctions);
  static const luaL_Reg kNone[] = {{nullptr, nullptr}};
  new_class(L, state, Tag::Reading, finalize<ReadingBox>, "moonflow pictures being read", kNone);
}

}  // namespace moonflow::lua
