// Element-wise ops of two inputs, and `where`, on CUDA.
#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/units.h"

namespace moonflow::cuda {
namespace {

using elementwise::Dtypes;

// Takes elements by their size alone.
template <class T>
struct Where {
  static constexpr int kThreads = 256, kN = std::min(16 / static_cast<int>(sizeof(T)), 8);
  Places<3> places;
  uint32_t count;
  bool in_row, condition_aligned, x_aligned, y_aligned, out_aligned;
  const int8_t* condition;
  const T *x, *y;
  T* out;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    const uint32_t first = static_cast<uint32_t>(block.index() * kThreads + block.thread()) * kN;
    if (first >= count) return;
    const uint32_t rest = count - first;
    uint32_t offsets[3];
    Pack<int8_t, kN> conditions;
    Pack<T, kN> xs, ys;
    if (in_row) {
      places.of(first, offsets);
      conditions = read_row<int8_t, kN>(condition + offsets[0], places.axis[0].steps[0], rest, condition_aligned);
      xs = read_row<T, kN>(x + offsets[1], places.axis[0].steps[1], rest, x_aligned);
      ys = read_row<T, kN>(y + offsets[2], places.axis[0].steps[2], rest, y_aligned);
    } else {
      for (uint32_t i = 0; i < kN; ++i) {
        places.of(i < rest ? first + i : first, offsets);
        conditions.values[i] = condition[offsets[0]];
        xs.values[i] = x[offsets[1]];
        ys.values[i] = y[offsets[2]];
      }
    }
    Pack<T, kN> results;
    for (int i = 0; i < kN; ++i) results.values[i] = conditions.values[i] != 0 ? xs.values[i] : ys.values[i];
    write(results, out + first, rest, out_aligned && rest >= kN);
  }
};

// ---- launchers -----------------------------------------------------------------------------------------------

template <class F, Dtypes dtypes>
Element two(const Attrs& attrs, DType dtype) {
  return visit_row<dtypes>(dtype, [&](auto zero) {
    using T = decltype(zero);
    return Element(elementwise::make<F>(attrs), nullptr, start_broadcast<F, T>);
  });
}

CudaKernel broadcasting(MakeElement make) {
  return {{[make](KernelCall& call) -> Launch {
             return [element = make(call.attrs, call.inputs[0].dtype),
                     pieces = pieces_of<2>({call.inputs[0].shape, call.inputs[1].shape}, call.outputs[0].shape)](
                        const LaunchCall& at) {
               element.start_pieces(at.stream, element, pieces, at.inputs[0], at.inputs[1], at.outputs[0]);
             };
           },
           share_channels_last},
          true};
}

template <class T>
Launch launch_where(std::vector<Piece<3>> pieces) {
  return [pieces = std::move(pieces)](const LaunchCall& at) {
    constexpr int kN = Where<T>::kN;
    for (const Piece<3>& piece : pieces) {
      const auto& places = piece.places;
      const int8_t* const condition = at.input<int8_t>(0) + piece.offsets[0];
      const T *const x = at.input<T>(1) + piece.offsets[1], *const y = at.input<T>(2) + piece.offsets[2];
      T* const out = at.output<T>(0) + piece.first;
      launch_elements(at.stream, piece.count,
                      Where<T>{places, static_cast<uint32_t>(piece.count), in_rows<kN>(places),
                               in_packs<int8_t, kN>(condition, 0, places), in_packs<T, kN>(x, 1, places),
                               in_packs<T, kN>(y, 2, places), is_aligned<T, kN>(out), condition, x, y, out});
    }
  };
}

Launch prepare_where(KernelCall& call) {
  std::vector<Piece<3>> pieces =
      pieces_of<3>({call.inputs[0].shape, call.inputs[1].shape, call.inputs[2].shape}, call.outputs[0].shape);
  return visit_element(size_of(call.outputs[0].dtype),
                       [&](auto zero) { return launch_where<decltype(zero)>(std::move(pieces)); });
}

}  // namespace

void add_binary(Kernels& kernels) {
  elementwise::for_each_binary([&](auto computes, const elementwise::BinaryRow& row) {
    using Row = decltype(computes);
    kernels[row.name] = broadcasting(two<typename Row::Functor, Row::dtypes>);
  });
  kernels["where"] = {{prepare_where, share_channels_last}, true};
}

}  // namespace moonflow::cuda
