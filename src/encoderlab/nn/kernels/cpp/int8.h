// Products of 8-bit numbers with sums of 32 bits, on processors that add four of them at once (VNNI); plain.py says what
// is computed. Inputs are unsigned with 128 for zero, weights signed, because that is what the instruction takes.

#pragma once

#include "vectors.h"

#if defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !defined(__AVX512F__))
#include <immintrin.h>

namespace {

constexpr int ACROSS = W == 16 ? 4 : 2;            // vectors of columns in the register tile
constexpr int64_t INT8_PANEL = ACROSS * W;         // columns of a panel
constexpr int INT8_TILE = 6;                       // rows of the register tile
constexpr int64_t INT8_ROWS = 32 * INT8_TILE;      // rows that share a panel while it is in the cache
constexpr float TO_INTEGER = 12582912.0f;          // 1.5 2^23: the sum's last bits are the nearest integer, ties to even
constexpr int32_t INTEGER_BITS = 0x4B400000;       // of TO_INTEGER

// Keeps the compiler from joining a product with the sum after it, which would round once where plain.py rounds twice.
INLINE floats rounded(floats x) {
  asm("" : "+v"(x));
  return x;
}

INLINE ints dot(ints sum, ints unsigned_bytes, ints signed_bytes) {
#if defined(__AVX512VNNI__)
  return bits<ints>(_mm512_dpbusd_epi32(bits<__m512i>(sum), bits<__m512i>(unsigned_bytes), bits<__m512i>(signed_bytes)));
#else
  return bits<ints>(
      _mm256_dpbusd_avx_epi32(bits<__m256i>(sum), bits<__m256i>(unsigned_bytes), bits<__m256i>(signed_bytes)));
#endif
}

// x (rows, width) as q = 128 + round(x 127 / m) with the row's largest magnitude m, and scales = m / 127. Rows of q are
// whole groups of four. The scale of a row that is not finite is NaN.
void quantise_rows(const float* x, uint8_t* q, float* scales, int64_t rows, int64_t width, int64_t threads) {
  const int64_t step = round_up(width, 4);
#pragma omp parallel for schedule(static) num_threads((int)threads)
  for (int64_t row = 0; row < rows; row++) {
    const float* from = x + row * width;
    uint8_t* to = q + row * step;
    floats most = {}, broken = {};
    for (int64_t j = 0; j < width; j += BLOCK) {
      Block b = load(from + j, width - j);
      for (int i = 0; i < VECTORS; i++) {
        floats size = bits<floats>(bits<ints>(b.v[i]) & 0x7fffffff);
        most = select(size > most, size, most);
        broken += b.v[i] * 0.0f;
      }
    }
    const float m = largest(most);
    const bool whole = total(broken) == 0.0f;
    const floats factor = all(whole && m > 1e-30f ? 127.0f / m : 0.0f);
    scales[row] = whole ? m / 127.0f : __builtin_nanf("");
    for (int64_t j = 0; j < width; j += BLOCK) {
      const int64_t n = std::min<int64_t>(BLOCK, step - j);
      Block b = load(from + j, width - j);
      uint8_t out[BLOCK];
      for (int i = 0; i < VECTORS; i++) {
        ints nearest = bits<ints>(rounded(b.v[i] * factor) + TO_INTEGER) - (INTEGER_BITS - 128);
        bytes y = __builtin_convertvector(whole ? nearest : ints{} + 128, bytes);
        std::memcpy(n == BLOCK ? to + j + i * W : out + i * W, &y, sizeof y);
      }
      if (n < BLOCK) std::memcpy(to + j, out, n);
    }
  }
}

INLINE ints whole_numbers(const void* p) {
  ints x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

struct Int8Weight {
  const int8_t* panels;    // (panels, depth / 4, INT8_PANEL, 4)
  const float* scales;     // of columns, with room for whole panels, as offsets
  const int32_t* offsets;  // 128 times the sum of a column
};

template <int R>
void int8_tile(const uint8_t* a, const float* a_scales, int64_t depth, const Int8Weight& weight, int64_t panel,
               const float* bias, float* out, int64_t stride, int64_t columns) {
  const int8_t* b = weight.panels + panel * INT8_PANEL * depth;
  ints sum[R][ACROSS];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 16
    for (int c = 0; c < ACROSS; c++) sum[r][c] = ints{};
  for (int64_t k = 0; k < depth; k += 4, b += 4 * INT8_PANEL) {
    ints w[ACROSS];
#pragma GCC unroll 16
    for (int c = 0; c < ACROSS; c++) w[c] = whole_numbers(b + 4 * c * W);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      int32_t four;
      std::memcpy(&four, a + r * depth + k, 4);
#pragma GCC unroll 16
      for (int c = 0; c < ACROSS; c++) sum[r][c] = dot(sum[r][c], ints{} + four, w[c]);
    }
  }
#pragma GCC unroll 16
  for (int c = 0; c < ACROSS; c++) {
    const int64_t j = panel * INT8_PANEL + c * W, n = columns - c * W;
    const ints offset = whole_numbers(weight.offsets + j);
    const floats scale = load(weight.scales + j);
    floats add = {};
    if (bias && n >= W) add = load(bias + c * W);
    if (bias && n > 0 && n < W) std::memcpy(&add, bias + c * W, n * sizeof(float));
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      floats y = __builtin_convertvector(sum[r][c] - offset, floats) * scale * a_scales[r];
      if (bias) y = rounded(y) + add;
      if (n >= W) store(out + r * stride + c * W, y);
      if (n > 0 && n < W) std::memcpy(out + r * stride + c * W, &y, n * sizeof(float));
    }
  }
}

// out (rows, columns) = a (rows, depth) with its scales, times the columns of `weight` from panel `first` on, plus bias.
void int8_product(const uint8_t* a, const float* a_scales, const Int8Weight& weight, int64_t first, const float* bias,
                  float* out, int64_t rows, int64_t columns, int64_t depth, int64_t threads) {
  const int64_t panels = (columns + INT8_PANEL - 1) / INT8_PANEL, parts = (rows + INT8_ROWS - 1) / INT8_ROWS;
#pragma omp parallel for collapse(2) schedule(static) num_threads((int)threads)
  for (int64_t part = 0; part < parts; part++)
    for (int64_t p = 0; p < panels; p++) {
      const int64_t end = std::min(rows, (part + 1) * INT8_ROWS), from = p * INT8_PANEL;
      for (int64_t row = part * INT8_ROWS; row < end; row += INT8_TILE) {
        auto run = [&](auto tile) {
          tile(a + row * depth, a_scales + row, depth, weight, first + p, bias ? bias + from : nullptr,
               out + row * columns + from, columns, columns - from);
        };
        switch (end - row) {
          case 1: run(int8_tile<1>); break;
          case 2: run(int8_tile<2>); break;
          case 3: run(int8_tile<3>); break;
          case 4: run(int8_tile<4>); break;
          case 5: run(int8_tile<5>); break;
          default: run(int8_tile<INT8_TILE>);
        }
      }
    }
}

}  // namespace

#define INT8 1
#else
#define INT8 0
#endif
