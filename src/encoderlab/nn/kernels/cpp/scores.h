// The scores of attention, one (batch, head) at a time and a block of queries at a time: products of queries, keys and
// rows of positions, what is added to them and hidden, softmax and dropout of a row, and the gradient of these.

#pragma once

#include "positions.h"

namespace {

// 32 booleans as masks of lanes; those beyond n are false
inline void flags(const uint8_t* p, int64_t n, ints* masks) {
  uint8_t rest[BLOCK] = {};
  if (n < BLOCK) p = static_cast<const uint8_t*>(std::memcpy(rest, p, n));
  for (int i = 0; i < VECTORS; i++) {
    bytes some;
    std::memcpy(&some, p + i * W, sizeof some);
    const shorts wider = __builtin_convertvector(some, shorts);  // on the way, as GCC takes bytes to words one by one
    masks[i] = __builtin_convertvector(wider, ints) != 0;
  }
}

inline bool holds_nan(const float* p, int64_t n) {
  for (int64_t j = 0; j < n; j++)
    if (p[j] != p[j]) return true;
  return false;
}

// What attention reads; null where there is none of it.
template <class T>
struct Inputs {
  const T *q, *k, *v, *bias;
  const uint8_t* visible;
  const int64_t* seeds;  // of dropout
  Relative<T> relative;
};

constexpr int64_t MOST_ROWS = 144;

// Queries of a block: equal blocks of whole tiles whose scores stay in the L2 cache. Larger ones waste less of a band
// of positions; smaller ones see fewer keys where documents are packed.
inline int64_t block_rows(const Attention& at, bool masked) {
  const int64_t scores = masked ? 32768 : 65536;
  // Where keys are within reach, a block of n queries sees n + 2 reach keys.
  const int64_t seen = at.reach < 0 ? at.keys : std::min<int64_t>(at.keys, 2 * at.reach + 1);
  int64_t most = std::clamp<int64_t>(scores / round_up(seen, BLOCK), TILE, MOST_ROWS) / TILE * TILE;
  if (at.reach >= 0 && seen < at.keys) most = std::min(most, round_up(std::max<int64_t>(at.reach / 2, TILE), TILE));
  int64_t blocks = (at.queries + most - 1) / most;
  return round_up((at.queries + blocks - 1) / blocks, TILE);
}

// Sizes that follow from the arguments, in elements. In scratch memory a row of queries or keys is `wide`, one of
// values `value_wide`, one of scores `span`, the most keys that a block sees of all the `columns`: whole blocks.
struct Sizes {
  int64_t depth, wide, value_depth, value_wide, columns, block, span;
  bool by_queries, by_keys;  // whether these meet rows of positions
  int64_t spare;             // rows of zeros behind the keys, which products with rows of positions read
  int64_t band;              // room for a band of positions
  const float* rotation;

  template <class T>
  Sizes(const Attention& at, const Inputs<T>& in)
      : depth(at.width),
        wide(round_up(depth, BLOCK)),
        value_depth(at.value_width),
        value_wide(round_up(value_depth, BLOCK)),
        columns(round_up(at.keys, BLOCK)),
        block(block_rows(at, in.visible)),
        span(at.reach < 0 || in.relative.query_rows || in.relative.key_rows
                 ? columns
                 : std::min(columns, round_up(block + 2 * at.reach, BLOCK) + BLOCK)),
        by_queries(in.relative.query_rows),
        by_keys(in.relative.key_rows),
        spare(by_keys ? TILE : 0),
        band(by_queries || by_keys ? std::max(band_room(block, columns), block * band_width(block, columns)) : 0),
        rotation(in.relative.rotation) {}
};

// Queries [i0, i0 + rows), and the keys [first, first + seen) in whole blocks that some of them sees, of which the
// first `real` exist. Only these are computed, so packed documents and padding cost what they hold.
struct Piece {
  int64_t i0, rows, first, seen, real;
};

// Where one (batch, head) of a tensor begins, if there is one.
template <class X>
X* start(X* data, const int64_t* strides, int64_t b, int64_t h) {
  return data ? data + b * strides[0] + h * strides[1] : nullptr;
}

// One pair (batch, head): where its tensors begin, and what happens to a row of its scores.
template <class T>
struct Head {
  const Attention& at;
  const T *q, *k, *v, *position_query, *bias;
  const uint8_t *visible, *different;
  const float* segment;
  int64_t b, h, pair, table;  // the last: which rows of positions
  Dropout drop;

  Head(const Attention& at, const Inputs<T>& in, int64_t b, int64_t h)
      : at(at),
        q(start(in.q, at.q, b, h)),
        k(start(in.k, at.k, b, h)),
        v(start(in.v, at.v, b, h)),
        position_query(start(in.relative.position_query, at.position_query, b, h)),
        bias(start(in.bias, at.bias, b, h)),
        visible(start(in.visible, at.visible, b, h)),
        different(start(in.relative.different, at.different, b, h)),
        segment(in.relative.segment ? in.relative.segment + (b * at.heads + h) * at.queries * 2 : nullptr),
        b(b),
        h(h),
        pair(b * at.heads + h),
        table(in.relative.table ? in.relative.table[b] : 0),
        drop(nullptr, 0, at.threshold, at.keep_scale) {
    if (in.seeds) {
      drop.on = true;
      drop.set(stream(stream((uint64_t)in.seeds[b], at.site), h));
    }
  }

  // up to `block` queries from i0 on
  Piece piece(int64_t i0, int64_t block) const {
    const int64_t rows = std::min(block, at.queries - i0);
    int64_t begin = 0, end = at.keys;  // of what is within reach
    if (at.reach >= 0) {
      const int64_t place = at.keys - at.queries + i0;
      begin = std::max<int64_t>(0, place - at.reach);
      end = std::min(at.keys, place + rows + at.reach);
    }
    int64_t low = begin, high = end;
    if (visible) {
      low = end, high = begin;
      for (int64_t i = i0; i < i0 + rows && (low > begin || high < end); i++) {
        const uint8_t* row = visible + i * at.visible[2];
        int64_t j = begin;
        while (j < low && !row[j]) j++;
        low = j;
        j = end;
        while (j > high && !row[j - 1]) j--;
        high = std::max(high, j);
        if (i > i0 && at.visible[2] == 0) break;
      }
      low = std::min(low, high);
    }
    const int64_t first = low / BLOCK * BLOCK, last = std::max(first, round_up(high, BLOCK));
    return {i0, rows, first, last - first, std::min(last, at.keys) - first};
  }

  // scores of query i at keys j .. j + 32, hidden ones -inf
  Block score(const float* s, int64_t i, int64_t j) const {
    Block b = load(s, BLOCK);
    int64_t n = at.keys - j;
    if (bias) {
      Block c = load(bias + i * at.bias[2] + j, n);
      for (int x = 0; x < VECTORS; x++) b.v[x] += c.v[x];
    }
    if (segment) {
      ints other[VECTORS];
      flags(different + i * at.different[2] + j, n, other);
      for (int x = 0; x < VECTORS; x++) b.v[x] += select(other[x], all(segment[2 * i + 1]), all(segment[2 * i]));
    }
    if (visible) {
      ints seen[VECTORS];
      flags(visible + i * at.visible[2] + j, n, seen);
      for (int x = 0; x < VECTORS; x++) b.v[x] = select(seen[x], b.v[x], all(-INFINITY));
    } else if (n < BLOCK) {
      for (int x = 0; x < VECTORS; x++) b.v[x] = select(lanes() + x * W < (int32_t)n, b.v[x], all(-INFINITY));
    }
    if (at.reach >= 0) hide_far(b, i, j);
    return b;
  }

  // scores of query i at keys j .. j + 32, those out of reach -inf
  void hide_far(Block& b, int64_t i, int64_t j) const {
    const int64_t place = at.keys - at.queries + i;
    if (j >= place - at.reach && j + BLOCK - 1 <= place + at.reach) return;
    const int32_t low = (int32_t)std::clamp<int64_t>(place - at.reach - j, 0, BLOCK);
    const int32_t high = (int32_t)std::clamp<int64_t>(place + at.reach - j, -1, BLOCK);
    for (int x = 0; x < VECTORS; x++) {
      const ints lane = lanes() + x * W;
      b.v[x] = select(lane < low, all(-INFINITY), select(lane > high, all(-INFINITY), b.v[x]));
    }
  }

  // of the random words for query i and keys j .. j + 32
  static uint32_t counter(int64_t i, int64_t j) { return ((uint32_t)i << 16) + (uint32_t)(j / 2); }

  // The scores s of query i become exponentials, relative to the largest, after dropout. Returns what they have to be
  // multiplied with to be probabilities; `normaliser` is the log of the softmax's denominator.
  float softmax(float* s, int64_t i, const Piece& piece, float& normaliser) const {
    floats most = all(-INFINITY);
    for (int64_t j = 0; j < piece.seen; j += BLOCK) {
      Block x = score(s + j, i, piece.first + j);
      for (int n = 0; n < VECTORS; n++) most = select(x.v[n] > most, x.v[n], most);
      store(s + j, x, BLOCK);
    }
    const float peak = largest(most);
    if (peak == -INFINITY && !holds_nan(s, piece.seen)) {  // nothing visible
      std::memset(s, 0, piece.seen * sizeof(float));
      normaliser = INFINITY;
      return 0.0f;
    }
    floats sum = {};
    for (int64_t j = 0; j < piece.seen; j += BLOCK) {
      Block x = load(s + j, BLOCK);
      for (int n = 0; n < VECTORS; n++) {
        x.v[n] = exponential(x.v[n] - peak);
        sum += x.v[n];
      }
      drop.apply(counter(i, piece.first + j), x);
      store(s + j, x, BLOCK);
    }
    const float mass = total(sum);
    normaliser = peak + std::log(mass);
    return 1.0f / mass;
  }

  // The scores p of query i become its probabilities after dropout, and the gradients ds of these become those of the
  // scores; `dsegment` takes the two of its segment terms.
  void softmax_gradient(float* p, float* ds, int64_t i, const Piece& piece, float normaliser, float* dsegment) const {
    floats sum = {};
    for (int64_t j = 0; j < piece.seen; j += BLOCK) {  // p = +-P, negative where dropped; ds = dP
      Block x = score(p + j, i, piece.first + j), d = load(ds + j, BLOCK);
      for (int n = 0; n < VECTORS; n++) x.v[n] = exponential(x.v[n] - normaliser);
      if (drop.on) {
        ints keep[VECTORS];
        drop.masks(counter(i, piece.first + j), keep);
        for (int n = 0; n < VECTORS; n++) {
          d.v[n] = select(keep[n], d.v[n] * at.keep_scale, floats{});
          sum += x.v[n] * d.v[n];
          x.v[n] = select(keep[n], x.v[n], -x.v[n]);
        }
      } else {
        for (int n = 0; n < VECTORS; n++) sum += x.v[n] * d.v[n];
      }
      store(p + j, x, BLOCK);
      store(ds + j, d, BLOCK);
    }
    const float mean = total(sum), keep_scale = drop.on ? at.keep_scale : 1.0f;
    floats same = {}, other = {};
    for (int64_t j = 0; j < piece.seen; j += BLOCK) {
      Block x = load(p + j, BLOCK), d = load(ds + j, BLOCK);
      for (int n = 0; n < VECTORS; n++) {
        floats positive = select(x.v[n] < 0.0f, -x.v[n], x.v[n]);
        d.v[n] = positive * (d.v[n] - mean);
        x.v[n] = select(x.v[n] < 0.0f, floats{}, positive * keep_scale);
      }
      if (segment) {
        ints differ[VECTORS];
        flags(different + i * at.different[2] + piece.first + j, at.keys - piece.first - j, differ);
        for (int n = 0; n < VECTORS; n++) {
          same += select(differ[n], floats{}, d.v[n]);
          other += select(differ[n], d.v[n], floats{});
        }
      }
      store(p + j, x, BLOCK);
      store(ds + j, d, BLOCK);
    }
    if (segment) dsegment[0] = total(same), dsegment[1] = total(other);
  }
};

template <class X, class T>
X* start(X* data, const int64_t* strides, const Head<T>& head) {
  return start(data, strides, head.b, head.h);
}

// The column of a table in which a piece's first query and first key meet.
inline int64_t query_base(const Attention& at, const Piece& piece) {
  return MARGIN + at.queries - 1 - piece.i0 + piece.first;
}
inline int64_t key_base(const Attention& at, const Piece& piece) {
  return MARGIN + at.keys - 1 - piece.first + piece.i0;
}

// What the scores of a head are made of: products of its queries with its keys, and of both with rows of positions.
struct Products {
  const Sizes& size;
  const float* rotation;              // of the keys
  float* keys_transposed;             // in panels
  float* keys;                        // rows, scaled, where they meet rows of positions
  float *queries, *position_queries;  // rows of a piece, scaled
  float *band, *turned;

  template <class Take>
  Products(const Sizes& size, Take& take)
      : size(size),
        rotation(size.rotation),
        keys_transposed(take(size.columns * size.depth)),
        keys(take(size.by_keys ? (size.columns + size.spare) * size.wide : 0)),
        queries(take(size.block * size.wide)),
        position_queries(take(size.block * size.wide)),
        band(take(size.band)),
        turned(take(PANEL * size.wide)) {}

  template <class T>
  void take_keys(const Head<T>& head) const {
    const Attention& at = head.at;
    in_turned_rows(head.k, at.k[2], at.keys, size.depth, rotation, turned, size.wide,
                   [&](auto* rows, int64_t stride, int64_t first, int64_t n) {
                     pack_transposed(rows, stride, n, size.depth, keys_transposed + first * size.depth);
                   });
    clear_panels(keys_transposed, at.keys, size.columns, size.depth);
    if (!size.by_keys) return;
    copy_rows(head.k, at.k[2], at.keys, size.depth, at.scale, keys, size.wide);
    std::memset(keys + at.keys * size.wide, 0, (size.columns + size.spare - at.keys) * size.wide * sizeof(float));
  }

  // The angles of the queries from i0 on.
  const float* angles(const Attention& at, int64_t i0) const { return rotation + (at.keys - at.queries + i0) * size.depth; }

  // scores (rows, span) of a piece, but for what is added to each of them
  template <class T>
  void scores(const Head<T>& head, const Positions<T>& positions, const Piece& piece, float* to) const {
    const Attention& at = head.at;
    copy_rows(head.q + piece.i0 * at.q[2], at.q[2], piece.rows, size.depth, at.scale, queries, size.wide);
    if (rotation) turn(queries, size.wide, piece.rows, size.depth, angles(at, piece.i0), 1.0f);
    multiply(queries, size.wide, keys_transposed + piece.first * size.depth, to, size.span, piece.rows, size.depth,
             piece.seen / PANEL);
    if (size.by_queries) {
      if (head.position_query)
        copy_rows(head.position_query + piece.i0 * at.position_query[2], at.position_query[2], piece.rows, size.depth,
                  at.scale, position_queries, size.wide);
      add_query_rows(head.position_query ? position_queries : queries, size.wide, positions.queries(head.h, head.table),
                     size.depth, query_base(at, piece), piece.rows, piece.seen, band, to, size.span);
    }
    if (size.by_keys)
      add_key_rows(keys + piece.first * size.wide, size.wide, positions.keys(head.h, head.table), size.depth,
                   key_base(at, piece), piece.rows, piece.seen, band, to, size.span);
  }
};

}  // namespace
