// Products with rows of relative positions. A table's column c is its row c; query i and key j meet in column
// queries - 1 - i + j, so a block of scores needs a band of columns that moves by one with every query (or key).
// Products are computed tile by tile for the band alone, then added along its diagonals; nothing as large as
// queries x positions exists.
//
// The products of keys run the other way: with the rows of the table in reverse, key j meets query i in column
// keys - 1 - j + i.

#pragma once

#include "arguments.h"
#include "products.h"

namespace {

constexpr int64_t GROUP = 3 * W;  // keys, or columns, whose band is worked on together; a multiple of W and TILE
static_assert(GROUP % TILE == 0);
constexpr int64_t MARGIN = (GROUP + BLOCK) / PANEL * PANEL + 2 * PANEL;  // columns of zeros in front of a table

struct Table {
  float* columns;  // (panel, depth, PANEL): for products with states
  float* rows;     // (panel of depth, MARGIN + width, PANEL): for gradients of states; null where there are none
  int64_t width;   // columns, margins included
};

template <class T>
struct Tables {
  const Attention& at;
  int64_t columns_size, rows_size, width;
  float* memory;

  Tables(const Attention& at, const T* rows, const int64_t* stride, bool reverse, bool gradients, float scale)
      : at(at), memory(nullptr) {
    const int64_t panels = round_up(at.width, PANEL) / PANEL;
    width = 2 * MARGIN + round_up(at.queries + round_up(at.keys, BLOCK), PANEL) + PANEL;
    columns_size = at.width * width;
    rows_size = gradients ? panels * PANEL * width : 0;
    if (!rows) return;
    const int64_t total = at.heads * at.tables * (columns_size + rows_size);
    memory = static_cast<float*>(std::aligned_alloc(64, round_up(total * sizeof(float), 64)));
    if (!memory) std::abort();
#pragma omp parallel for schedule(dynamic) num_threads((int)at.threads)
    for (int64_t task = 0; task < at.heads * at.tables; task++) {
      const int64_t h = task / at.tables, table = task % at.tables;
      const T* from = rows + h * stride[1] + (table + (reverse ? 1 : 0)) * at.positions * stride[0];
      const int64_t step = reverse ? -stride[0] : stride[0];
      if (reverse) from -= stride[0];
      Table to = (*this)(h, table);
      std::memset(to.columns, 0, (columns_size + rows_size) * sizeof(float));
      pack_transposed(from, step, at.positions, at.width, to.columns + MARGIN * at.width);
      for (int64_t p = 0; gradients && p < panels; p++) {
        float* dst = to.rows + (p * width + MARGIN) * PANEL;
        pack(from + p * PANEL, step, at.positions, std::min<int64_t>(PANEL, at.width - p * PANEL), dst);
        for (int64_t i = 0; i < at.positions * PANEL; i += W) store(dst + i, load(dst + i) * scale);
      }
    }
  }
  ~Tables() { std::free(memory); }
  Tables(const Tables&) = delete;

  Table operator()(int64_t h, int64_t table) const {
    float* at_table = memory + (h * at.tables + table) * (columns_size + rows_size);
    return {at_table, rows_size ? at_table + columns_size : nullptr, width};
  }
};

// The tables of all heads: of rows that queries meet, and of rows that keys meet.
template <class T>
struct Positions {
  const Tables<T> queries, keys;

  Positions(const Attention& at, const Relative<T>& relative, bool gradients)
      : queries(at, relative.query_rows, at.query_rows, false, gradients, 1.0f),
        keys(at, relative.key_rows, at.key_rows, true, gradients, at.scale) {}
};

inline int64_t panel_floor(int64_t column) { return column / PANEL * PANEL; }

// the room of one band of `rows` states over `length` partners
inline int64_t band_width(int64_t rows, int64_t length) { return round_up(rows + length + W, PANEL) + 2 * PANEL; }

inline int64_t band_room(int64_t rows, int64_t keys) {
  return std::max(TILE * band_width(TILE, keys), GROUP * band_width(rows, GROUP));
}

// scores[r, j] += queries[r] . column[base - r + j]
void add_query_rows(const float* queries, int64_t wide, const Table& table, int64_t depth, int64_t base, int64_t rows,
                    int64_t seen, float* band, float* scores, int64_t stride) {
  for (int64_t r0 = 0; r0 < rows; r0 += TILE) {
    const int64_t n = std::min<int64_t>(TILE, rows - r0);
    const int64_t low = panel_floor(base - (r0 + n - 1)), high = base - r0 + seen, ld = round_up(high - low, PANEL);
    for (int64_t c = low; c < high; c += PANEL)
      some_rows<TILE, false>(n, queries + r0 * wide, wide, table.columns + c * depth, depth, band + (c - low), ld,
                             false);
    for (int64_t r = 0; r < n; r++) {
      const float* from = band + r * ld + base - (r0 + r) - low;
      float* to = scores + (r0 + r) * stride;
      for (int64_t j = 0; j < seen; j += W) store(to + j, load(to + j) + load(from + j));
    }
  }
}

// scores[r, j] += keys[j] . column[base - j + r]; reads up to TILE keys, and writes up to W queries, more than there
// are
void add_key_rows(const float* keys, int64_t wide, const Table& table, int64_t depth, int64_t base, int64_t rows,
                  int64_t seen, float* band, float* scores, int64_t stride) {
  for (int64_t g = 0; g < seen; g += GROUP) {
    const int64_t first = panel_floor(base - (g + GROUP - 1)), ld = band_width(rows, GROUP);
    const int64_t end = std::min(g + GROUP, seen);
    for (int64_t t = g; t < end; t += TILE)
      for (int64_t c = panel_floor(base - (t + TILE - 1)); c < base - t + rows + W; c += PANEL)
        tile<TILE, false, false>(keys + t * wide, wide, table.columns + c * depth, depth,
                                 band + (t - g) * ld + c - first, ld);
    for (int64_t j = g; j < end; j += W)
      for (int64_t r = 0; r < rows; r += W) {
        floats v[W];
        for (int i = 0; i < W; i++) v[i] = load(band + (j + i - g) * ld + base - (j + i) + r - first);
        transpose<>(v);
        for (int i = 0; i < W; i++) {
          float* to = scores + (r + i) * stride + j;
          store(to, load(to) + v[i]);
        }
      }
  }
}

// With ds the gradient of the scores: dqueries[r] += sum_j ds[r, j] row[base - r + j], and the sums for the rows
void query_rows_gradient(const float* ds, int64_t stride, int64_t rows, int64_t seen, const Table& table, int64_t base,
                         const float* queries_packed, int64_t depth, int64_t wide, float* band, float* dqueries,
                         float* drows) {
  const int64_t panels = round_up(depth, PANEL) / PANEL, ld = band_width(rows, seen);
  const int64_t first = panel_floor(base - (rows - 1)), last = base + seen;
  std::memset(band, 0, rows * ld * sizeof(float));
  for (int64_t r = 0; r < rows; r++)
    std::memcpy(band + r * ld + base - r - first, ds + r * stride, seen * sizeof(float));
  for (int64_t r = 0; r < rows; r += TILE) {
    const int64_t n = std::min<int64_t>(TILE, rows - r), low = base - (r + n - 1);
    multiply(band + r * ld + low - first, ld, table.rows + low * PANEL, dqueries + r * wide, wide, n,
             base - r + seen - low, panels, true, table.width);
  }
  for (int64_t c = first; c < last; c += GROUP) {  // a column meets only the queries whose band it lies in
    const int64_t n = std::min(GROUP, last - c);
    const int64_t from = std::max<int64_t>(0, base - (c + n - 1)), to = std::min(rows, base - c + seen);
    multiply<true>(band + from * ld + c - first, ld, queries_packed + from * PANEL, drows + c * wide, wide, n,
                   to - from, panels, true, rows);
  }
}

// dkeys[j] += sum_r ds[r, j] row[base - j + r], and the sums for the rows; ds is zero in up to W more rows
void key_rows_gradient(const float* ds, int64_t stride, int64_t rows, int64_t seen, const Table& table, int64_t base,
                       const float* keys, float* keys_packed, int64_t depth, int64_t wide, float* band, float* dkeys,
                       float* drows) {
  const int64_t panels = round_up(depth, PANEL) / PANEL, ld = band_width(rows, GROUP);
  for (int64_t g = 0; g < seen; g += GROUP) {
    const int64_t first = panel_floor(base - (g + GROUP - 1)), last = base - g + rows;
    const int64_t end = std::min(g + GROUP, seen);
    std::memset(band, 0, GROUP * ld * sizeof(float));
    for (int64_t j = g; j < end; j += W)
      for (int64_t r = 0; r < rows; r += W) {
        floats v[W];
        for (int i = 0; i < W; i++) v[i] = load(ds + (r + i) * stride + j);
        transpose<>(v);
        for (int i = 0; i < W; i++) store(band + (j + i - g) * ld + base - (j + i) + r - first, v[i]);
      }
    for (int64_t t = g; t < end; t += TILE) {
      const int64_t low = base - (t + TILE - 1);
      multiply(band + (t - g) * ld + low - first, ld, table.rows + low * PANEL, dkeys + t * wide, wide, TILE,
               base - t + rows - low, panels, true, table.width);
    }
    pack(keys + g * wide, wide, end - g, depth, keys_packed);
    multiply<true>(band, ld, keys_packed, drows + first * wide, wide, last - first, end - g, panels, true);
  }
}

}  // namespace
