// Attention, forward and backward: scores are made in the L2 cache, pass softmax and dropout there, and are multiplied
// with the values. The backward pass makes them again from the log of each row's softmax denominator (Dao et al. 2022;
// no online softmax, as a block holds whole rows).

#pragma once

#include "scores.h"

namespace {

// dst[row][j] = scale * src[row][j]
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

struct ForwardRoom {
  Products products;
  float *values, *scores, *result;  // the values in panels

  template <class Take>
  ForwardRoom(const Sizes& size, Take& take)
      : products(size, take),
        values(take(size.columns * size.value_wide)),
        scores(take((size.block + W) * size.span)),
        result(take(size.block * size.value_wide)) {}
};

template <class T>
void attend(const Attention& at, const Inputs<T>& in, T* out, float* normalisers) {
  const Sizes size(at, in);
  const Positions<T> positions(at, in.relative, false);
  const int64_t pairs = at.batch * at.heads, blocks = (at.queries + size.block - 1) / size.block;
  const int64_t parts = pairs >= 4 * at.threads ? 1 : std::min<int64_t>(blocks, (4 * at.threads + pairs - 1) / pairs);
#pragma omp parallel for schedule(dynamic) num_threads((int)at.threads)
  for (int64_t task = 0; task < pairs * parts; task++) {
    const int64_t pair = task / parts, part = task % parts;
    const Head<T> head(at, in, pair / at.heads, pair % at.heads);
    const ForwardRoom room = in_scratch<ForwardRoom>(size);
    room.products.take_keys(head);
    pack(head.v, at.v[2], at.keys, size.value_depth, room.values);
    T* to = start(out, at.out, head);
    for (int64_t n = blocks * part / parts; n < blocks * (part + 1) / parts; n++) {
      const Piece piece = head.piece(n * size.block, size.block);
      room.products.scores(head, positions, piece, room.scores);
      float inverse[MOST_ROWS];
      for (int64_t r = 0; r < piece.rows; r++)
        inverse[r] = head.softmax(room.scores + r * size.span, piece.i0 + r, piece,
                                  normalisers[pair * at.queries + piece.i0 + r]);
      multiply(room.scores, size.span, room.values + piece.first * PANEL, room.result, size.value_wide, piece.rows,
               piece.real, round_up(size.value_depth, PANEL) / PANEL, false, at.keys);
      for (int64_t r = 0; r < piece.rows; r++)
        write_rows(room.result + r * size.value_wide, size.value_wide, 1, size.value_depth, inverse[r],
                   to + (piece.i0 + r) * at.out[2], 0);
    }
  }
}

// Gradients of rows of positions are sums over the batch: each task has one for every table of its head.
struct RowSums {
  const Attention& at;
  const int64_t tasks, wide, size;  // the last: of one table
  const Memory memory;

  RowSums(const Attention& at, int64_t tasks, int64_t columns, int64_t wide)
      : at(at), tasks(tasks), wide(wide), size(columns * wide), memory(tasks * at.tables * size) {}

  float* operator()(int64_t task, int64_t table) const { return memory.data + (task * at.tables + table) * size; }

  void clear(int64_t task) const {
    if (tasks) std::memset((*this)(task, 0), 0, at.tables * size * sizeof(float));
  }

  // to_rows (tables, positions, heads, depth); of task t the head is t % heads
  void add_up(float* to_rows, bool reverse) const {
    if (!tasks) return;
#pragma omp parallel for schedule(static) num_threads((int)at.threads)
    for (int64_t row = 0; row < at.tables * at.positions; row++)
      for (int64_t h = 0; h < at.heads; h++) {
        const int64_t i = row % at.positions, column = MARGIN + (reverse ? at.positions - 1 - i : i);
        float* dst = to_rows + (row * at.heads + h) * at.width;
        for (int64_t d = 0; d < at.width; d += BLOCK) {
          Block sum = {};
          for (int64_t task = h; task < tasks; task += at.heads) {
            Block b = load((*this)(task, row / at.positions) + column * wide + d, BLOCK);
            for (int x = 0; x < VECTORS; x++) sum.v[x] += b.v[x];
          }
          store(dst + d, sum, at.width - d);
        }
      }
  }
};

struct BackwardRoom {
  Products products;
  float *keys, *values_transposed;  // in panels
  float *queries, *grads, *group;   // of a piece, in panels
  float* grad_rows;
  float *probabilities, *dscores;
  float *dqueries, *dposition_queries, *dkeys, *dvalues;

  template <class Take>
  BackwardRoom(const Sizes& size, Take& take)
      : products(size, take),
        keys(take(size.columns * size.wide)),
        values_transposed(take(size.columns * size.value_depth)),
        queries(take(size.block * size.wide)),
        grads(take(size.block * size.value_wide)),
        group(take(GROUP * size.wide)),
        grad_rows(take(size.block * size.value_wide)),
        probabilities(take((size.block + W) * size.span)),
        dscores(take((size.block + W) * size.span)),
        dqueries(take(size.block * size.wide)),
        dposition_queries(take(size.block * size.wide)),
        dkeys(take((size.columns + size.spare) * size.wide)),
        dvalues(take(size.columns * size.value_wide)) {}
};

// The backward pass: its arguments, what all tasks share, and the work of one.
template <class T>
struct Backward {
  const Attention &at, &to;  // `to` has the strides of the gradients where `at` has those of what they belong to
  const Inputs<T>& in;
  const T* grad;
  const float* normalisers;
  T *dq, *dk, *dv, *dbias;  // dbias (batch, heads, queries, keys) dense, or null

  const Sizes size{at, in};
  const Positions<T> positions{at, in.relative, true};
  // Each task takes one head and a part of the batch.
  const int64_t chunks = size.by_queries || size.by_keys ? std::clamp<int64_t>(64 / at.heads, 1, at.batch) : at.batch;
  const RowSums query_sums{at, size.by_queries ? chunks * at.heads : 0, positions.queries.width, size.wide};
  const RowSums key_sums{at, size.by_keys ? chunks * at.heads : 0, positions.keys.width, size.wide};

  void run() const {
#pragma omp parallel for schedule(dynamic) num_threads((int)at.threads)
    for (int64_t task = 0; task < chunks * at.heads; task++) {
      const int64_t chunk = task / at.heads, h = task % at.heads;
      query_sums.clear(task);
      key_sums.clear(task);
      for (int64_t b = at.batch * chunk / chunks; b < at.batch * (chunk + 1) / chunks; b++)
        of_head(Head<T>(at, in, b, h), task);
    }
    query_sums.add_up(in.relative.dquery_rows, false);
    key_sums.add_up(in.relative.dkey_rows, true);
  }

  void of_head(const Head<T>& head, int64_t task) const {
    const BackwardRoom room = in_scratch<BackwardRoom>(size);
    room.products.take_keys(head);
    in_turned_rows(head.k, at.k[2], at.keys, size.depth, size.rotation, room.products.turned, size.wide,
                   [&](auto* rows, int64_t stride, int64_t first, int64_t n) {
                     pack(rows, stride, n, size.depth, room.keys + first * PANEL, at.keys);
                   });
    pack_transposed(head.v, at.v[2], at.keys, size.value_depth, room.values_transposed);
    clear_panels(room.values_transposed, at.keys, size.columns, size.value_depth);
    std::memset(room.dkeys, 0, (size.columns + size.spare) * size.wide * sizeof(float));
    std::memset(room.dvalues, 0, size.columns * size.value_wide * sizeof(float));
    for (int64_t i0 = 0; i0 < at.queries; i0 += size.block) of_piece(head, head.piece(i0, size.block), room, task);
    if (size.rotation) turn(room.dkeys, size.wide, at.keys, size.depth, size.rotation, -1.0f);
    write_rows(room.dkeys, size.wide, at.keys, size.depth, 1.0f, start(dk, to.k, head), to.k[2]);
    write_rows(room.dvalues, size.value_wide, at.keys, size.value_depth, 1.0f, start(dv, to.v, head), to.v[2]);
  }

  void of_piece(const Head<T>& head, const Piece& piece, const BackwardRoom& room, int64_t task) const {
    const auto [i0, rows, first, seen, real] = piece;
    const Products& made = room.products;
    const int64_t span = size.span, wide = size.wide, value_wide = size.value_wide;
    const int64_t panels = round_up(size.depth, PANEL) / PANEL;
    const int64_t value_panels = round_up(size.value_depth, PANEL) / PANEL;
    const T* dout = start(grad, at.out, head) + i0 * at.out[2];
    copy_rows(dout, at.out[2], rows, size.value_depth, 1.0f, room.grad_rows, value_wide);
    pack(dout, at.out[2], rows, size.value_depth, room.grads);
    made.scores(head, positions, piece, room.probabilities);
    multiply(room.grad_rows, value_wide, room.values_transposed + first * size.value_depth, room.dscores, span, rows,
             size.value_depth, seen / PANEL);
    for (int64_t r = 0; r < rows; r++) {
      const int64_t row = head.pair * at.queries + i0 + r;
      float* ds = room.dscores + r * span;
      head.softmax_gradient(room.probabilities + r * span, ds, i0 + r, piece, normalisers[row],
                            head.segment ? in.relative.dsegment + 2 * row : nullptr);
      if (dbias) write_span(ds, piece, dbias + row * at.keys);
    }

    pack(made.queries, wide, rows, size.depth, room.queries);
    multiply(room.dscores, span, room.keys + first * PANEL, room.dqueries, wide, rows, real, panels, false, at.keys);
    multiply<true>(room.dscores, span, room.queries, room.dkeys + first * wide, wide, real, rows, panels, true);
    multiply<true>(room.probabilities, span, room.grads, room.dvalues + first * value_wide, value_wide, real, rows,
                   value_panels, true);
    if (size.by_queries) {
      float* dqueries = room.dqueries;
      if (head.position_query) {
        dqueries = room.dposition_queries;
        std::memset(dqueries, 0, rows * wide * sizeof(float));
        pack(made.position_queries, wide, rows, size.depth, room.queries);
      }
      query_rows_gradient(room.dscores, span, rows, seen, positions.queries(head.h, head.table),
                          query_base(at, piece), room.queries, size.depth, wide, made.band, dqueries,
                          query_sums(task, head.table));
      if (head.position_query)
        write_rows(dqueries, wide, rows, size.depth, at.scale,
                   start(in.relative.dposition_query, to.position_query, head) + i0 * to.position_query[2],
                   to.position_query[2]);
    }
    if (size.by_keys) {
      std::memset(room.dscores + rows * span, 0, W * span * sizeof(float));
      key_rows_gradient(room.dscores, span, rows, seen, positions.keys(head.h, head.table), key_base(at, piece),
                        made.keys + first * wide, room.group, size.depth, wide, made.band, room.dkeys + first * wide,
                        key_sums(task, head.table));
    }
    if (size.rotation) turn(room.dqueries, wide, rows, size.depth, made.angles(at, i0), -1.0f);
    write_rows(room.dqueries, wide, rows, size.depth, at.scale, start(dq, to.q, head) + i0 * to.q[2], to.q[2]);
  }

  // a row of the gradient of the bias: that of the scores where there are any, else zero
  void write_span(const float* ds, const Piece& piece, T* row) const {
    const int64_t first = piece.first, end = first + piece.real;
    std::memset(static_cast<void*>(row), 0, first * sizeof(T));
    for (int64_t j = first; j < end; j += BLOCK) store(row + j, load(ds + j - first, BLOCK), at.keys - j);
    if (end < at.keys) std::memset(static_cast<void*>(row + end), 0, (at.keys - end) * sizeof(T));
  }
};

}  // namespace
