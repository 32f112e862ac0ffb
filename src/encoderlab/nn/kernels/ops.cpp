// The model's work between matrix products for CPUs: one pass over memory per function, dropout masks computed in
// registers, float32 arithmetic whatever the storage (float32 or bfloat16). plain.py says what each function computes.
//
// Plain C functions over raw pointers, called through ctypes, so that no torch header is needed and the file compiles in
// seconds. Vectors are those of the compiler's vector extension (GCC, Clang): AVX-512, AVX2, SSE and NEON from one text.
// Sums over rows go through a fixed number of chunks, so results do not depend on the number of threads.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace {

#if defined(__AVX512F__)
constexpr int W = 16;  // floats in a vector
constexpr int TILE = 12;  // rows of the matrix product's register tile
#elif defined(__AVX__)
constexpr int W = 8;
constexpr int TILE = 6;
#else
constexpr int W = 4;
constexpr int TILE = 6;
#endif
constexpr int PANEL = 2 * W;  // columns of the register tile
constexpr int BLOCK = 32;     // elements that share 16 words of random bits
constexpr int VECTORS = BLOCK / W;
constexpr int64_t CHUNKS = 32;

typedef float floats __attribute__((vector_size(4 * W)));
typedef int32_t ints __attribute__((vector_size(4 * W)));
typedef uint32_t words __attribute__((vector_size(4 * W)));
typedef uint16_t shorts __attribute__((vector_size(2 * W)));
typedef uint8_t bytes __attribute__((vector_size(W)));

struct bf16 {
  uint16_t bits;
};

template <class To, class From>
inline To bits(const From& x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}

inline floats all(float x) { return x - floats{}; }
inline floats select(ints mask, floats a, floats b) { return mask ? a : b; }

inline floats load(const float* p) {
  floats x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

inline floats load(const bf16* p) {
  shorts x;
  std::memcpy(&x, p, sizeof x);
  return bits<floats>(__builtin_convertvector(x, words) << 16);
}

inline void store(float* p, floats x) { std::memcpy(p, &x, sizeof x); }

inline void store(bf16* p, floats x) {  // to nearest, ties to even
  words u = bits<words>(x);
  u = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  u = (x != x) ? words{} + 0x7fc0u : u;
  shorts y = __builtin_convertvector(u, shorts);
  std::memcpy(p, &y, sizeof y);
}

inline ints lanes() {
  ints x;
  for (int i = 0; i < W; i++) x[i] = i;
  return x;
}

inline float total(floats x) {
  float sums[W];
  store(sums, x);
  for (int half = W / 2; half; half /= 2)
    for (int i = 0; i < half; i++) sums[i] += sums[i + half];
  return sums[0];
}

inline float largest(floats x) {
  float y = x[0];
  for (int i = 1; i < W; i++) y = x[i] > y ? x[i] : y;
  return y;
}

// 32 neighbouring elements in registers; of a shorter rest the missing ones are zero.
struct Block {
  floats v[VECTORS];
};

template <class T>
inline Block load(const T* p, int64_t n) {
  Block b;
  if (n >= BLOCK) {
    for (int i = 0; i < VECTORS; i++) b.v[i] = load(p + i * W);
  } else {
    T rest[BLOCK] = {};
    std::memcpy(rest, p, n * sizeof(T));
    for (int i = 0; i < VECTORS; i++) b.v[i] = load(rest + i * W);
  }
  return b;
}

template <class T>
inline void store(T* p, const Block& b, int64_t n) {
  if (n >= BLOCK) {
    for (int i = 0; i < VECTORS; i++) store(p + i * W, b.v[i]);
  } else {
    T rest[BLOCK];
    for (int i = 0; i < VECTORS; i++) store(rest + i * W, b.v[i]);
    std::memcpy(p, rest, n * sizeof(T));
  }
}

inline void clear_rest(Block& b, int64_t n) {
  if (n >= BLOCK) return;
  for (int i = 0; i < VECTORS; i++) b.v[i] = select(lanes() + i * W < (int32_t)n, b.v[i], floats{});
}

// ---------------------------------------------------------------------------------------------- functions of one number

// of x <= 88: 2^n e^r with a minimax polynomial, relative error 1e-7; zero below -87
inline floats exponential(floats x) {
  floats shifted = x * 1.44269504088896341f + 12582912.0f;  // 1.5 * 2^23: the integer part lands in the low bits
  floats n = shifted - 12582912.0f;
  floats r = x - n * 0.693359375f + n * 2.12194440e-4f;
  floats p = r * 1.3814539415761828e-3f + 8.36874544620514e-3f;
  p = p * r + 4.166838899254799e-2f;
  p = p * r + 1.666652113199234e-1f;
  p = p * r + 4.999999403953552e-1f;
  p = p * (r * r) + r + 1.0f;
  floats scaled = p * bits<floats>((bits<ints>(shifted) - 0x4b400000 + 127) << 23);
  return select(x < -87.0f, floats{}, scaled);
}

inline floats erf(floats x) {  // rational, odd, of degree 13 / 8 (Eigen's coefficients); absolute error below 4e-7
  x = select(x > 4.0f, all(4.0f), select(x < -4.0f, all(-4.0f), x));
  floats s = x * x;
  floats p = s * -2.72614225801306e-10f + 2.77068142495902e-08f;
  p = p * s + -2.10102402082508e-06f;
  p = p * s + -5.69250639462346e-05f;
  p = p * s + -7.34990630326855e-04f;
  p = p * s + -2.95459980854025e-03f;
  p = p * s + -1.60960333262415e-02f;
  floats q = s * -1.45660718464996e-05f + -2.13374055278905e-04f;
  q = q * s + -1.68282697438203e-03f;
  q = q * s + -7.37332916720468e-03f;
  q = q * s + -1.42647390514189e-02f;
  return x * p / q;
}

struct Gelu {  // x Phi(x)
  static floats value(floats x) { return x * (0.5f + 0.5f * erf(x * 0.70710678118654752f)); }
  static void both(floats x, floats& value, floats& slope) {
    floats phi = 0.5f + 0.5f * erf(x * 0.70710678118654752f);
    value = x * phi;
    slope = phi + x * 0.39894228040143268f * exponential(x * x * -0.5f);
  }
};

struct GeluTanh {  // x / (1 + exp(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3): the tanh form written with a sigmoid
  static floats sigmoid(floats x) {
    floats y = x * (-1.5957691216057308f - 0.0713548162726009f * (x * x));
    return select(y > 88.0f, floats{}, 1.0f / (1.0f + exponential(select(y > 88.0f, floats{}, y))));
  }
  static floats value(floats x) { return x * sigmoid(x); }
  static void both(floats x, floats& value, floats& slope) {
    floats s = sigmoid(x);
    value = x * s;
    slope = s + value * (1.0f - s) * (1.5957691216057308f + 0.2140644488178027f * (x * x));
  }
};

// ------------------------------------------------------------------------------------------------------- random numbers

inline uint64_t mix64(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

inline uint64_t stream(uint64_t key, int64_t site) { return mix64(key + (uint64_t)(site + 1) * 0x9E3779B97F4A7C15u); }

constexpr uint32_t WEYL = 0x9E3779B9u;

struct Dropout {  // of one stream; without keys everything is kept
  bool on;
  uint32_t low, high;
  int32_t threshold;
  float scale;

  Dropout(const int64_t* key, int64_t site, int64_t threshold, float scale)
      : on(key != nullptr), low(0), high(0), threshold((int32_t)threshold), scale(scale) {
    if (on) set(stream((uint64_t)*key, site));
  }
  void set(uint64_t s) {
    low = (uint32_t)s;
    high = (uint32_t)(s >> 32);
  }
  void masks(uint32_t counter, ints* keep) const {
    words x0 = bits<words>(lanes()) * WEYL + (counter * WEYL + low);
    for (int i = 0; i < 16 / W; i++) {
      words x = x0 + (uint32_t)(i * W) * WEYL;
      x = (x ^ x >> 16) * 0x21F0AAADu + high;
      x = (x ^ x >> 15) * 0xD35A2D97u;
      x = x ^ x >> 15;
      keep[i] = bits<ints>(x << 16) >= threshold;
      keep[i + 16 / W] = bits<ints>(x) >= threshold;
    }
  }
  void apply(uint32_t counter, Block& b) const {
    if (!on) return;
    ints keep[VECTORS];
    masks(counter, keep);
    for (int i = 0; i < VECTORS; i++) b.v[i] = select(keep[i], b.v[i] * scale, floats{});
  }
};

inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Memory of one thread, kept between calls.
struct Scratch {
  float* data = nullptr;
  int64_t size = 0;
  float* get(int64_t floats_needed) {
    if (floats_needed > size) {
      std::free(data);
      size = round_up(floats_needed, 1024);
      data = static_cast<float*>(std::aligned_alloc(64, size * sizeof(float)));
      if (!data) std::abort();
    }
    return data;
  }
  ~Scratch() { std::free(data); }
};
thread_local Scratch scratch;

// Calls f(row, partial) for every row, in parallel, then adds the partial sums (CHUNKS, columns) into sums (columns).
template <class F>
void sum_rows(int64_t rows, int64_t columns, float* partial, float* sums, int64_t threads, F f) {
  int64_t chunks = std::min(CHUNKS, rows);
#pragma omp parallel for schedule(dynamic) num_threads((int)threads)
  for (int64_t c = 0; c < chunks; c++) {
    float* mine = partial + c * columns;
    if (columns) std::memset(mine, 0, columns * sizeof(float));
    for (int64_t row = rows * c / chunks; row < rows * (c + 1) / chunks; row++) f(row, mine);
  }
  if (columns) std::memset(sums, 0, columns * sizeof(float));
  for (int64_t c = 0; c < chunks; c++)
    for (int64_t j = 0; j < columns; j++) sums[j] += partial[c * columns + j];
}

inline void accumulate(float* p, const Block& b, int64_t n) {
  Block s = load(p, n);
  for (int i = 0; i < VECTORS; i++) s.v[i] += b.v[i];
  store(p, s, n);
}

// ------------------------------------------------------------------------------------------------------------- dropout

template <class T>
void dropout(const T* x, T* out, const int64_t* keys, int64_t batch, int64_t positions, int64_t width, int64_t site,
             int64_t threshold, float scale, int64_t threads) {
  int64_t blocks = (width + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(static) num_threads((int)threads)
  for (int64_t row = 0; row < batch * positions; row++) {
    Dropout drop(keys + row / positions, site, threshold, scale);
    uint32_t counter = (uint32_t)(row % positions * blocks * 16);
    for (int64_t j = 0; j < width; j += BLOCK) {
      Block b = load(x + row * width + j, width - j);
      drop.apply(counter + (uint32_t)(j / 2), b);
      store(out + row * width + j, b, width - j);
    }
  }
}

// ------------------------------------------------------------------------------------------- dropout + add + LayerNorm

// residual + dropout(x + x_bias) of one position, into z; returns nothing else, for forward and backward alike
template <class T>
inline void summed(const T* x, const float* x_bias, const T* residual, const Dropout& drop, uint32_t counter, float* z,
                   int64_t width) {
  for (int64_t j = 0; j < width; j += BLOCK) {
    int64_t n = width - j;
    Block b = load(x + j, n);
    if (x_bias) {
      Block add = load(x_bias + j, n);
      for (int i = 0; i < VECTORS; i++) b.v[i] += add.v[i];
    }
    drop.apply(counter + (uint32_t)(j / 2), b);
    if (residual) {
      Block r = load(residual + j, n);
      for (int i = 0; i < VECTORS; i++) b.v[i] += r.v[i];
    }
    store(z + j, b, BLOCK);  // z has room for whole blocks; its rest is zero
  }
}

template <class T>
void add_norm(const T* x, const float* x_bias, const T* residual, const float* weight, const float* bias, T* out,
              float* statistics, const int64_t* keys, int64_t batch, int64_t positions, int64_t width, int64_t site,
              int64_t threshold, float scale, float eps, int64_t threads) {
  int64_t blocks = (width + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(static) num_threads((int)threads)
  for (int64_t row = 0; row < batch * positions; row++) {
    float* z = scratch.get(blocks * BLOCK);
    Dropout drop(keys ? keys + row / positions : nullptr, site, threshold, scale);
    summed(x + row * width, x_bias, residual ? residual + row * width : nullptr, drop,
           (uint32_t)(row % positions * blocks * 16), z, width);
    floats sum = {};
    for (int64_t j = 0; j < blocks * BLOCK; j += W) sum += load(z + j);
    float mean = total(sum) / (float)width;
    floats squares = {};
    for (int64_t j = 0; j < width; j += BLOCK) {
      Block b = load(z + j, BLOCK);
      for (int i = 0; i < VECTORS; i++) b.v[i] -= mean;
      clear_rest(b, width - j);
      for (int i = 0; i < VECTORS; i++) squares += b.v[i] * b.v[i];
    }
    float rstd = 1.0f / std::sqrt(total(squares) / (float)width + eps);
    statistics[2 * row] = mean;
    statistics[2 * row + 1] = rstd;
    for (int64_t j = 0; j < width; j += BLOCK) {
      Block b = load(z + j, BLOCK), w = load(weight + j, width - j), c = load(bias + j, width - j);
      for (int i = 0; i < VECTORS; i++) b.v[i] = (b.v[i] - mean) * rstd * w.v[i] + c.v[i];
      store(out + row * width + j, b, width - j);
    }
  }
}

// sums (3, width): gradients of weight, bias, x_bias
template <class T>
void add_norm_backward(const T* grad, const T* x, const float* x_bias, const T* residual, const float* weight,
                       const float* statistics, T* dx, T* dresidual, float* partial, float* sums, const int64_t* keys,
                       int64_t batch, int64_t positions, int64_t width, int64_t site, int64_t threshold, float scale,
                       int64_t threads) {
  int64_t padded = round_up(width, BLOCK);
  sum_rows(batch * positions, 3 * width, partial, sums, threads, [&](int64_t row, float* mine) {
    float* z = scratch.get(2 * padded);
    float* weighted = z + padded;
    uint32_t counter = (uint32_t)(row % positions * padded / 2);
    Dropout drop(keys ? keys + row / positions : nullptr, site, threshold, scale);
    summed(x + row * width, x_bias, residual ? residual + row * width : nullptr, drop, counter, z, width);
    float mean = statistics[2 * row], rstd = statistics[2 * row + 1];
    floats sum = {}, projection = {};
    for (int64_t j = 0; j < width; j += BLOCK) {
      int64_t n = width - j;
      Block g = load(grad + row * width + j, n), w = load(weight + j, n), b = load(z + j, BLOCK);
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
    float a = total(sum) / (float)width, c = total(projection) / (float)width;
    for (int64_t j = 0; j < width; j += BLOCK) {
      int64_t n = width - j;
      Block b = load(z + j, BLOCK), w = load(weighted + j, BLOCK);
      for (int i = 0; i < VECTORS; i++) b.v[i] = (w.v[i] - a - b.v[i] * c) * rstd;
      if (dresidual) store(dresidual + row * width + j, b, n);
      drop.apply(counter + (uint32_t)(j / 2), b);
      if (dx) store(dx + row * width + j, b, n);
      if (x_bias) accumulate(mine + 2 * width + j, b, n);
    }
  });
}

// ---------------------------------------------------------------------------------------------------------- bias + GELU

template <class G, class T>
void gelu(const T* x, const float* bias, T* out, int64_t rows, int64_t width, int64_t threads) {
#pragma omp parallel for schedule(static) num_threads((int)threads)
  for (int64_t row = 0; row < rows; row++)
    for (int64_t j = 0; j < width; j += BLOCK) {
      Block b = load(x + row * width + j, width - j);
      if (bias) {
        Block c = load(bias + j, width - j);
        for (int i = 0; i < VECTORS; i++) b.v[i] += c.v[i];
      }
      for (int i = 0; i < VECTORS; i++) b.v[i] = G::value(b.v[i]);
      store(out + row * width + j, b, width - j);
    }
}

// dx may be grad itself; the activations are written as well where out is given
template <class G, class T>
void gelu_backward(const T* grad, const T* x, const float* bias, T* dx, T* out, float* partial, float* dbias,
                   int64_t rows, int64_t width, int64_t threads) {
  sum_rows(rows, bias ? width : 0, partial, dbias, threads, [&](int64_t row, float* mine) {
    for (int64_t j = 0; j < width; j += BLOCK) {
      int64_t n = width - j;
      Block b = load(x + row * width + j, n), g = load(grad + row * width + j, n);
      if (bias) {
        Block c = load(bias + j, n);
        for (int i = 0; i < VECTORS; i++) b.v[i] += c.v[i];
      }
      for (int i = 0; i < VECTORS; i++) {
        floats value, slope;
        G::both(b.v[i], value, slope);
        g.v[i] *= slope;
        b.v[i] = value;
      }
      store(dx + row * width + j, g, n);
      if (out) store(out + row * width + j, b, n);
      if (bias) accumulate(mine + j, g, n);
    }
  });
}

// ------------------------------------------------------------------------------------- cross entropy of rows, in place

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

// logits (rows, classes), stride between rows: loss[row], hit[row], and sampled[row], drawn from the softmax by inversion
// at uniforms[row]. With gradients, softmax - onehot replaces the logits and dbias gets its sum over the rows. The bias is
// added first.
template <class T>
void cross_entropy(T* logits, int64_t stride, const float* bias, const int64_t* labels, float* loss, uint8_t* hit,
                   const double* uniforms, int64_t* sampled, float* partial, float* dbias, int64_t rows,
                   int64_t classes, bool gradients, int64_t threads) {
  sum_rows(rows, gradients && bias ? classes : 0, partial, dbias, threads, [&](int64_t row, float* mine) {
    T* x = logits + row * stride;
    float* z = scratch.get(round_up(classes, BLOCK));
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
    float peak = largest(most), chosen = z[labels[row]];
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
    hit[row] = chosen == peak;
    if (uniforms) sampled[row] = invert(z, classes, uniforms[row] * normaliser);
    if (!gradients) return;
    float scale = 1.0f / normaliser;
    z[labels[row]] -= normaliser;
    for (int64_t j = 0; j < classes; j += BLOCK) {
      Block b = load(z + j, BLOCK);
      for (int i = 0; i < VECTORS; i++) b.v[i] *= scale;
      store(x + j, b, classes - j);
      if (bias) accumulate(mine + j, b, classes - j);
    }
  });
}

// --------------------------------------------------------------------------------------------------------- convolutions
// over positions, (batch, length, width) with an odd number of taps. A tap counts where it falls inside the row and, with
// `doc` (batch, length), on a token of the same document that is not padding (< 0).

constexpr int64_t MOST_TAPS = BLOCK;

// the positions that the taps of position t read; `back` reads them in reverse, as gradients do; -1 where a tap does not count
inline void taps_of(const int32_t* doc, int64_t t, int64_t length, int64_t taps, bool back, int64_t* at) {
  for (int64_t j = 0; j < taps; j++) {
    int64_t s = t + (back ? taps / 2 - j : j - taps / 2);
    bool counts = s >= 0 && s < length && (!doc || (doc[s] == doc[t] && doc[t] >= 0));
    at[j] = counts ? s : -1;
  }
}

// out[t] = sum_j weight[j] x[t + j - taps / 2]; weight (taps, width); `back`: its transpose, the gradient of x
template <class T>
void depthwise(const T* x, const float* weight, const int32_t* doc, T* out, int64_t batch, int64_t length, int64_t width,
               int64_t taps, bool back, int64_t threads) {
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

// dweight (taps, width)
template <class T>
void depthwise_weight(const T* grad, const T* x, const int32_t* doc, float* partial, float* dweight, int64_t batch,
                      int64_t length, int64_t width, int64_t taps, int64_t threads) {
  sum_rows(batch * length, taps * width, partial, dweight, threads, [&](int64_t row, float* mine) {
    const int64_t b = row / length, t = row % length;
    int64_t at[MOST_TAPS];
    taps_of(doc ? doc + b * length : nullptr, t, length, taps, false, at);
    for (int64_t c = 0; c < width; c += BLOCK) {
      Block g = load(grad + row * width + c, width - c);
      for (int64_t j = 0; j < taps; j++) {
        if (at[j] < 0) continue;
        Block v = load(x + (b * length + at[j]) * width + c, width - c);
        for (int i = 0; i < VECTORS; i++) v.v[i] *= g.v[i];
        accumulate(mine + j * width + c, v, width - c);
      }
    }
  });
}

// A kernel of `taps` per position and head, softmax of its logits: out[t, h] = sum_j kernel[t, h, j] x[t + j - taps / 2, h].
// kernels (batch, length, heads, taps) float32 are kept for the gradients.
template <class T>
void dynamic(const T* x, const T* logits, const int32_t* doc, T* out, float* kernels, int64_t batch, int64_t length,
             int64_t heads, int64_t width, int64_t taps, int64_t threads) {
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
        store(out + (row * heads + h) * width + c, y, width - c);
      }
    }
  }
}

template <class T>
void dynamic_backward(const T* grad, const T* x, const float* kernels, const int32_t* doc, T* dx, T* dlogits,
                      int64_t batch, int64_t length, int64_t heads, int64_t width, int64_t taps, int64_t threads) {
#pragma omp parallel for schedule(static) num_threads((int)threads)
  for (int64_t row = 0; row < batch * length; row++) {
    const int64_t b = row / length, t = row % length;
    int64_t at[MOST_TAPS], from[MOST_TAPS];
    taps_of(doc ? doc + b * length : nullptr, t, length, taps, false, at);
    taps_of(doc ? doc + b * length : nullptr, t, length, taps, true, from);
    for (int64_t h = 0; h < heads; h++) {
      floats product[MOST_TAPS] = {};
      for (int64_t c = 0; c < width; c += BLOCK) {
        Block g = load(grad + (row * heads + h) * width + c, width - c), sum = {};
        for (int64_t j = 0; j < taps; j++) {
          if (at[j] >= 0) {
            Block v = load(x + ((b * length + at[j]) * heads + h) * width + c, width - c);
            for (int i = 0; i < VECTORS; i++) product[j] += g.v[i] * v.v[i];
          }
          if (from[j] >= 0) {
            const int64_t other = (b * length + from[j]) * heads + h;
            Block v = load(grad + other * width + c, width - c);
            const float k = kernels[other * taps + j];
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

// ------------------------------------------------------------------------------- matrix products of tiles in the cache

// dst[panel][k][lane] = src[k][panel * PANEL + lane] for k < depth, columns beyond width zero
template <class T>
void pack(const T* src, int64_t stride, int64_t depth, int64_t width, float* dst) {
  for (int64_t p = 0; p < width; p += PANEL)
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

#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, ints{__VA_ARGS__})
#endif

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

// c (ROWS, PANEL) = [c +] a (ROWS, depth) b (depth, PANEL); a's element (r, k) is a[r * stride + k], or a[k * stride + r]
// where the product takes its transpose
template <int ROWS, bool TRANSPOSED>
inline void tile(const float* a, int64_t stride, const float* b, int64_t depth, float* c, int64_t c_row, bool add) {
  floats sum[ROWS][2];
  for (int r = 0; r < ROWS; r++) {
    sum[r][0] = add ? load(c + r * c_row) : floats{};
    sum[r][1] = add ? load(c + r * c_row + W) : floats{};
  }
  for (int64_t k = 0; k < depth; k++, b += PANEL, a += TRANSPOSED ? stride : 1) {
    floats b0 = load(b), b1 = load(b + W);
    for (int r = 0; r < ROWS; r++) {
      float x = a[TRANSPOSED ? r : r * stride];
      sum[r][0] += x * b0;
      sum[r][1] += x * b1;
    }
  }
  for (int r = 0; r < ROWS; r++) {
    store(c + r * c_row, sum[r][0]);
    store(c + r * c_row + W, sum[r][1]);
  }
}

template <int ROWS, bool TRANSPOSED>
inline void tile_rest(int64_t rows, const float* a, int64_t stride, const float* b, int64_t depth, float* c,
                      int64_t c_row, bool add) {
  if constexpr (ROWS > 0) {
    if (rows == ROWS)
      tile<ROWS, TRANSPOSED>(a, stride, b, depth, c, c_row, add);
    else
      tile_rest<ROWS - 1, TRANSPOSED>(rows, a, stride, b, depth, c, c_row, add);
  }
}

// c (rows, panels * PANEL) = [c +] a (rows, depth) b (depth, packed panels); c is row-major
template <bool TRANSPOSED = false>
void multiply(const float* a, int64_t stride, const float* b, float* c, int64_t c_row, int64_t rows, int64_t depth,
              int64_t panels, bool add = false) {
  for (int64_t p = 0; p < panels; p++, b += depth * PANEL, c += PANEL) {
    int64_t r = 0;
    for (; r + TILE <= rows; r += TILE)
      tile<TILE, TRANSPOSED>(a + r * (TRANSPOSED ? 1 : stride), stride, b, depth, c + r * c_row, c_row, add);
    tile_rest<TILE - 1, TRANSPOSED>(rows - r, a + r * (TRANSPOSED ? 1 : stride), stride, b, depth, c + r * c_row,
                                    c_row, add);
  }
}

// ------------------------------------------------------------------------------------------------------------ attention

struct Attention {  // strides in elements; those of broadcast dimensions are 0, the last dimension is dense
  int64_t batch, heads, queries, keys, width, value_width;
  int64_t q[3], k[3], v[3], out[3];  // batch, head, position
  int64_t bias[3], visible[3];       // batch, head, query
  int64_t site;
  int64_t threshold, threads;
  float scale, keep_scale;
};

// What one task (batch, head) works with. Only the span of keys that some query of the block sees is computed, so packed
// documents and padding cost what they hold.
template <class T>
struct Head {
  const Attention& at;
  const T *q, *k, *v;
  const T* bias;
  const uint8_t* visible;
  Dropout drop;

  Head(const Attention& at, const T* q, const T* k, const T* v, const T* bias, const uint8_t* visible,
       const int64_t* row_keys, int64_t b, int64_t h)
      : at(at),
        q(q + b * at.q[0] + h * at.q[1]),
        k(k + b * at.k[0] + h * at.k[1]),
        v(v + b * at.v[0] + h * at.v[1]),
        bias(bias ? bias + b * at.bias[0] + h * at.bias[1] : nullptr),
        visible(visible ? visible + b * at.visible[0] + h * at.visible[1] : nullptr),
        drop(nullptr, 0, at.threshold, at.keep_scale) {
    if (row_keys) {
      drop.on = true;
      drop.set(stream(stream((uint64_t)row_keys[b], at.site), h));
    }
  }

  // keys [first, last) seen by queries [i0, i1), rounded to whole blocks; last may pass the number of keys
  void span(int64_t i0, int64_t i1, int64_t& first, int64_t& last) const {
    first = 0;
    last = round_up(at.keys, BLOCK);
    if (!visible) return;
    int64_t low = at.keys, high = 0;
    for (int64_t i = i0; i < i1 && (low > 0 || high < at.keys); i++) {
      const uint8_t* row = visible + i * at.visible[2];
      int64_t j = 0;
      while (j < low && !row[j]) j++;
      low = j;
      j = at.keys;
      while (j > high && !row[j - 1]) j--;
      high = std::max(high, j);
      if (i > i0 && at.visible[2] == 0) break;
    }
    first = std::min(low, high) / BLOCK * BLOCK;
    last = std::max(first, round_up(high, BLOCK));
  }

  // scores of query i at keys j .. j + 32, hidden ones -inf
  Block score(const float* s, int64_t i, int64_t j) const {
    Block b = load(s, BLOCK);
    int64_t n = at.keys - j;
    if (bias) {
      Block c = load(bias + i * at.bias[2] + j, n);
      for (int x = 0; x < VECTORS; x++) b.v[x] += c.v[x];
    }
    if (visible) {
      const uint8_t* row = visible + i * at.visible[2] + j;
      uint8_t rest[BLOCK] = {};
      if (n < BLOCK) row = static_cast<const uint8_t*>(std::memcpy(rest, row, n));
      for (int x = 0; x < VECTORS; x++) {
        bytes seen;
        std::memcpy(&seen, row + x * W, sizeof seen);
        b.v[x] = select(__builtin_convertvector(seen, ints) != 0, b.v[x], all(-INFINITY));
      }
    } else if (n < BLOCK) {
      for (int x = 0; x < VECTORS; x++) b.v[x] = select(lanes() + x * W < (int32_t)n, b.v[x], all(-INFINITY));
    }
    return b;
  }

  static uint32_t counter(int64_t i, int64_t j) { return ((uint32_t)i << 16) + (uint32_t)(j / 2); }
};

template <class T>
void copy_rows(const T* src, int64_t stride, int64_t rows, int64_t width, float scale, float* dst, int64_t dst_stride) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t j = 0; j < width; j += BLOCK) {
      Block b = load(src + r * stride + j, width - j);
      for (int i = 0; i < VECTORS; i++) b.v[i] *= scale;
      store(dst + r * dst_stride + j, b, BLOCK);
    }
}

template <class T>
void write_rows(const float* src, int64_t src_stride, int64_t rows, int64_t width, float scale, T* dst, int64_t stride) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t j = 0; j < width; j += BLOCK) {
      Block b = load(src + r * src_stride + j, BLOCK);
      for (int i = 0; i < VECTORS; i++) b.v[i] *= scale;
      store(dst + r * stride + j, b, width - j);
    }
}

inline bool holds_nan(const float* p, int64_t n) {
  for (int64_t j = 0; j < n; j++)
    if (p[j] != p[j]) return true;
  return false;
}

constexpr int64_t MOST_ROWS = 144;

// Rows of a block: equal blocks of whole tiles whose scores (`budget` floats) stay in the L2 cache.
inline int64_t block_rows(int64_t queries, int64_t columns, int64_t budget) {
  int64_t most = std::clamp<int64_t>(budget / columns, TILE, MOST_ROWS) / TILE * TILE;
  int64_t blocks = (queries + most - 1) / most;
  return round_up((queries + blocks - 1) / blocks, TILE);
}

template <class T>
void attend(const Attention& at, const T* q, const T* k, const T* v, const T* bias,
            const uint8_t* visible, const int64_t* row_keys, T* out, float* normalisers) {
  const int64_t depth = at.width, wide = round_up(at.width, BLOCK), value_wide = round_up(at.value_width, BLOCK);
  const int64_t columns = round_up(at.keys, BLOCK), block = block_rows(at.queries, columns, 32768);
  const int64_t pairs = at.batch * at.heads, blocks = (at.queries + block - 1) / block;
  const int64_t parts = pairs >= 4 * at.threads ? 1 : std::min<int64_t>(blocks, (4 * at.threads + pairs - 1) / pairs);
#pragma omp parallel for schedule(dynamic) num_threads((int)at.threads)
  for (int64_t task = 0; task < pairs * parts; task++) {
    const int64_t b = task / parts / at.heads, h = task / parts % at.heads, part = task % parts;
    Head<T> head(at, q, k, v, bias, visible, row_keys, b, h);
    float* keys_packed = scratch.get(columns * (depth + value_wide) + block * (wide + columns + value_wide));
    float* values_packed = keys_packed + columns * depth;
    float* queries = values_packed + columns * value_wide;
    float* scores = queries + block * wide;
    float* result = scores + block * columns;
    pack_transposed(head.k, at.k[2], at.keys, depth, keys_packed);
    if (columns > round_up(at.keys, PANEL))
      std::memset(keys_packed + round_up(at.keys, PANEL) * depth, 0,
                  (columns - round_up(at.keys, PANEL)) * depth * sizeof(float));
    const int64_t start = blocks * part / parts * block, end = blocks * (part + 1) / parts * block;
    int64_t packed_first = -1, packed_last = -1;
    float inverse[MOST_ROWS];
    for (int64_t i0 = start; i0 < std::min(at.queries, end); i0 += block) {
      const int64_t rows = std::min(block, at.queries - i0);
      int64_t first, last;
      head.span(i0, i0 + rows, first, last);
      const int64_t seen = last - first, depth_seen = std::min(last, at.keys) - first;
      copy_rows(head.q + i0 * at.q[2], at.q[2], rows, depth, at.scale, queries, wide);
      multiply(queries, wide, keys_packed + first * depth, scores, columns, rows, depth, seen / PANEL);
      for (int64_t r = 0; r < rows; r++) {
        float* s = scores + r * columns;
        floats most = all(-INFINITY);
        for (int64_t j = 0; j < seen; j += BLOCK) {
          Block x = head.score(s + j, i0 + r, first + j);
          for (int i = 0; i < VECTORS; i++) most = select(x.v[i] > most, x.v[i], most);
          store(s + j, x, BLOCK);
        }
        const float peak = largest(most);
        float& normaliser = normalisers[(b * at.heads + h) * at.queries + i0 + r];
        if (peak == -INFINITY && !holds_nan(s, seen)) {  // nothing visible
          std::memset(s, 0, seen * sizeof(float));
          inverse[r] = 0.0f;
          normaliser = INFINITY;
          continue;
        }
        floats sum = {};
        for (int64_t j = 0; j < seen; j += BLOCK) {
          Block x = load(s + j, BLOCK);
          for (int i = 0; i < VECTORS; i++) {
            x.v[i] = exponential(x.v[i] - peak);
            sum += x.v[i];
          }
          head.drop.apply(head.counter(i0 + r, first + j), x);
          store(s + j, x, BLOCK);
        }
        inverse[r] = 1.0f / total(sum);
        normaliser = peak + std::log(total(sum));
      }
      if (first != packed_first || last != packed_last)
        pack(head.v + first * at.v[2], at.v[2], depth_seen, at.value_width, values_packed);
      packed_first = first, packed_last = last;
      multiply(scores, columns, values_packed, result, value_wide, rows, depth_seen,
               round_up(at.value_width, PANEL) / PANEL);
      for (int64_t r = 0; r < rows; r++)
        write_rows(result + r * value_wide, value_wide, 1, at.value_width, inverse[r],
                   out + b * at.out[0] + h * at.out[1] + (i0 + r) * at.out[2], 0);
    }
  }
}

// strides of dq, dk, dv are those of q, k, v in `to`; dbias (batch, heads, queries, keys) dense
template <class T>
void attend_backward(const Attention& at, const Attention& to, const T* grad, const T* q, const T* k, const T* v,
                     const T* bias, const uint8_t* visible, const int64_t* row_keys, const float* normalisers, T* dq,
                     T* dk, T* dv, T* dbias) {
  const int64_t depth = at.width, wide = round_up(depth, BLOCK), value_wide = round_up(at.value_width, BLOCK);
  const int64_t columns = round_up(at.keys, BLOCK), block = block_rows(at.queries, columns, 16384);
  const int64_t query_panels = round_up(depth, PANEL) / PANEL, value_panels = round_up(at.value_width, PANEL) / PANEL;
#pragma omp parallel for schedule(dynamic) num_threads((int)at.threads)
  for (int64_t task = 0; task < at.batch * at.heads; task++) {
    const int64_t b = task / at.heads, h = task % at.heads;
    Head<T> head(at, q, k, v, bias, visible, row_keys, b, h);
    float* next = scratch.get(columns * (depth + at.value_width + 2 * wide + value_wide) +
                              block * (2 * columns + 3 * wide + 2 * value_wide));
    auto take = [&](int64_t n) { return std::exchange(next, next + n); };
    float* keys_transposed = take(columns * depth);
    float* values_transposed = take(columns * at.value_width);
    float* keys_packed = take(columns * wide);
    float* dkeys = take(columns * wide);
    float* dvalues = take(columns * value_wide);
    float* probabilities = take(block * columns);
    float* dscores = take(block * columns);
    float* queries = take(block * wide);
    float* queries_packed = take(block * wide);
    float* dqueries = take(block * wide);
    float* grads = take(block * value_wide);
    float* grads_packed = take(block * value_wide);
    auto clear_panels = [&](float* p, int64_t deep) {
      int64_t filled = round_up(at.keys, PANEL);
      std::memset(p + filled * deep, 0, (columns - filled) * deep * sizeof(float));
    };
    pack_transposed(head.k, at.k[2], at.keys, depth, keys_transposed);
    pack_transposed(head.v, at.v[2], at.keys, at.value_width, values_transposed);
    clear_panels(keys_transposed, depth);
    clear_panels(values_transposed, at.value_width);
    std::memset(dkeys, 0, columns * wide * sizeof(float));
    std::memset(dvalues, 0, columns * value_wide * sizeof(float));
    int64_t packed_first = -1, packed_last = -1;
    for (int64_t i0 = 0; i0 < at.queries; i0 += block) {
      const int64_t rows = std::min(block, at.queries - i0);
      int64_t first, last;
      head.span(i0, i0 + rows, first, last);
      const int64_t seen = last - first, depth_seen = std::min(last, at.keys) - first;
      const T* g = grad + b * at.out[0] + h * at.out[1] + i0 * at.out[2];
      copy_rows(head.q + i0 * at.q[2], at.q[2], rows, depth, at.scale, queries, wide);
      copy_rows(g, at.out[2], rows, at.value_width, 1.0f, grads, value_wide);
      pack(queries, wide, rows, depth, queries_packed);
      pack(g, at.out[2], rows, at.value_width, grads_packed);
      multiply(queries, wide, keys_transposed + first * depth, probabilities, columns, rows, depth, seen / PANEL);
      multiply(grads, value_wide, values_transposed + first * at.value_width, dscores, columns, rows, at.value_width,
               seen / PANEL);
      for (int64_t r = 0; r < rows; r++) {
        float *p = probabilities + r * columns, *ds = dscores + r * columns;
        const float normaliser = normalisers[task * at.queries + i0 + r];
        floats sum = {};
        for (int64_t j = 0; j < seen; j += BLOCK) {  // p = +-P, negative where dropped; ds = dP
          Block x = head.score(p + j, i0 + r, first + j), d = load(ds + j, BLOCK);
          for (int i = 0; i < VECTORS; i++) x.v[i] = exponential(x.v[i] - normaliser);
          if (head.drop.on) {
            ints keep[VECTORS];
            head.drop.masks(head.counter(i0 + r, first + j), keep);
            for (int i = 0; i < VECTORS; i++) {
              d.v[i] = select(keep[i], d.v[i] * at.keep_scale, floats{});
              sum += x.v[i] * d.v[i];
              x.v[i] = select(keep[i], x.v[i], -x.v[i]);
            }
          } else {
            for (int i = 0; i < VECTORS; i++) sum += x.v[i] * d.v[i];
          }
          store(p + j, x, BLOCK);
          store(ds + j, d, BLOCK);
        }
        const float mean = total(sum), keep_scale = head.drop.on ? at.keep_scale : 1.0f;
        for (int64_t j = 0; j < seen; j += BLOCK) {
          Block x = load(p + j, BLOCK), d = load(ds + j, BLOCK);
          for (int i = 0; i < VECTORS; i++) {
            floats positive = select(x.v[i] < 0.0f, -x.v[i], x.v[i]);
            d.v[i] = positive * (d.v[i] - mean);
            x.v[i] = select(x.v[i] < 0.0f, floats{}, positive * keep_scale);
          }
          store(p + j, x, BLOCK);
          store(ds + j, d, BLOCK);
        }
        if (dbias) {
          T* to_bias = dbias + (task * at.queries + i0 + r) * at.keys;
          std::memset(static_cast<void*>(to_bias), 0, std::min(first, at.keys) * sizeof(T));
          for (int64_t j = first; j < std::min(last, at.keys); j += BLOCK)
            store(to_bias + j, load(ds + j - first, BLOCK), at.keys - j);
          if (last < at.keys) std::memset(static_cast<void*>(to_bias + last), 0, (at.keys - last) * sizeof(T));
        }
      }
      if (first != packed_first || last != packed_last)
        pack(head.k + first * at.k[2], at.k[2], depth_seen, depth, keys_packed);
      packed_first = first, packed_last = last;
      multiply(dscores, columns, keys_packed, dqueries, wide, rows, depth_seen, query_panels);
      multiply<true>(dscores, columns, queries_packed, dkeys + first * wide, wide, depth_seen, rows, query_panels, true);
      multiply<true>(probabilities, columns, grads_packed, dvalues + first * value_wide, value_wide, depth_seen, rows,
                     value_panels, true);
      write_rows(dqueries, wide, rows, depth, at.scale, dq + b * to.q[0] + h * to.q[1] + i0 * to.q[2], to.q[2]);
    }
    write_rows(dkeys, wide, at.keys, depth, 1.0f, dk + b * to.k[0] + h * to.k[1], to.k[2]);
    write_rows(dvalues, value_wide, at.keys, at.value_width, 1.0f, dv + b * to.v[0] + h * to.v[1], to.v[2]);
  }
}

}  // namespace

// ---------------------------------------------------------------------------------------- what kernels/fast.py calls
// `half` chooses bfloat16 storage; parameters (weight, bias), statistics and their gradients are always float32.

namespace {

template <class F>
void typed(int64_t half, F f) {
  if (half)
    f(bf16{});
  else
    f(float{});
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default"))) void

EXPORT encoderlab_dropout(int64_t half, const void* x, void* out, const int64_t* keys, int64_t batch, int64_t positions,
                          int64_t width, int64_t site, int64_t threshold, float scale, int64_t threads) {
  typed(half, [&](auto kind) {
    using T = decltype(kind);
    dropout((const T*)x, (T*)out, keys, batch, positions, width, site, threshold, scale, threads);
  });
}

EXPORT encoderlab_add_norm(int64_t half, const void* x, const float* x_bias, const void* residual, const float* weight,
                           const float* bias, void* out, float* statistics, const int64_t* keys, int64_t batch,
                           int64_t positions, int64_t width, int64_t site, int64_t threshold, float scale, float eps,
                           int64_t threads) {
  typed(half, [&](auto kind) {
    using T = decltype(kind);
    add_norm((const T*)x, x_bias, (const T*)residual, weight, bias, (T*)out, statistics, keys, batch, positions, width,
             site, threshold, scale, eps, threads);
  });
}

EXPORT encoderlab_add_norm_backward(int64_t half, const void* grad, const void* x, const float* x_bias,
                                    const void* residual, const float* weight, const float* statistics, void* dx,
                                    void* dresidual, float* partial, float* sums, const int64_t* keys, int64_t batch,
                                    int64_t positions, int64_t width, int64_t site, int64_t threshold, float scale,
                                    int64_t threads) {
  typed(half, [&](auto kind) {
    using T = decltype(kind);
    add_norm_backward((const T*)grad, (const T*)x, x_bias, (const T*)residual, weight, statistics, (T*)dx,
                      (T*)dresidual, partial, sums, keys, batch, positions, width, site, threshold, scale, threads);
  });
}

EXPORT encoderlab_gelu(int64_t half, int64_t tanh, const void* x, const float* bias, void* out, int64_t rows, int64_t width,
                       int64_t threads) {
  typed(half, [&](auto kind) {
    using T = decltype(kind);
    if (tanh)
      gelu<GeluTanh>((const T*)x, bias, (T*)out, rows, width, threads);
    else
      gelu<Gelu>((const T*)x, bias, (T*)out, rows, width, threads);
  });
}

EXPORT encoderlab_gelu_backward(int64_t half, int64_t tanh, const void* grad, const void* x, const float* bias, void* dx,
                                void* out, float* partial, float* dbias, int64_t rows, int64_t width, int64_t threads) {
  typed(half, [&](auto kind) {
    using T = decltype(kind);
    if (tanh)
      gelu_backward<GeluTanh>((const T*)grad, (const T*)x, bias, (T*)dx, (T*)out, partial, dbias, rows, width, threads);
    else
      gelu_backward<Gelu>((const T*)grad, (const T*)x, bias, (T*)dx, (T*)out, partial, dbias, rows, width, threads);
  });
}

EXPORT encoderlab_cross_entropy(int64_t half, void* logits, int64_t stride, const float* bias, const int64_t* labels,
                                float* loss, uint8_t* hit, const double* uniforms, int64_t* sampled,
                                float* partial, float* dbias, int64_t rows, int64_t classes,
                                int64_t gradients, int64_t threads) {
  typed(half, [&](auto kind) {
    using T = decltype(kind);
    cross_entropy((T*)logits, stride, bias, labels, loss, hit, uniforms, sampled, partial, dbias, rows,
                  classes, gradients, threads);
  });
}

EXPORT encoderlab_attend(int64_t half, const Attention* at, const void* q, const void* k, const void* v, const void* bias,
                         const uint8_t* visible, const int64_t* row_keys, void* out, float* normalisers) {
  typed(half, [&](auto kind) {
    using T = decltype(kind);
    attend(*at, (const T*)q, (const T*)k, (const T*)v, (const T*)bias, visible, row_keys, (T*)out, normalisers);
  });
}

EXPORT encoderlab_attend_backward(int64_t half, const Attention* at, const Attention* to, const void* grad, const void* q,
                                  const void* k, const void* v, const void* bias, const uint8_t* visible,
                                  const int64_t* row_keys, const float* normalisers, void* dq, void* dk, void* dv,
                                  void* dbias) {
  typed(half, [&](auto kind) {
    using T = decltype(kind);
    attend_backward(*at, *to, (const T*)grad, (const T*)q, (const T*)k, (const T*)v, (const T*)bias, visible, row_keys,
                    normalisers, (T*)dq, (T*)dk, (T*)dv, (T*)dbias);
  });
}

EXPORT encoderlab_depthwise(int64_t half, const void* x, const float* weight, const int32_t* doc, void* out,
                            int64_t batch, int64_t length, int64_t width, int64_t taps, int64_t back, int64_t threads) {
  typed(half, [&](auto kind) {
    using T = decltype(kind);
    depthwise((const T*)x, weight, doc, (T*)out, batch, length, width, taps, back, threads);
  });
}

EXPORT encoderlab_depthwise_weight(int64_t half, const void* grad, const void* x, const int32_t* doc, float* partial,
                                   float* dweight, int64_t batch, int64_t length, int64_t width, int64_t taps,
                                   int64_t threads) {
  typed(half, [&](auto kind) {
    using T = decltype(kind);
    depthwise_weight((const T*)grad, (const T*)x, doc, partial, dweight, batch, length, width, taps, threads);
  });
}

EXPORT encoderlab_dynamic(int64_t half, const void* x, const void* logits, const int32_t* doc, void* out,
                          float* kernels, int64_t batch, int64_t length, int64_t heads, int64_t width, int64_t taps,
                          int64_t threads) {
  typed(half, [&](auto kind) {
    using T = decltype(kind);
    dynamic((const T*)x, (const T*)logits, doc, (T*)out, kernels, batch, length, heads, width, taps, threads);
  });
}

EXPORT encoderlab_dynamic_backward(int64_t half, const void* grad, const void* x, const float* kernels,
                                   const int32_t* doc, void* dx, void* dlogits, int64_t batch, int64_t length,
                                   int64_t heads, int64_t width, int64_t taps, int64_t threads) {
  typed(half, [&](auto kind) {
    using T = decltype(kind);
    dynamic_backward((const T*)grad, (const T*)x, kernels, doc, (T*)dx, (T*)dlogits, batch, length, heads, width, taps,
                     threads);
  });
}
