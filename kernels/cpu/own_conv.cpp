// Which kernel of our own computes a convolution on the CPU, if one does.
#include "kernels/cpu/conv.h"
#include "kernels/cpu/device.h"

namespace moonflow::cpu {

namespace {

enum class OwnConv { None, Tiles, Lanes, Winograd, FewChannels, Sparse };

OwnConv choose(const Conv& conv, ConvKind kind, const ConvWay& way) {
  if (way.in_bfloat16 && tiles_fit(conv)) return OwnConv::Tiles;
  if (lanes_fit(conv, kind)) return OwnConv::Lanes;
  const bool winograd = way.algorithm != "direct" && winograd_fits(conv, kind);
  if (winograd && way.algorithm == "winograd") return OwnConv::Winograd;
  if (few_channels_fits(conv, kind)) return OwnConv::FewChannels;
  if (sparse_fits(conv, kind)) return OwnConv::Sparse;
  return winograd && winograd_is_faster(conv, kind) ? OwnConv::Winograd : OwnConv::None;
}

}  // namespace

bool has_own_conv(const Conv& conv, ConvKind kind, const ConvWay& way) {
  return choose(conv, kind, way) != OwnConv::None;
}

bool own_conv_layouts(const Conv& conv, ConvKind kind, const ConvWay& way, LayoutCall& call) {
  const OwnConv chosen = choose(conv, kind, way);
  if (chosen == OwnConv::Tiles) block_layouts(conv, kind, call);
  if (chosen == OwnConv::Lanes) lane_layouts(conv, call);
  if (chosen == OwnConv::Winograd) winograd_layouts(conv, kind, call);
  if (chosen == OwnConv::FewChannels) few_channels_layouts(conv, kind, call);
  if (chosen == OwnConv::Sparse) sparse_layouts(conv, call);
  return chosen != OwnConv::None;
}

Launch own_conv(const Conv& conv, ConvKind kind, const ConvWay& way, Activation activation, KernelCall& call) {
  const OwnConv chosen = choose(conv, kind, way);
  if (chosen == OwnConv::Tiles) return conv_tiles(conv, kind, activation, call);
  if (chosen == OwnConv::Lanes) return conv_lanes(conv, kind, activation, call);
  if (chosen == OwnConv::Winograd) return conv_winograd(conv, kind, activation, call);
  if (chosen == OwnConv::FewChannels) return conv_few_channels(conv, kind, call);
  if (chosen == OwnConv::Sparse) return conv_sparse(conv, call);
  return {};
}

}  // namespace moonflow::cpu
