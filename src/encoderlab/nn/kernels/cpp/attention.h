// Attention, forward and backward, for one (batch, head) at a time and a block of queries at a time: scores are made in
// the L2 cache, pass softmax and dropout there, and are multiplied with the values. The backward pass makes them again
// from the log of each row's softmax denominator (Dao et al. 2022; no online softmax, as a block holds whole rows).

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

// What one pair (batch, head) works with. Only the span of keys that some query of the block sees is computed, so
// packed documents and padding cost what they hold.
template <class T>
struct Head {
  const Attention& at;
  const T *q, *k, *v;
  const T* bias;
  const uint8_t *visible, *different;
  const float* segment;
  Dropout drop;

  Head(const Attention& at, const T* q, const T* k, const T* v, const T* bias, const uint8_t* visible,
       const int64_t* row_keys, const Relative<T>* relative, int64_t b, int64_t h)
      : at(at),
        q(q + b * at.q[0] + h * at.q[1]),
        k(k + b * at.k[0] + h * at.k[1]),
        v(v + b * at.v[0] + h * at.v[1]),
        bias(bias ? bias + b * at.bias[0] + h * at.bias[1] : nullptr),
        visible(visible ? visible + b * at.visible[0] + h * at.visible[1] : nullptr),
        different(nullptr),
        segment(nullptr),
        drop(nullptr, 0, at.threshold, at.keep_scale) {
    if (row_keys) {
      drop.on = true;
      drop.set(stream(stream((uint64_t)row_keys[b], at.site), h));
    }
    if (relative && relative->segment) {
      different = relative->different + b * at.different[0] + h * at.different[1];
      segment = relative->segment + (b * at.heads + h) * at.queries * 2;
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
    return b;
  }

  static uint32_t counter(int64_t i, int64_t j) { return ((uint32_t)i << 16) + (uint32_t)(j / 2); }
};

template <class T>
void write_rows(const float* src, int64_t src_stride, int64_t rows, int64_t width, float scale, T* dst,
                int64_t stride) {
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

// Queries of a block: equal blocks of whole tiles whose scores stay in the L2 cache. Larger ones waste less of a band of
// positions; smaller ones see fewer keys where documents are packed.
inline int64_t block_rows(const Attention& at, bool masked) {
  const int64_t scores = masked ? 32768 : 65536;
  int64_t most = std::clamp<int64_t>(scores / round_up(at.keys, BLOCK), TILE, MOST_ROWS) / TILE * TILE;
  int64_t blocks = (at.queries + most - 1) / most;
  return round_up((at.queries + blocks - 1) / blocks, TILE);
}

template <class T>
void attend(const Attention& at, const T* q, const T* k, const T* v, const T* bias, const uint8_t* visible,
            const int64_t* row_keys, const Relative<T>* relative, T* out, float* normalisers) {
  const int64_t depth = at.width, wide = round_up(at.width, BLOCK), value_wide = round_up(at.value_width, BLOCK);
  const int64_t columns = round_up(at.keys, BLOCK), block = block_rows(at, visible);
  const bool by_queries = relative && relative->query_rows, by_keys = relative && relative->key_rows;
  const int64_t spare = by_keys ? TILE : 0;
  const Tables<T> query_tables(at, by_queries ? relative->query_rows : nullptr, at.query_rows, false, false, 1.0f);
  const Tables<T> key_tables(at, by_keys ? relative->key_rows : nullptr, at.key_rows, true, false, 1.0f);
  const int64_t pairs = at.batch * at.heads, blocks = (at.queries + block - 1) / block;
  const int64_t parts = pairs >= 4 * at.threads ? 1 : std::min<int64_t>(blocks, (4 * at.threads + pairs - 1) / pairs);
#pragma omp parallel for schedule(dynamic) num_threads((int)at.threads)
  for (int64_t task = 0; task < pairs * parts; task++) {
    const int64_t b = task / parts / at.heads, h = task / parts % at.heads, part = task % parts;
    const int64_t table = relative && relative->table ? relative->table[b] : 0;
    Head<T> head(at, q, k, v, bias, visible, row_keys, relative, b, h);
    Taker take(columns * (depth + value_wide) + block * (wide + value_wide) + (block + W) * columns +
               (relative ? (columns + spare) * wide + band_room(block, columns) : 0));
    float* keys_packed = take(columns * depth);
    float* values_packed = take(columns * value_wide);
    float* queries = take(block * wide);
    float* scores = take((block + W) * columns);
    float* result = take(block * value_wide);
    float* keys = relative ? take((columns + spare) * wide) : nullptr;
    float* band = relative ? take(band_room(block, columns)) : nullptr;
    if (by_keys) {
      copy_rows(head.k, at.k[2], at.keys, depth, at.scale, keys, wide);
      std::memset(keys + at.keys * wide, 0, (columns + spare - at.keys) * wide * sizeof(float));
    }
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
      if (by_queries) {
        if (relative->position_query)
          copy_rows(relative->position_query + b * at.position_query[0] + h * at.position_query[1] +
                        i0 * at.position_query[2],
                    at.position_query[2], rows, depth, at.scale, queries, wide);
        add_query_rows(queries, wide, query_tables(h, table), depth, MARGIN + at.queries - 1 - i0 + first, rows, seen,
                       band, scores, columns);
      }
      if (by_keys)
        add_key_rows(keys + first * wide, wide, key_tables(h, table), depth, MARGIN + at.keys - 1 - first + i0, rows,
                     seen, band, scores, columns);
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
        const float mass = total(sum);
        inverse[r] = 1.0f / mass;
        normaliser = peak + std::log(mass);
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
                     const T* bias, const uint8_t* visible, const int64_t* row_keys, const float* normalisers,
                     const Relative<T>* relative, T* dq, T* dk, T* dv, T* dbias) {
  const int64_t depth = at.width, wide = round_up(depth, BLOCK), value_wide = round_up(at.value_width, BLOCK);
  const int64_t columns = round_up(at.keys, BLOCK), block = block_rows(at, visible);
  const int64_t query_panels = round_up(depth, PANEL) / PANEL, value_panels = round_up(at.value_width, PANEL) / PANEL;
  const bool by_queries = relative && relative->query_rows, by_keys = relative && relative->key_rows;
  const int64_t spare = by_keys ? TILE : 0;
  const Tables<T> query_tables(at, by_queries ? relative->query_rows : nullptr, at.query_rows, false, true, 1.0f);
  const Tables<T> key_tables(at, by_keys ? relative->key_rows : nullptr, at.key_rows, true, true, at.scale);
  // Gradients of the rows are sums over the batch, taken in `chunks` parts.
  const int64_t chunks = by_queries || by_keys ? std::clamp<int64_t>(64 / at.heads, 1, at.batch) : at.batch;
  const int64_t table_size = query_tables.width * wide;
  Memory query_sums(by_queries ? chunks * at.heads * at.tables * table_size : 0);
  Memory key_sums(by_keys ? chunks * at.heads * at.tables * table_size : 0);
  const int64_t room = relative ? std::max(band_room(block, columns), block * band_width(block, columns)) : 0;
#pragma omp parallel for schedule(dynamic) num_threads((int)at.threads)
  for (int64_t task = 0; task < chunks * at.heads; task++) {
    const int64_t chunk = task / at.heads, h = task % at.heads;
    float* query_sum = query_sums.data + task * at.tables * table_size;
    float* key_sum = key_sums.data + task * at.tables * table_size;
    if (by_queries) std::memset(query_sum, 0, at.tables * table_size * sizeof(float));
    if (by_keys) std::memset(key_sum, 0, at.tables * table_size * sizeof(float));
    for (int64_t b = at.batch * chunk / chunks; b < at.batch * (chunk + 1) / chunks; b++) {
      const int64_t pair = b * at.heads + h, table = relative && relative->table ? relative->table[b] : 0;
      Head<T> head(at, q, k, v, bias, visible, row_keys, relative, b, h);
      Taker take(columns * (depth + at.value_width + wide + value_wide) + 2 * (columns + spare) * wide +
                 2 * (block + W) * columns + block * (4 * wide + 2 * value_wide) + room + GROUP * wide);
      float* keys_transposed = take(columns * depth);
      float* values_transposed = take(columns * at.value_width);
      float* keys_packed = take(columns * wide);
      float* dkeys = take((columns + spare) * wide);
      float* dvalues = take(columns * value_wide);
      float* probabilities = take((block + W) * columns);
      float* dscores = take((block + W) * columns);
      float* queries = take(block * wide);
      float* queries_packed = take(block * wide);
      float* dqueries = take(block * wide);
      float* grads = take(block * value_wide);
      float* grads_packed = take(block * value_wide);
      float* dqueries_position = take(block * wide);
      float* band = take(room);
      float* group_packed = take(GROUP * wide);
      float* keys = take((columns + spare) * wide);
      if (by_keys) {
        copy_rows(head.k, at.k[2], at.keys, depth, at.scale, keys, wide);
        std::memset(keys + at.keys * wide, 0, (columns + spare - at.keys) * wide * sizeof(float));
      }
      auto clear_panels = [&](float* p, int64_t deep) {
        int64_t filled = round_up(at.keys, PANEL);
        std::memset(p + filled * deep, 0, (columns - filled) * deep * sizeof(float));
      };
      pack_transposed(head.k, at.k[2], at.keys, depth, keys_transposed);
      pack_transposed(head.v, at.v[2], at.keys, at.value_width, values_transposed);
      clear_panels(keys_transposed, depth);
      clear_panels(values_transposed, at.value_width);
      std::memset(dkeys, 0, (columns + spare) * wide * sizeof(float));
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
        const int64_t query_base = MARGIN + at.queries - 1 - i0 + first, key_base = MARGIN + at.keys - 1 - first + i0;
        if (by_queries) {
          if (relative->position_query)
            copy_rows(relative->position_query + b * at.position_query[0] + h * at.position_query[1] +
                          i0 * at.position_query[2],
                      at.position_query[2], rows, depth, at.scale, queries, wide);
          add_query_rows(queries, wide, query_tables(h, table), depth, query_base, rows, seen, band, probabilities,
                         columns);
        }
        if (by_keys)
          add_key_rows(keys + first * wide, wide, key_tables(h, table), depth, key_base, rows, seen, band,
                       probabilities, columns);
        for (int64_t r = 0; r < rows; r++) {
          float *p = probabilities + r * columns, *ds = dscores + r * columns;
          const float normaliser = normalisers[pair * at.queries + i0 + r];
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
          floats same = {}, other = {};
          for (int64_t j = 0; j < seen; j += BLOCK) {
            Block x = load(p + j, BLOCK), d = load(ds + j, BLOCK);
            for (int i = 0; i < VECTORS; i++) {
              floats positive = select(x.v[i] < 0.0f, -x.v[i], x.v[i]);
              d.v[i] = positive * (d.v[i] - mean);
              x.v[i] = select(x.v[i] < 0.0f, floats{}, positive * keep_scale);
            }
            if (head.segment) {
              ints differ[VECTORS];
              flags(head.different + (i0 + r) * at.different[2] + first + j, at.keys - first - j, differ);
              for (int i = 0; i < VECTORS; i++) {
                same += select(differ[i], floats{}, d.v[i]);
                other += select(differ[i], d.v[i], floats{});
              }
            }
            store(p + j, x, BLOCK);
            store(ds + j, d, BLOCK);
          }
          if (head.segment) {
            float* to_segment = relative->dsegment + (pair * at.queries + i0 + r) * 2;
            to_segment[0] = total(same), to_segment[1] = total(other);
          }
          if (dbias) {
            T* to_bias = dbias + (pair * at.queries + i0 + r) * at.keys;
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
        multiply<true>(dscores, columns, queries_packed, dkeys + first * wide, wide, depth_seen, rows, query_panels,
                       true);
        multiply<true>(probabilities, columns, grads_packed, dvalues + first * value_wide, value_wide, depth_seen, rows,
                       value_panels, true);
        if (by_queries) {
          float* to_queries = dqueries;
          if (relative->position_query) {
            to_queries = dqueries_position;
            std::memset(to_queries, 0, rows * wide * sizeof(float));
            pack(queries, wide, rows, depth, queries_packed);
          }
          query_rows_gradient(dscores, columns, rows, seen, query_tables(h, table), query_base, queries_packed, depth,
                              wide, band, to_queries, query_sum + table * table_size);
          if (relative->position_query)
            write_rows(to_queries, wide, rows, depth, at.scale,
                       relative->dposition_query + b * to.position_query[0] + h * to.position_query[1] +
                           i0 * to.position_query[2],
                       to.position_query[2]);
        }
        if (by_keys) {
          std::memset(dscores + rows * columns, 0, W * columns * sizeof(float));
          key_rows_gradient(dscores, columns, rows, seen, key_tables(h, table), key_base, keys + first * wide,
                            group_packed, depth, wide, band, dkeys + first * wide, key_sum + table * table_size);
        }
        write_rows(dqueries, wide, rows, depth, at.scale, dq + b * to.q[0] + h * to.q[1] + i0 * to.q[2], to.q[2]);
      }
      write_rows(dkeys, wide, at.keys, depth, 1.0f, dk + b * to.k[0] + h * to.k[1], to.k[2]);
      write_rows(dvalues, value_wide, at.keys, at.value_width, 1.0f, dv + b * to.v[0] + h * to.v[1], to.v[2]);
    }
  }
  auto reduce = [&](const float* sums, float* to_rows, bool reverse) {  // to_rows (tables, positions, heads, width)
#pragma omp parallel for schedule(static) num_threads((int)at.threads)
    for (int64_t row = 0; row < at.tables * at.positions; row++)
      for (int64_t h = 0; h < at.heads; h++) {
        const int64_t i = row % at.positions, column = MARGIN + (reverse ? at.positions - 1 - i : i);
        float* dst = to_rows + (row * at.heads + h) * depth;
        for (int64_t d = 0; d < depth; d += BLOCK) {
          Block sum = {};
          for (int64_t chunk = 0; chunk < chunks; chunk++) {
            const float* part = sums + ((chunk * at.heads + h) * at.tables + row / at.positions) * table_size;
            Block b = load(part + column * wide + d, BLOCK);
            for (int x = 0; x < VECTORS; x++) sum.v[x] += b.v[x];
          }
          store(dst + d, sum, depth - d);
        }
      }
  };
  if (by_queries) reduce(query_sums.data, relative->dquery_rows, false);
  if (by_keys) reduce(key_sums.data, relative->dkey_rows, true);
}

}  // namespace
