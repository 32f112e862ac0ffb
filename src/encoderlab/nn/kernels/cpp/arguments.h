// The arguments of attention, filled in by kernels/cpu/attention.py.

#pragma once

#include <cstdint>

namespace {

struct Attention {  // strides in elements; those of broadcast dimensions are 0, the last dimension is dense
  int64_t batch, heads, queries, keys, width, value_width;
  int64_t q[3], k[3], v[3], out[3];  // batch, head, position
  int64_t bias[3], visible[3];       // batch, head, query
  int64_t site, threshold, threads;
  int64_t reach;  // keys further than this from a query are hidden; -1: none. The queries are the last of the keys
  // Relative positions: score[i, j] += scale * (query[i] . query_rows[c] + k[j] . key_rows[c]) with
  // c = queries - 1 - i + j and `tables` sets of `positions` rows; and that of segments, segment[i, different[i, j]].
  int64_t positions, tables;
  int64_t query_rows[2], key_rows[2];  // row, head
  int64_t position_query[3];           // batch, head, query
  int64_t different[3];                // batch, head, query
  float scale, keep_scale;
};

// What only attention with relative or rotary positions has; null pointers where it has not.
template <class T>
struct Relative {
  const T *query_rows, *key_rows, *position_query;
  const int64_t* table;      // (batch) which set of rows
  const float* segment;      // (batch, heads, queries, 2)
  const uint8_t* different;  // whether query and key lie in different segments
  const float* rotation;     // (keys, width), cosines and sines of rotary positions
  float *dquery_rows, *dkey_rows, *dsegment;
  T* dposition_query;
};

struct Pointers {  // Relative with untyped pointers
  const void *query_rows, *key_rows, *position_query;
  const int64_t* table;
  const float* segment;
  const uint8_t* different;
  const float* rotation;
  float *dquery_rows, *dkey_rows, *dsegment;
  void* dposition_query;
};

}  // namespace
