#include "bindings/ofrecord.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "bindings/file.h"
#include "bindings/wire.h"

namespace moonflow {

namespace {

// Fields of the messages, which are numbered in OneFlow's record.proto.
constexpr uint32_t kFeatures = 1;           // of a record: entries of a map
constexpr uint32_t kKey = 1, kFeature = 2;  // of an entry
constexpr uint32_t kValues = 1;             // of a list
// Of a feature, which is one list.
constexpr uint32_t kBytes = 1, kFloats = 2, kDoubles = 3, kInt32s = 4, kInt64s = 5;

template <class T>
Tensor read_numbers(WireReader list, const std::shared_ptr<HostMemory>& memory) {
  using Bits = std::conditional_t<sizeof(T) == sizeof(uint32_t), uint32_t, uint64_t>;
  std::vector<T> values;
  while (list.next()) {
    if (list.number() != kValues) continue;
    if constexpr (std::is_integral_v<T>)
      list.integers([&](int64_t value) { values.push_back(static_cast<T>(value)); });
    else
      list.fixed<Bits>([&](Bits bits) { std::memcpy(&values.emplace_back(), &bits, sizeof bits); });
  }
  Tensor array = Tensor::allocate({DTypeOf<T>::value, Shape{static_cast<int64_t>(values.size())}}, memory);
  std::copy(values.begin(), values.end(), array.data<T>());
  return array;
}

std::vector<std::string> read_bytes(WireReader list) {
  std::vector<std::string> values;
  while (list.next())
    if (list.number() == kValues) values.emplace_back(list.bytes());
  return values;
}

void read_entry(WireReader entry, const std::shared_ptr<HostMemory>& memory, OfRecord& record) {
  std::string name;
  WireReader feature{std::string_view()};
  while (entry.next()) {
    if (entry.number() == kKey) name = entry.bytes();
    if (entry.number() == kFeature) feature = entry.message();
  }
  while (feature.next()) {
    switch (feature.number()) {
      case kBytes:
        record.bytes[name] = read_bytes(feature.message());
        break;
      case kFloats:
        record.numbers[name] = read_numbers<float>(feature.message(), memory);
        break;
      case kDoubles:
        record.numbers[name] = read_numbers<double>(feature.message(), memory);
        break;
      case kInt32s:
        record.numbers[name] = read_numbers<int32_t>(feature.message(), memory);
        break;
      case kInt64s:
        record.numbers[name] = read_numbers<int64_t>(feature.message(), memory);
        break;
      default:
        break;
    }
  }
}

}  // namespace

bool read_ofrecord(const std::string& path, int64_t offset, const std::shared_ptr<HostMemory>& memory,
                   OfRecord& record) {
  FileSource source(path);
  const int64_t size = source.size();
  if (offset == size) return false;
  require(offset < size, ErrorCode::Io, "file '", path, "' has ", size, " bytes now, and a record ended at byte ",
          offset, "; it was cut short while it was read");
  source.seek(offset);
  int64_t length = 0;
  if (source.remaining() < static_cast<int64_t>(sizeof length))
    source.fail_at(offset, "a record begins with its length, 8 bytes, and ", source.remaining(), " are left");
  source.read(&length, sizeof length);
  if (length < 0 || length > source.remaining())
    source.fail_at(offset, "a record of ", length, " bytes stands where ", source.remaining(),
                   " are left; the file is cut short or damaged, or is no OFRecord");
  std::string message(static_cast<size_t>(length), '\0');
  source.read(message.data(), length);
  record.end = source.position();
  const auto read_features = [&] {
    for (WireReader features(message); features.next();)
      if (features.number() == kFeatures) read_entry(features.message(), memory, record);
  };
  prefixing(read_features, "file '", path, "', record at byte ", offset);
  return true;
}

}  // namespace moonflow
