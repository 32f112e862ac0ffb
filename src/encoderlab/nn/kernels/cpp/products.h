// Matrix products of operands that lie in the cache: packing into panels, and one register tile.

#pragma once

#include "vectors.h"

namespace {

// dst[panel][k][lane] = src[k][panel * PANEL + lane] for k < depth, columns beyond width zero; panels of dst may be
// deeper (panel_depth) than what is packed.
template <class T>
void pack(const T* src, int64_t stride, int64_t depth, int64_t width, float* dst, int64_t panel_depth = 0) {
  const int64_t rest_of_panel = panel_depth ? (panel_depth - depth) * PANEL : 0;
  for (int64_t p = 0; p < width; p += PANEL, dst += rest_of_panel)
    for (int64_t k = 0; k < depth; k++, dst += PANEL) {
      const T* from = src + k * stride + p;
      if (p + PANEL <= width) {
        store(dst, load(from));
        store(dst + W, load(from + W));
      } else {
        T rest[PANEL] = {};
        std::memcpy(rest, from, (width - p) * sizeof(T));
        store(dst, load(rest));
        store(dst + W, load(rest + W));
      }
    }
}

// dst[row][j] = scale * src[row][j], whole blocks of a row, those elements beyond width zero
template <class T>
void copy_rows(const T* src, int64_t stride, int64_t rows, int64_t width, float scale, float* dst, int64_t dst_stride) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t j = 0; j < width; j += BLOCK) {
      Block b = load(src + r * stride + j, width - j);
      for (int i = 0; i < VECTORS; i++) b.v[i] *= scale;
      store(dst + r * dst_stride + j, b, BLOCK);
    }
}

// Turns rows (count, width) in place by the angles of their places, whose cosines and sines are the halves of the rows
// of rotation (count, width): each pair of halves (a, b) becomes (a cos - b sin, b cos + a sin). `way` -1 turns back.
inline void turn(float* rows, int64_t stride, int64_t count, int64_t width, const float* rotation, float way) {
  const int64_t half = width / 2;
  for (int64_t r = 0; r < count; r++, rows += stride, rotation += width) {
    int64_t j = 0;
    for (; j + W <= half; j += W) {
      const floats a = load(rows + j), b = load(rows + half + j);
      const floats c = load(rotation + j), s = load(rotation + half + j) * way;
      store(rows + j, a * c - b * s);
      store(rows + half + j, b * c + a * s);
    }
    for (; j < half; j++) {
      const float a = rows[j], b = rows[half + j], c = rotation[j], s = rotation[half + j] * way;
      rows[j] = a * c - b * s;
      rows[half + j] = b * c + a * s;
    }
  }
}

// Calls f(rows, stride, first, n) for the rows of src (count, width): all at once, or turned by rotation, if there is
// one, a panel at a time in `room` (PANEL, wide).
template <class T, class F>
void in_turned_rows(const T* src, int64_t stride, int64_t count, int64_t width, const float* rotation, float* room,
                    int64_t wide, F f) {
  if (!rotation) return f(src, stride, int64_t(0), count);
  for (int64_t first = 0; first < count; first += PANEL) {
    const int64_t n = std::min<int64_t>(PANEL, count - first);
    copy_rows(src + first * stride, stride, n, width, 1.0f, room, wide);
    turn(room, wide, n, width, rotation + first * width, 1.0f);
    f(room, wide, first, n);
  }
}

template <int S, int... I>
inline void exchange(floats* v, std::integer_sequence<int, I...>) {
  for (int i = 0; i < W; i++)
    if (!(i & S)) {
      floats a = v[i], b = v[i + S];
      v[i] = SHUFFLE(a, b, (I & S ? W + I - S : I)...);
      v[i + S] = SHUFFLE(a, b, (I & S ? W + I : I + S)...);
    }
}

template <int S = W / 2>
inline void transpose(floats* v) {  // W x W in registers, by log2(W) rounds of pairwise exchange
  exchange<S>(v, std::make_integer_sequence<int, W>());
  if constexpr (S > 1) transpose<S / 2>(v);
}

// dst[panel][k][lane] = src[panel * PANEL + lane][k] for k < depth, rows beyond rows zero
template <class T>
void pack_transposed(const T* src, int64_t stride, int64_t rows, int64_t depth, float* dst) {
  for (int64_t p = 0; p < rows; p += PANEL, dst += depth * PANEL)
    for (int64_t half = 0; half < PANEL; half += W)
      for (int64_t k = 0; k < depth; k += W) {
        floats v[W];
        for (int i = 0; i < W; i++) {
          const T* from = src + (p + half + i) * stride + k;
          if (p + half + i >= rows) {
            v[i] = floats{};
          } else if (k + W <= depth) {
            v[i] = load(from);
          } else {
            T rest[W] = {};
            std::memcpy(rest, from, (depth - k) * sizeof(T));
            v[i] = load(rest);
          }
        }
        transpose<>(v);
        for (int i = 0; i < W && k + i < depth; i++) store(dst + (k + i) * PANEL + half, v[i]);
      }
}

// Zeros in the columns of the panels of p (columns, depth) behind those of the last that was packed.
inline void clear_panels(float* p, int64_t packed, int64_t columns, int64_t depth) {
  const int64_t filled = round_up(packed, PANEL);
  std::memset(p + filled * depth, 0, (columns - filled) * depth * sizeof(float));
}

// c (ROWS, PANEL) = [c +] a (ROWS, depth) b (depth, PANEL); a's element (r, k) is a[r * stride + k], or
// a[k * stride + r] where the product takes its transpose. The sums stay in registers only where all loops over rows
// are unrolled.
template <int ROWS, bool TRANSPOSED, bool ADD>
void tile(const float* a, int64_t stride, const float* b, int64_t depth, float* c, int64_t c_row) {
  floats sum[ROWS][2];
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; r++) {
    sum[r][0] = ADD ? load(c + r * c_row) : floats{};
    sum[r][1] = ADD ? load(c + r * c_row + W) : floats{};
  }
  for (int64_t k = 0; k < depth; k++, b += PANEL, a += TRANSPOSED ? stride : 1) {
    floats b0 = load(b), b1 = load(b + W);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) {
      float x = a[TRANSPOSED ? r : r * stride];
      sum[r][0] += x * b0;
      sum[r][1] += x * b1;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; r++) {
    store(c + r * c_row, sum[r][0]);
    store(c + r * c_row + W, sum[r][1]);
  }
}

template <int ROWS, bool TRANSPOSED>
inline void some_rows(int64_t rows, const float* a, int64_t stride, const float* b, int64_t depth, float* c,
                      int64_t c_row, bool add) {
  if constexpr (ROWS > 0) {
    if (rows == ROWS)
      (add ? tile<ROWS, TRANSPOSED, true> : tile<ROWS, TRANSPOSED, false>)(a, stride, b, depth, c, c_row);
    else
      some_rows<ROWS - 1, TRANSPOSED>(rows, a, stride, b, depth, c, c_row, add);
  }
}

// c (rows, panels * PANEL) = [c +] a (rows, depth) b (depth, packed panels); c is row-major. Panels of b may be deeper
// (panel_depth) than the part of them that is used.
template <bool TRANSPOSED = false>
void multiply(const float* a, int64_t stride, const float* b, float* c, int64_t c_row, int64_t rows, int64_t depth,
              int64_t panels, bool add = false, int64_t panel_depth = 0) {
  for (int64_t p = 0; p < panels; p++, b += (panel_depth ? panel_depth : depth) * PANEL, c += PANEL)
    for (int64_t r = 0; r < rows; r += TILE)
      some_rows<TILE, TRANSPOSED>(std::min<int64_t>(TILE, rows - r), a + r * (TRANSPOSED ? 1 : stride), stride, b,
                                  depth, c + r * c_row, c_row, add);
}

}  // namespace
