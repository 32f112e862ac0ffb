// Functions of one position at a time: dropout, LayerNorm, GELU, cross entropy, divergence.

#pragma once

#include "vectors.h"

namespace {

// ------------------------------------------------------------------------------------------------------------- dropout

// where the random numbers of a position begin
inline uint32_t first_counter(int64_t position, int64_t width) {
  return (uint32_t)(position * (round_up(width, BLOCK) / 2));
}

template <class T>
void dropout(const T* x, T* out, const int64_t* seeds, int64_t batch, int64_t positions, int64_t width, int64_t site,
             int64_t threshold, float scale, int64_t threads) {
#pragma omp parallel for schedule(static) num_threads((int)threads)
  for (int64_t row = 0; row < batch * positions; row++) {
    Dropout drop(seeds + row / positions, site, threshold, scale);
    uint32_t counter = first_counter(row % positions, width);
    for (int64_t j = 0; j < width; j += BLOCK) {
      Block b = stream(x + row * width + j, width - j);
      drop.apply(counter + (uint32_t)(j / 2), b);
      store(out + row * width + j, b, width - j);
    }
  }
}

// ------------------------------------------------------------------------------------------------ dropout + add + norm

// residual + dropout(x + x_bias) of one position, into z, for forward and backward alike
template <class T>
inline void summed(const T* x, const float* x_bias, const T* residual, const Dropout& drop, uint32_t counter, float* z,
                   int64_t width) {
  for (int64_t j = 0; j < width; j += BLOCK) {
    int64_t n = width - j;
    Block b = stream(x + j, n);
    if (x_bias) {
      Block add = load(x_bias + j, n);
      for (int i = 0; i < VECTORS; i++) b.v[i] += add.v[i];
    }
    drop.apply(counter + (uint32_t)(j / 2), b);
    if (residual) {
      Block r = stream(residual + j, n);
      for (int i = 0; i < VECTORS; i++) b.v[i] += r.v[i];
    }
    store(z + j, b, BLOCK);  // z has room for whole blocks; its rest is zero
  }
}

// The norm of z (width, with room for whole blocks), and its mean and 1 / deviation.
template <class T>
inline void normalize(const float* z, const float* weight, const float* bias, bool center, T* out, float* statistics,
                      int64_t width, float eps) {
  floats sum = {};
  for (int64_t j = 0; j < round_up(width, BLOCK); j += W) sum += load(z + j);
  const float mean = center ? total(sum) / (float)width : 0.0f;
  floats squares = {};
  for (int64_t j = 0; j < width; j += BLOCK) {
    Block b = load(z + j, BLOCK);
    for (int i = 0; i < VECTORS; i++) b.v[i] -= mean;
    clear_rest(b, width - j);
    for (int i = 0; i < VECTORS; i++) squares += b.v[i] * b.v[i];
  }
  const float rstd = 1.0f / std::sqrt(total(squares) / (float)width + eps);
  statistics[0] = mean;
  statistics[1] = rstd;
  for (int64_t j = 0; j < width; j += BLOCK) {
    Block b = load(z + j, BLOCK), w = load(weight + j, width - j), c = {};
    if (bias) c = load(bias + j, width - j);
    for (int i = 0; i < VECTORS; i++) b.v[i] = (b.v[i] - mean) * rstd * w.v[i] + c.v[i];
    store(out + j, b, width - j);
  }
}

// The gradient of what a norm reads, block by block.
struct NormGradient {
  float mean, along, rstd;  // what is common to a row, and what lies along its direction

  Block operator()(const float* z, const float* weighted, int64_t j) const {
    Block b = load(z + j, BLOCK), w = load(weighted + j, BLOCK);
    for (int i = 0; i < VECTORS; i++) b.v[i] = (w.v[i] - mean - b.v[i] * along) * rstd;
    return b;
  }
};

// z becomes normalised, `weighted` the gradient behind the gains; mine (2, width) takes those of gains and shifts.
template <class T>
inline NormGradient norm_gradient(float* z, float* weighted, const T* grad, const float* weight, bool center,
                                  const float* statistics, float* mine, int64_t width) {
  const float mean = statistics[0], rstd = statistics[1];
  floats sum = {}, projection = {};
  for (int64_t j = 0; j < width; j += BLOCK) {
    int64_t n = width - j;
    Block g = stream(grad + j, n), w = load(weight + j, n), b = load(z + j, BLOCK);
    Block dweight = load(mine + j, n), dbias = load(mine + width + j, n);
    for (int i = 0; i < VECTORS; i++) {
      b.v[i] = (b.v[i] - mean) * rstd;
      dweight.v[i] += g.v[i] * b.v[i];
      dbias.v[i] += g.v[i];
      w.v[i] *= g.v[i];  // zero beyond the width, as g is
      sum += w.v[i];
      projection += w.v[i] * b.v[i];
    }
    store(mine + j, dweight, n);
    store(mine + width + j, dbias, n);
    store(z + j, b, BLOCK);
    store(weighted + j, w, BLOCK);
  }
  return {center ? total(sum) / (float)width : 0.0f, total(projection) / (float)width, rstd};
}

// LayerNorm, or RMSNorm, which does not `center`; bias may be null.
template <class T>
void add_norm(const T* x, const float* x_bias, const T* residual, const float* weight, const float* bias, bool center,
              T* out, float* statistics, const int64_t* seeds, int64_t batch, int64_t positions, int64_t width,
              int64_t site, int64_t threshold, float scale, float eps, int64_t threads) {
#pragma omp parallel for schedule(static) num_threads((int)threads)
  for (int64_t row = 0; row < batch * positions; row++) {
    float* z = scratch.get(round_up(width, BLOCK));
    Dropout drop(seeds ? seeds + row / positions : nullptr, site, threshold, scale);
    summed(x + row * width, x_bias, residual ? residual + row * width : nullptr, drop,
           first_counter(row % positions, width), z, width);
    normalize(z, weight, bias, center, out + row * width, statistics + 2 * row, width, eps);
  }
}

// residual + dropout(x + x_bias), written to sums, and its norm, to out; without x only the norm of the residual.
template <class T, class R>
void sum_norm(const T* x, const float* x_bias, const R* residual, const float* weight, const float* bias, bool center,
              R* sums, T* out, float* statistics, const int64_t* seeds, int64_t batch, int64_t positions, int64_t width,
              int64_t site, int64_t threshold, float scale, float eps, int64_t threads) {
#pragma omp parallel for schedule(static) num_threads((int)threads)
  for (int64_t row = 0; row < batch * positions; row++) {
    float* z = scratch.get(round_up(width, BLOCK));
    Dropout drop(seeds ? seeds + row / positions : nullptr, site, threshold, scale);
    const uint32_t counter = first_counter(row % positions, width);
    for (int64_t j = 0; j < width; j += BLOCK) {
      const int64_t n = width - j;
      Block r = stream(residual + row * width + j, n);
      if (x) {
        Block b = stream(x + row * width + j, n);
        if (x_bias) {
          Block add = load(x_bias + j, n);
          for (int i = 0; i < VECTORS; i++) b.v[i] += add.v[i];
        }
        drop.apply(counter + (uint32_t)(j / 2), b);
        for (int i = 0; i < VECTORS; i++) r.v[i] += b.v[i];
        store(sums + row * width + j, r, n);
        r = load(sums + row * width + j, n);  // as the backward pass reads it
      }
      store(z + j, r, BLOCK);
    }
    normalize(z, weight, bias, center, out + row * width, statistics + 2 * row, width, eps);
  }
}

// The gradient of sums, of which dsums comes from elsewhere (or null) and the rest from that of out, grad; dx gets it
// after dropout (null: there is no x). totals (3, width): gradients of weight, bias, x_bias.
template <class T, class R>
void sum_norm_backward(const T* grad, const R* dsums, const R* sums, const float* weight, bool center,
                       const float* statistics, R* dresidual, T* dx, float* partial, float* totals,
                       const int64_t* seeds, int64_t batch, int64_t positions, int64_t width, int64_t site,
                       int64_t threshold, float scale, int64_t threads) {
  const int64_t padded = round_up(width, BLOCK);
  sum_rows(batch * positions, 3 * width, partial, totals, threads, [&](int64_t row, float* mine) {
    float* z = scratch.get(2 * padded);
    float* weighted = z + padded;
    for (int64_t j = 0; j < width; j += BLOCK) store(z + j, stream(sums + row * width + j, width - j), BLOCK);
    const NormGradient from = norm_gradient(z, weighted, grad + row * width, weight, center, statistics + 2 * row,
                                            mine, width);
    Dropout drop(seeds ? seeds + row / positions : nullptr, site, threshold, scale);
    const uint32_t counter = first_counter(row % positions, width);
    for (int64_t j = 0; j < width; j += BLOCK) {
      const int64_t n = width - j;
      Block b = from(z, weighted, j);
      if (dsums) {
        Block d = stream(dsums + row * width + j, n);
        for (int i = 0; i < VECTORS; i++) b.v[i] += d.v[i];
      }
      store(dresidual + row * width + j, b, n);
      if (!dx) continue;
      drop.apply(counter + (uint32_t)(j / 2), b);
      store(dx + row * width + j, b, n);
      accumulate(mine + 2 * width + j, b, n);
    }
  });
}

// sums (3, width): gradients of weight, bias, x_bias
template <class T>
void add_norm_backward(const T* grad, const T* x, const float* x_bias, const T* residual, const float* weight,
                       bool center, const float* statistics, T* dx, T* dresidual, float* partial, float* sums,
                       const int64_t* seeds, int64_t batch, int64_t positions, int64_t width, int64_t site, int64_t threshold, float scale,
                       int64_t threads) {
  int64_t padded = round_up(width, BLOCK);
  sum_rows(batch * positions, 3 * width, partial, sums, threads, [&](int64_t row, float* mine) {
    float* z = scratch.get(2 * padded);
    float* weighted = z + padded;
    uint32_t counter = first_counter(row % positions, width);
    Dropout drop(seeds ? seeds + row / positions : nullptr, site, threshold, scale);
    summed(x + row * width, x_bias, residual ? residual + row * width : nullptr, drop, counter, z, width);
    const NormGradient from = norm_gradient(z, weighted, grad + row * width, weight, center, statistics + 2 * row,
                                            mine, width);
    for (int64_t j = 0; j < width; j += BLOCK) {
      int64_t n = width - j;
      Block b = from(z, weighted, j);
      if (dresidual) store(dresidual + row * width + j, b, n);
      drop.apply(counter + (uint32_t)(j / 2), b);
      if (dx) store(dx + row * width + j, b, n);
      if (x_bias) accumulate(mine + 2 * width + j, b, n);
    }
  });
}

// ----------------------------------------------------------------------------------------------- bias + GELU + dropout

// What a bias adds from j on; nothing where it is null.
inline Block shifts(const float* bias, int64_t j, int64_t n) { return bias ? load(bias + j, n) : Block{}; }

template <class G, class T>
void gelu(const T* x, const float* bias, T* out, const int64_t* seeds, int64_t batch, int64_t positions, int64_t width,
          int64_t site, int64_t threshold, float scale, int64_t threads) {
#pragma omp parallel for schedule(static) num_threads((int)threads)
  for (int64_t row = 0; row < batch * positions; row++) {
    Dropout drop(seeds ? seeds + row / positions : nullptr, site, threshold, scale);
    uint32_t counter = first_counter(row % positions, width);
    for (int64_t j = 0; j < width; j += BLOCK) {
      Block b = stream(x + row * width + j, width - j), c = shifts(bias, j, width - j);
      for (int i = 0; i < VECTORS; i++) b.v[i] = G::value(b.v[i] + c.v[i]);
      drop.apply(counter + (uint32_t)(j / 2), b);
      store(out + row * width + j, b, width - j);
    }
  }
}

// The gradient of x replaces grad; out, which may be x, is the result of the forward pass again.
template <class G, class T>
void gelu_backward(T* grad, const T* x, const float* bias, T* out, float* partial, float* dbias, const int64_t* seeds,
                   int64_t batch, int64_t positions, int64_t width, int64_t site, int64_t threshold, float scale,
                   int64_t threads) {
  sum_rows(batch * positions, bias ? width : 0, partial, dbias, threads, [&](int64_t row, float* mine) {
    Dropout drop(seeds ? seeds + row / positions : nullptr, site, threshold, scale);
    uint32_t counter = first_counter(row % positions, width);
    for (int64_t j = 0; j < width; j += BLOCK) {
      int64_t n = width - j;
      Block b = stream(x + row * width + j, n), c = shifts(bias, j, n), g = stream(grad + row * width + j, n);
      for (int i = 0; i < VECTORS; i++) {
        floats value, slope;
        G::both(b.v[i] + c.v[i], value, slope);
        g.v[i] *= slope;
        b.v[i] = value;
      }
      drop.apply(counter + (uint32_t)(j / 2), g, b);
      store(grad + row * width + j, g, n);
      store(out + row * width + j, b, n);
      if (bias) accumulate(mine + j, g, n);
    }
  });
}

// dropout(gelu(x + bias) * gate), where a row of x and bias is what is activated and then the gate, `width` each.
template <class G, class T>
void geglu(const T* x, const float* bias, T* out, const int64_t* seeds, int64_t batch, int64_t positions, int64_t width,
           int64_t site, int64_t threshold, float scale, int64_t threads) {
#pragma omp parallel for schedule(static) num_threads((int)threads)
  for (int64_t row = 0; row < batch * positions; row++) {
    Dropout drop(seeds ? seeds + row / positions : nullptr, site, threshold, scale);
    const uint32_t counter = first_counter(row % positions, width);
    const T* from = x + 2 * row * width;
    for (int64_t j = 0; j < width; j += BLOCK) {
      const int64_t n = width - j;
      Block b = stream(from + j, n), gate = stream(from + width + j, n);
      const Block c = shifts(bias, j, n), d = shifts(bias, width + j, n);
      for (int i = 0; i < VECTORS; i++) b.v[i] = G::value(b.v[i] + c.v[i]) * (gate.v[i] + d.v[i]);
      drop.apply(counter + (uint32_t)(j / 2), b);
      store(out + row * width + j, b, n);
    }
  }
}

// The gradient of x goes to dx, which may be x; the result of the forward pass replaces grad.
template <class G, class T>
void geglu_backward(T* grad, const T* x, const float* bias, T* dx, float* partial, float* dbias, const int64_t* seeds,
                    int64_t batch, int64_t positions, int64_t width, int64_t site, int64_t threshold, float scale,
                    int64_t threads) {
  sum_rows(batch * positions, bias ? 2 * width : 0, partial, dbias, threads, [&](int64_t row, float* mine) {
    Dropout drop(seeds ? seeds + row / positions : nullptr, site, threshold, scale);
    const uint32_t counter = first_counter(row % positions, width);
    const T* from = x + 2 * row * width;
    T* to = dx + 2 * row * width;
    for (int64_t j = 0; j < width; j += BLOCK) {
      const int64_t n = width - j;
      Block b = stream(from + j, n), gate = stream(from + width + j, n), g = stream(grad + row * width + j, n), dgate;
      const Block c = shifts(bias, j, n), d = shifts(bias, width + j, n);
      drop.apply(counter + (uint32_t)(j / 2), g);
      for (int i = 0; i < VECTORS; i++) {
        floats value, slope;
        G::both(b.v[i] + c.v[i], value, slope);
        gate.v[i] += d.v[i];
        dgate.v[i] = g.v[i] * value;
        b.v[i] = value * gate.v[i];
        g.v[i] *= slope * gate.v[i];
      }
      drop.apply(counter + (uint32_t)(j / 2), b);
      store(to + j, g, n);
      store(to + width + j, dgate, n);
      store(grad + row * width + j, b, n);
      if (!bias) continue;
      accumulate(mine + j, g, n);
      accumulate(mine + width + j, dgate, n);
    }
  });
}

// ------------------------------------------------------------------------------------- cross entropy of rows, in place

// The largest of x + bias (classes; bias may be null), which goes to z, with minus infinity in the rest of a block.
template <class T>
inline float read_logits(const T* x, const float* bias, float* z, int64_t classes) {
  floats most = all(-INFINITY);
  for (int64_t j = 0; j < classes; j += BLOCK) {
    int64_t n = classes - j;
    Block b = load(x + j, n);
    if (bias) {
      Block c = load(bias + j, n);
      for (int i = 0; i < VECTORS; i++) b.v[i] += c.v[i];
    }
    if (n < BLOCK)
      for (int i = 0; i < VECTORS; i++) b.v[i] = select(lanes() + i * W < (int32_t)n, b.v[i], all(-INFINITY));
    for (int i = 0; i < VECTORS; i++) most = select(b.v[i] > most, b.v[i], most);
    store(z + j, b, BLOCK);
  }
  return largest(most);
}

// The class at which the running sum of z (classes) passes `point`; classes without mass are never chosen.
inline int64_t invert(const float* z, int64_t classes, double point) {
  int64_t block = 0;
  bool found = false;
  for (int64_t j = 0; j < classes && !found; j += BLOCK) {
    Block b = load(z + j, classes - j);
    for (int i = 1; i < VECTORS; i++) b.v[0] += b.v[i];
    double mass = total(b.v[0]);
    if (mass > 0.0) block = j;
    found = mass > point;
    if (!found) point -= mass;
  }
  int64_t chosen = block;  // where rounding leaves a rest, the last class of the block that has mass
  for (int64_t j = block; j < std::min(block + BLOCK, classes); j++) {
    if (z[j] > 0.0f) chosen = j;
    if (found && z[j] > point) break;
    point -= z[j];
  }
  return chosen;
}

// logits (rows, classes), stride between rows: loss[row], hit[row], and sampled[row], drawn from the softmax by
// inversion at uniforms[row]. With gradients, softmax - onehot replaces the logits and dbias gets its sum over the
// rows. The bias is added first.
template <class T>
void cross_entropy(T* logits, int64_t stride, const float* bias, const int64_t* labels, float* loss, uint8_t* hit,
                   const double* uniforms, int64_t* sampled, float* partial, float* dbias, int64_t rows,
                   int64_t classes, bool gradients, float z_loss, int64_t threads) {
  sum_rows(rows, gradients && bias ? classes : 0, partial, dbias, threads, [&](int64_t row, float* mine) {
    T* x = logits + row * stride;
    float* z = scratch.get(round_up(classes, BLOCK));
    const float peak = read_logits(x, bias, z, classes), chosen = z[labels[row]];
    hit[row] = chosen == peak && std::find(z, z + labels[row], peak) == z + labels[row];  // of equal ones the first
    floats sum = {};
    for (int64_t j = 0; j < classes; j += BLOCK) {
      Block b = load(z + j, BLOCK);
      for (int i = 0; i < VECTORS; i++) {
        b.v[i] = exponential(b.v[i] - peak);
        sum += b.v[i];
      }
      store(z + j, b, BLOCK);
    }
    float normaliser = total(sum);
    loss[row] = std::log(normaliser) + peak - chosen;
    if (uniforms) sampled[row] = invert(z, classes, uniforms[row] * normaliser);
    if (!gradients) return;
    // Of z_loss log(Z)^2 too: softmax times 1 + 2 z_loss log(Z), where it was softmax.
    float factor = 1.0f + 2.0f * z_loss * (std::log(normaliser) + peak);
    float scale = factor / normaliser;
    z[labels[row]] -= normaliser / factor;
    for (int64_t j = 0; j < classes; j += BLOCK) {
      Block b = load(z + j, BLOCK);
      for (int i = 0; i < VECTORS; i++) b.v[i] *= scale;
      store(x + j, b, classes - j);
      if (bias) accumulate(mine + j, b, classes - j);
    }
  });
}

// ------------------------------------------------------------------------------- divergence of two rows of logits

// KL(softmax(targets / t) || softmax(logits / t)) with cold = 1 / t; logits, targets (rows, classes). hit[row]: both have
// the same first choice. gradient (rows, classes) by the logits, if not null.
template <class T>
void divergence(const T* logits, const T* targets, T* gradient, float* loss, uint8_t* hit, int64_t rows,
                int64_t classes, float cold, int64_t threads) {
#pragma omp parallel for schedule(static) num_threads((int)threads)
  for (int64_t row = 0; row < rows; row++) {
    const int64_t padded = round_up(classes, BLOCK);
    float* own = scratch.get(2 * padded);
    float* wanted = own + padded;
    const float peak = read_logits(logits + row * classes, nullptr, own, classes);
    const float wanted_peak = read_logits(targets + row * classes, nullptr, wanted, classes);
    hit[row] = std::find(own, own + classes, peak) - own == std::find(wanted, wanted + classes, wanted_peak) - wanted;
    floats sum = {}, wanted_sum = {}, apart = {};
    for (int64_t j = 0; j < classes; j += BLOCK) {
      Block a = load(own + j, BLOCK), b = load(wanted + j, BLOCK);
      for (int i = 0; i < VECTORS; i++) {
        const floats x = (a.v[i] - peak) * cold, y = (b.v[i] - wanted_peak) * cold;
        a.v[i] = exponential(x);
        b.v[i] = exponential(y);
        sum += a.v[i];
        wanted_sum += b.v[i];
        apart += select(b.v[i] > 0.0f, b.v[i] * (y - x), floats{});  // without mass, y may be minus infinity
      }
      store(own + j, a, BLOCK);
      store(wanted + j, b, BLOCK);
    }
    const float normaliser = total(sum), wanted_normaliser = total(wanted_sum);
    loss[row] = total(apart) / wanted_normaliser + std::log(normaliser / wanted_normaliser);
    if (!gradient) continue;
    const float scale = cold / normaliser, wanted_scale = cold / wanted_normaliser;
    for (int64_t j = 0; j < classes; j += BLOCK) {
      Block a = load(own + j, BLOCK), b = load(wanted + j, BLOCK);
      for (int i = 0; i < VECTORS; i++) a.v[i] = a.v[i] * scale - b.v[i] * wanted_scale;
      store(gradient + row * classes + j, a, classes - j);
    }
  }
}

}  // namespace
