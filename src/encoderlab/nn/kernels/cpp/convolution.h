// Convolutions over positions, (batch, length, width), with an odd number of taps. A tap counts where it falls inside
// the row and, with `doc` (batch, length), on a token of the same document that is not padding (< 0).

#pragma once

#include "vectors.h"

namespace {

constexpr int64_t MOST_TAPS = BLOCK;

// the positions that the taps of position t read, -1 where a tap does not count; `back` takes them in reverse, as
// gradients do
inline void taps_of(const int32_t* doc, int64_t t, int64_t length, int64_t taps, bool back, int64_t* at) {
  for (int64_t j = 0; j < taps; j++) {
    int64_t s = t + (back ? taps / 2 - j : j - taps / 2);
    bool counts = s >= 0 && s < length && (!doc || (doc[s] == doc[t] && doc[t] >= 0));
    at[j] = counts ? s : -1;
  }
}

// out[t] = sum_j weight[j] x[t + j - taps / 2]; weight (taps, width); `back`: its transpose, the gradient of x
template <class T>
void depthwise(const T* x, const float* weight, const int32_t* doc, T* out, int64_t batch, int64_t length,
               int64_t width, int64_t taps, bool back, int64_t threads) {
#pragma omp parallel for schedule(static) num_threads((int)threads)
  for (int64_t row = 0; row < batch * length; row++) {
    const int64_t b = row / length, t = row % length;
    int64_t at[MOST_TAPS];
    taps_of(doc ? doc + b * length : nullptr, t, length, taps, back, at);
    for (int64_t c = 0; c < width; c += BLOCK) {
      Block sum = {};
      for (int64_t j = 0; j < taps; j++) {
        if (at[j] < 0) continue;
        Block v = load(x + (b * length + at[j]) * width + c, width - c), w = load(weight + j * width + c, width - c);
        for (int i = 0; i < VECTORS; i++) sum.v[i] += v.v[i] * w.v[i];
      }
      store(out + row * width + c, sum, width - c);
    }
  }
}

constexpr int64_t TOGETHER = 4;  // positions whose products are added in registers

// dweight (taps, width)
template <class T>
void depthwise_weight(const T* grad, const T* x, const int32_t* doc, float* partial, float* dweight, int64_t batch,
                      int64_t length, int64_t width, int64_t taps, int64_t threads) {
  const int64_t rows = batch * length, groups = (rows + TOGETHER - 1) / TOGETHER;
  sum_rows(groups, taps * width, partial, dweight, threads, [&](int64_t group, float* mine) {
    const T* read[MOST_TAPS][TOGETHER] = {};  // by each tap of each position
    const int64_t first = group * TOGETHER, count = std::min(TOGETHER, rows - first);
    for (int64_t r = 0; r < count; r++) {
      const int64_t b = (first + r) / length, t = (first + r) % length;
      int64_t at[MOST_TAPS];
      taps_of(doc ? doc + b * length : nullptr, t, length, taps, false, at);
      for (int64_t j = 0; j < taps; j++) read[j][r] = at[j] < 0 ? nullptr : x + (b * length + at[j]) * width;
    }
    for (int64_t c = 0; c < width; c += BLOCK) {
      Block g[TOGETHER];
      for (int64_t r = 0; r < count; r++) g[r] = load(grad + (first + r) * width + c, width - c);
      for (int64_t j = 0; j < taps; j++) {
        Block sum = load(mine + j * width + c, width - c);
#pragma GCC unroll 4
        for (int64_t r = 0; r < TOGETHER; r++) {
          if (!read[j][r]) continue;
          Block v = load(read[j][r] + c, width - c);
          for (int i = 0; i < VECTORS; i++) sum.v[i] += g[r].v[i] * v.v[i];
        }
        store(mine + j * width + c, sum, width - c);
      }
    }
  });
}

// A kernel of `taps` per position and head, softmax of its logits:
// out[t, h] = sum_j kernel[t, h, j] x[t + j - taps / 2, h]. The kernels (batch, length, heads, taps), float32, are kept
// for the gradients. Positions of out are `out_row` elements apart.
template <class T>
void dynamic(const T* x, const T* logits, const int32_t* doc, T* out, int64_t out_row, float* kernels, int64_t batch,
             int64_t length, int64_t heads, int64_t width, int64_t taps, int64_t threads) {
#pragma omp parallel for schedule(static) num_threads((int)threads)
  for (int64_t row = 0; row < batch * length; row++) {
    const int64_t b = row / length, t = row % length;
    int64_t at[MOST_TAPS];
    taps_of(doc ? doc + b * length : nullptr, t, length, taps, false, at);
    for (int64_t h = 0; h < heads; h++) {
      float kernel[BLOCK];
      Block e = load(logits + (row * heads + h) * taps, taps);
      floats most = all(-INFINITY), sum = {};
      for (int i = 0; i < VECTORS; i++) {
        e.v[i] = select(lanes() + i * W < (int32_t)taps, e.v[i], all(-INFINITY));
        most = select(e.v[i] > most, e.v[i], most);
      }
      const float peak = largest(most);
      for (int i = 0; i < VECTORS; i++) sum += e.v[i] = exponential(e.v[i] - peak);
      const float inverse = 1.0f / total(sum);
      for (int i = 0; i < VECTORS; i++) e.v[i] *= inverse;
      store(kernel, e, BLOCK);
      store(kernels + (row * heads + h) * taps, e, taps);
      for (int64_t c = 0; c < width; c += BLOCK) {
        Block y = {};
        for (int64_t j = 0; j < taps; j++) {
          if (at[j] < 0) continue;
          Block v = load(x + ((b * length + at[j]) * heads + h) * width + c, width - c);
          for (int i = 0; i < VECTORS; i++) y.v[i] += kernel[j] * v.v[i];
        }
        store(out + row * out_row + h * width + c, y, width - c);
      }
    }
  }
}

template <class T>
void dynamic_backward(const T* grad, int64_t grad_row, const T* x, const float* kernels, const int32_t* doc, T* dx,
                      T* dlogits, int64_t batch, int64_t length, int64_t heads, int64_t width, int64_t taps,
                      int64_t threads) {
#pragma omp parallel for schedule(static) num_threads((int)threads)
  for (int64_t row = 0; row < batch * length; row++) {
    const int64_t b = row / length, t = row % length;
    int64_t at[MOST_TAPS], from[MOST_TAPS];
    taps_of(doc ? doc + b * length : nullptr, t, length, taps, false, at);
    taps_of(doc ? doc + b * length : nullptr, t, length, taps, true, from);
    for (int64_t h = 0; h < heads; h++) {
      floats product[MOST_TAPS] = {};
      for (int64_t c = 0; c < width; c += BLOCK) {
        Block g = load(grad + row * grad_row + h * width + c, width - c), sum = {};
        for (int64_t j = 0; j < taps; j++) {
          if (at[j] >= 0) {
            Block v = load(x + ((b * length + at[j]) * heads + h) * width + c, width - c);
            for (int i = 0; i < VECTORS; i++) product[j] += g.v[i] * v.v[i];
          }
          if (from[j] >= 0) {
            const int64_t other = b * length + from[j];
            Block v = load(grad + other * grad_row + h * width + c, width - c);
            const float k = kernels[(other * heads + h) * taps + j];
            for (int i = 0; i < VECTORS; i++) sum.v[i] += k * v.v[i];
          }
        }
        store(dx + (row * heads + h) * width + c, sum, width - c);
      }
      const float* kernel = kernels + (row * heads + h) * taps;
      float slopes[BLOCK] = {}, mean = 0.0f;
      for (int64_t j = 0; j < taps; j++) mean += kernel[j] * (slopes[j] = total(product[j]));
      Block k = load(kernel, taps), s = load(slopes, BLOCK);
      for (int i = 0; i < VECTORS; i++) k.v[i] *= s.v[i] - mean;
      store(dlogits + (row * heads + h) * taps, k, taps);
    }
  }
}

}  // namespace
