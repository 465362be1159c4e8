// Images at the places of a grid on the card, with planes that one block has and such as several share.
#include <cmath>

#include "beside_cpu.h"

using namespace moonflow;
using namespace moonflow::oracle;

TEST_CASE("an image at the places of a grid agrees with the CPU, and so do its gradients") {
  const BesideCpu beside;
  for (const DType dtype : {DType::Float32, DType::Float64, DType::BFloat16}) {
    // In float32 a place between 64 and 128 is rounded by some 4e-6, and the slope there by 35 times as much.
    const double tolerance = dtype == DType::BFloat16 ? 1.0 / 64 : dtype == DType::Float32 ? 1e-3 : 1e-11;
    for (const char* mode : {"nearest", "bilinear", "bicubic"}) {
      for (const char* padding : {"zeros", "border", "reflection"}) {
        for (const Shape& shape : {Shape{2, 3, 7, 5}, Shape{1, 2, 70, 61}}) {
          CAPTURE(mode, padding, shape);
          Attrs attrs = {{"mode", std::string(mode)}, {"padding_mode", std::string(padding)}};
          const DType of_grid = dtype == DType::Float64 ? dtype : DType::Float32;
          const Tensor grid = drawn({of_grid, {shape[0], 9, 31, 2}}, 2, -1.3, 1.3), x = drawn({dtype, shape}, 1);
          const TensorType out =
              beside.check(beside.trial("grid_sample", {x, grid}, attrs), tolerance).outputs[0].type();
          const Tensor dy = drawn(out, 3);
          if (mode != std::string("nearest"))
            beside.check(beside.trial("grid_sample_grid_grad", {x, grid, dy}, attrs), tolerance);
          attrs.set("shape", shape.dims());
          beside.check(beside.trial("grid_sample_image_grad", {grid, dy}, attrs), tolerance);
        }
      }
    }
  }
}

TEST_CASE("of no channels and no places the card makes zeros") {
  const BesideCpu beside;
  const Tensor grid = drawn({DType::Float32, {2, 2, 3, 2}}, 1), none = drawn({DType::Float32, {2, 0, 2, 3}}, 2);
  beside.check(beside.trial("grid_sample_grid_grad", {drawn({DType::Float32, {2, 0, 3, 4}}, 3), grid, none}));
  beside.check(beside.trial("grid_sample_image_grad", {grid, none}, {{"shape", Ints{2, 0, 3, 4}}}));
  const Tensor nowhere = drawn({DType::Float32, {2, 0, 3, 2}}, 1), nothing = drawn({DType::Float32, {2, 5, 0, 3}}, 2);
  beside.check(beside.trial("grid_sample_image_grad", {nowhere, nothing}, {{"shape", Ints{2, 5, 3, 4}}}));
}

TEST_CASE("the nearest pixels are taken of any dtype on the card") {
  const BesideCpu beside;
  for (const DType dtype : {DType::UInt8, DType::Int32, DType::Int64}) {
    for (const DType of_grid : {DType::Float32, DType::Float64}) {
      const Tensor x = drawn({dtype, {2, 3, 7, 5}}, 1, 0, 90), grid = drawn({of_grid, {2, 4, 5, 2}}, 2, -1.5, 1.5);
      beside.check(beside.trial("grid_sample", {x, grid}, {{"mode", std::string("nearest")}}), 0.0);
    }
  }
}

TEST_CASE("pixels that count for nothing may be NaN, and places too, on the card as on the CPU") {
  const BesideCpu beside;
  Tensor x = drawn({DType::Float32, {1, 2, 5, 5}}, 1), whole = drawn({DType::Int32, {1, 2, 5, 5}}, 2, 0, 90);
  x.data<float>()[12] = NAN;
  x.data<float>()[33] = INFINITY;
  // Each pixel by itself, so that its neighbours have no share, then places that are no number or far away.
  std::vector<float> places;
  for (int i = 0; i < 25; ++i) places.insert(places.end(), {0.5f * (i % 5) - 1, 0.5f * (i / 5) - 1});
  for (const float odd : {NAN, INFINITY, -1e30f}) places.insert(places.end(), {odd, 0.25f, -0.25f, odd});
  const Tensor grid = Tensor::allocate({DType::Float32, {1, 1, 31, 2}});
  std::copy(places.begin(), places.end(), grid.data<float>());
  for (const char* mode : {"nearest", "bilinear", "bicubic"}) {
    for (const char* padding : {"zeros", "border"}) {
      CAPTURE(mode, padding);
      Attrs attrs = {{"mode", std::string(mode)}, {"padding_mode", std::string(padding)}, {"align_corners", true}};
      const TensorType out = beside.check(beside.trial("grid_sample", {x, grid}, attrs)).outputs[0].type();
      const Tensor dy = drawn(out, 3);
      if (mode == std::string("nearest"))
        beside.check(beside.trial("grid_sample", {whole, grid}, attrs), 0.0);
      else
        beside.check(beside.trial("grid_sample_grid_grad", {x, grid, dy}, attrs));
      attrs.set("shape", x.shape().dims());
      beside.check(beside.trial("grid_sample_image_grad", {grid, dy}, attrs));
    }
  }
}
