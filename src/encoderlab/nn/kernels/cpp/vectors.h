// Vectors of the compiler's vector extension (GCC, Clang): AVX-512, AVX2, SSE and NEON from one text; what is computed
// with one number of each lane; the random numbers of dropout (encoderlab/nn/noise.py says why these).

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace {

#if defined(__AVX512F__)
constexpr int W = 16;     // floats in a vector
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

// Inlined also where the compiler thinks a function too large for it: a call passes vectors through memory.
#define INLINE inline __attribute__((always_inline))

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

INLINE floats load(const float* p) {
  floats x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

INLINE floats load(const bf16* p) {
  shorts x;
  std::memcpy(&x, p, sizeof x);
  return bits<floats>(__builtin_convertvector(x, words) << 16);
}

INLINE void store(float* p, floats x) { std::memcpy(p, &x, sizeof x); }

INLINE void store(bf16* p, floats x) {  // to nearest, ties to even
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

#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, ints{__VA_ARGS__})
#endif

template <int S, class F, int... I>
INLINE float fold(floats x, F f, std::integer_sequence<int, I...> lane) {  // lanes S apart join, then S / 2, ...
  x = f(x, SHUFFLE(x, x, (I ^ S)...));
  if constexpr (S > 1)
    return fold<S / 2>(x, f, lane);
  else
    return x[0];
}

INLINE float total(floats x) {
  return fold<W / 2>(x, [](floats a, floats b) { return a + b; }, std::make_integer_sequence<int, W>());
}

INLINE float largest(floats x) {
  return fold<W / 2>(x, [](floats a, floats b) { return select(b > a, b, a); }, std::make_integer_sequence<int, W>());
}

// 32 neighbouring elements in registers; of a shorter rest the missing ones are zero.
struct Block {
  floats v[VECTORS];
};

template <class T>
INLINE Block load(const T* p, int64_t n) {
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

// A load from rows that are read once and in turn: asks for what comes 2 KiB later, because a processor that prefetches
// by itself ends at every page.
template <class T>
INLINE Block stream(const T* p, int64_t n) {
  for (size_t line = 0; line < BLOCK * sizeof(T); line += 64)
    __builtin_prefetch(reinterpret_cast<const char*>(p) + 2048 + line);
  return load(p, n);
}

template <class T>
INLINE void store(T* p, const Block& b, int64_t n) {
  if (n >= BLOCK) {
    for (int i = 0; i < VECTORS; i++) store(p + i * W, b.v[i]);
  } else {
    T rest[BLOCK];
    for (int i = 0; i < VECTORS; i++) store(rest + i * W, b.v[i]);
    std::memcpy(p, rest, n * sizeof(T));
  }
}

INLINE void clear_rest(Block& b, int64_t n) {
  if (n >= BLOCK) return;
  for (int i = 0; i < VECTORS; i++) b.v[i] = select(lanes() + i * W < (int32_t)n, b.v[i], floats{});
}

// --------------------------------------------------------------------------------------------- functions of one number

// of x <= 88: 2^n e^r with a minimax polynomial, relative error 1e-7; zero below -87
INLINE floats exponential(floats x) {
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

INLINE floats erf(floats x) {  // rational, odd, of degree 13 / 8 (Eigen's coefficients); absolute error below 4e-7
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

// ------------------------------------------------------------------------------------------------------ random numbers

inline uint64_t mix64(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

inline uint64_t stream(uint64_t seed, int64_t site) { return mix64(seed + (uint64_t)(site + 1) * 0x9E3779B97F4A7C15u); }

constexpr uint32_t WEYL = 0x9E3779B9u;

struct Dropout {  // of one stream; without a seed everything is kept
  bool on;
  uint32_t low, high;
  int32_t threshold;
  float scale;

  Dropout(const int64_t* seed, int64_t site, int64_t threshold, float scale)
      : on(seed != nullptr), low(0), high(0), threshold((int32_t)threshold), scale(scale) {
    if (on) set(stream((uint64_t)*seed, site));
  }
  void set(uint64_t s) {
    low = (uint32_t)s;
    high = (uint32_t)(s >> 32);
  }
  INLINE void masks(uint32_t counter, ints* keep) const {
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
  template <class... Blocks>
  INLINE void apply(uint32_t counter, Blocks&... blocks) const {  // one mask for all of them
    if (!on) return;
    ints keep[VECTORS];
    masks(counter, keep);
    for (int i = 0; i < VECTORS; i++) ((blocks.v[i] = select(keep[i], blocks.v[i] * scale, floats{})), ...);
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

struct Memory {
  float* data;
  explicit Memory(int64_t n) : data(static_cast<float*>(std::aligned_alloc(64, round_up(n * 4 + 64, 64)))) {
    if (!data) std::abort();
  }
  ~Memory() { std::free(data); }
  Memory(const Memory&) = delete;
};

// A Room, whose constructor takes its parts one after the other, in this thread's scratch memory; first to count them.
template <class Room, class Sizes>
Room in_scratch(const Sizes& sizes) {
  int64_t total = 0;
  auto count = [&](int64_t n) -> float* { return total += n, nullptr; };
  Room(sizes, count);
  float* next = scratch.get(total);
  auto take = [&](int64_t n) { return std::exchange(next, next + n); };
  return Room(sizes, take);
}

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

INLINE void accumulate(float* p, const Block& b, int64_t n) {
  Block s = load(p, n);
  for (int i = 0; i < VECTORS; i++) s.v[i] += b.v[i];
  store(p, s, n);
}

}  // namespace
