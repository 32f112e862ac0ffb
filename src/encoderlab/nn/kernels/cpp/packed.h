// Products with weights that were packed once, for prediction: their columns lie in panels as the register tile reads
// them. Each row is added up in the same order whatever the number of rows and threads.

#pragma once

#include "products.h"

namespace {

constexpr int64_t SHARED_ROWS = 22 * TILE;  // rows that share a panel while it is in the cache

// out (rows, columns) = a (rows, depth) b + bias, with b (panels, depth, PANEL)
void packed_product(const float* a, const float* b, const float* bias, float* out, int64_t rows, int64_t columns,
                    int64_t depth, int64_t threads) {
  const int64_t panels = round_up(columns, PANEL) / PANEL, parts = (rows + SHARED_ROWS - 1) / SHARED_ROWS;
#pragma omp parallel for collapse(2) schedule(static) num_threads((int)threads)
  for (int64_t part = 0; part < parts; part++)
    for (int64_t p = 0; p < panels; p++) {
      const int64_t end = std::min(rows, (part + 1) * SHARED_ROWS), n = std::min<int64_t>(PANEL, columns - p * PANEL);
      const int64_t tiles = (end - part * SHARED_ROWS + TILE - 1) / TILE;
      const int64_t even = (end - part * SHARED_ROWS + tiles - 1) / tiles;  // a tile of few rows waits for memory
      float add[PANEL] = {}, rest[TILE * PANEL];
      if (bias) std::memcpy(add, bias + p * PANEL, n * sizeof(float));
      for (int64_t row = part * SHARED_ROWS; row < end; row += even) {
        const int64_t some = std::min(even, end - row);
        float* to = out + row * columns + p * PANEL;
        float* sums = n == PANEL ? to : rest;
        const int64_t stride = n == PANEL ? columns : PANEL;
        some_rows<TILE, false>(some, a + row * depth, depth, b + p * PANEL * depth, depth, sums, stride, false);
        for (int64_t r = 0; r < some && bias; r++)
          for (int64_t j = 0; j < PANEL; j += W) store(sums + r * stride + j, load(sums + r * stride + j) + load(add + j));
        for (int64_t r = 0; r < some && n < PANEL; r++) std::memcpy(to + r * columns, rest + r * PANEL, n * sizeof(float));
      }
    }
}

}  // namespace
