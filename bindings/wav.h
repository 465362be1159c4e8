// Sounds in WAV files (RIFF/WAVE): integers of 8, 16, 24 and 32 bits, floats of 32 and 64, any number of channels.
// Reading trusts nothing: sizes are checked before memory is taken.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "bindings/file.h"
#include "engine/tensor.h"

namespace moonflow {

struct Sound {
  Tensor samples;    // (samples) of one channel, else (samples, channels)
  int64_t rate = 0;  // samples of a second
};

// Samples are float32 from -1 to 1, an integer divided by the greatest one of its bits plus 1, as of a microphone that
// has 1 as its limit. Or they are as the file has them, `raw`: uint8, where 128 is silence, int32 of the larger ones,
// or floats.
Sound read_wav(ByteSource& source, bool raw, const std::shared_ptr<HostMemory>& memory);
Sound read_wav(const std::string& path, bool raw, const std::shared_ptr<HostMemory>& memory);

// The bytes of a file. `encoding` is "uint8", "int16", "int24", "int32", "float32" or "float64". What is of floats is
// multiplied for integers, with what is beyond -1 and 1 as the nearest, and a NaN as 0; uint8 and int32 are taken as
// they are, as integers alone.
std::string encode_wav(const Sound& sound, std::string_view encoding);

}  // namespace moonflow
