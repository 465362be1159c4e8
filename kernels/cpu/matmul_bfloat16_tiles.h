// Products in bfloat16 by the tile registers of AMX, which take sixteen times as many terms at once as the others.
#pragma once

#include "kernels/cpu/matmul_bfloat16_panel.h"

#ifdef MOONFLOW_BFLOAT16

namespace moonflow::cpu {

// Of a panel: as many as the second cache has room for beside the rest, so that what is read and written of b and of
// out lies in long pieces.
int64_t vectors_of_tiles(const NarrowProduct& product);

// Rows [first, last) through a panel; `first` begins a tile.
void multiply_in_tiles(const LeftTiles& left, const Pair* panel, const PanelEnding& end, int64_t first, int64_t last,
                       const PiecesOfRows& next_panel);

}  // namespace moonflow::cpu

#endif
