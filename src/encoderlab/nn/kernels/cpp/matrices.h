// Products of whole bfloat16 matrices in float32 arithmetic: blocks of the result, each by one thread, from pieces of
// the operands that are widened while they are packed into the L2 cache. So they cost what float32 costs, with half of
// its traffic to memory; sums are rounded once.

#pragma once

#include "products.h"

namespace {

constexpr int64_t DEPTH = 256;  // of a piece: one panel of it stays in the L1 cache
constexpr int64_t MOST_BLOCK_ROWS = 22 * TILE, MOST_BLOCK_COLUMNS = 16 * PANEL;
constexpr int64_t HELD = 2 * DEPTH * MOST_BLOCK_COLUMNS;  // elements of b that a thread keeps packed between blocks

struct Matrix {  // one of the strides is 1
  const bf16* data;
  int64_t row, column;
};

// c (rows, columns) = a (rows, depth) b (depth, columns) [+ bias] [+ c]. Sums run over the depth in order, so the
// result does not depend on the number of threads.
void product(Matrix a, Matrix b, bf16* c, int64_t c_row, const float* bias, int64_t rows, int64_t columns,
             int64_t depth, bool add, int64_t threads) {
  if (rows == 0 || columns == 0) return;
  int64_t downs = (rows + MOST_BLOCK_ROWS - 1) / MOST_BLOCK_ROWS;
  int64_t acrosses = (columns + MOST_BLOCK_COLUMNS - 1) / MOST_BLOCK_COLUMNS;
  while (downs * acrosses < 2 * threads && (rows > 2 * TILE * downs || columns > 2 * BLOCK * acrosses))
    (rows * acrosses > columns * downs ? downs : acrosses) *= 2;
  const int64_t block_rows = round_up((rows + downs - 1) / downs, TILE), left_row = round_up(block_rows, BLOCK);
  const int64_t block_columns = round_up((columns + acrosses - 1) / acrosses, BLOCK);
  downs = (rows + block_rows - 1) / block_rows;
  acrosses = (columns + block_columns - 1) / block_columns;
  const int64_t pieces = std::max<int64_t>(1, (depth + DEPTH - 1) / DEPTH);
  const bool held = pieces * DEPTH * block_columns <= HELD;
  const int64_t turn = std::max<int64_t>(1, downs * acrosses / (8 * threads));  // neighbours share columns
#pragma omp parallel num_threads((int)threads)
  {
    const int64_t left_size = DEPTH * left_row, right_size = (held ? pieces : 1) * DEPTH * block_columns;
    float* left = scratch.get(left_size + right_size + block_rows * block_columns);
    float *right = left + left_size, *sums = right + right_size;
    int64_t packed = -1;
#pragma omp for schedule(dynamic, turn)
    for (int64_t task = 0; task < downs * acrosses; task++) {
      const int64_t r0 = task % downs * block_rows, c0 = task / downs * block_columns;
      const int64_t m = std::min(block_rows, rows - r0), n = std::min(block_columns, columns - c0);
      const int64_t panels = round_up(n, PANEL) / PANEL;
      for (int64_t k0 = 0; k0 < pieces * DEPTH; k0 += DEPTH) {
        const int64_t k = std::min(DEPTH, depth - k0);
        float* piece = right + (held ? k0 * block_columns : 0);
        if (!held || packed != c0) {
          if (b.column == 1)
            pack(b.data + k0 * b.row + c0, b.row, k, n, piece);
          else
            pack_transposed(b.data + c0 * b.column + k0, b.column, n, k, piece);
        }
        if (a.column == 1) {
          copy_rows(a.data + r0 * a.row + k0, a.row, m, k, 1.0f, left, DEPTH);
          multiply<false>(left, DEPTH, piece, sums, block_columns, m, k, panels, k0 > 0);
        } else {
          copy_rows(a.data + k0 * a.column + r0, a.column, k, m, 1.0f, left, left_row);
          multiply<true>(left, left_row, piece, sums, block_columns, m, k, panels, k0 > 0);
        }
      }
      packed = c0;
      for (int64_t r = 0; r < m; r++)
        for (int64_t j = 0; j < n; j += BLOCK) {
          Block x = load(sums + r * block_columns + j, BLOCK);
          bf16* to = c + (r0 + r) * c_row + c0 + j;
          auto plus = [&](const Block& y) {
            for (int i = 0; i < VECTORS; i++) x.v[i] += y.v[i];
          };
          if (bias) plus(load(bias + c0 + j, n - j));
          if (add) plus(load(to, n - j));
          store(to, x, n - j);
        }
    }
  }
}

}  // namespace
