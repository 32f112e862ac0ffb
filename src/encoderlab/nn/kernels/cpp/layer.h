// A whole layer in one call, for prediction: without dropout and gradients, with weights that were packed once, in
// float32 or in 8 bits. It is made of the functions that the layer's operations call one by one (nn/block.py).

#pragma once

#include "attention.h"
#include "int8.h"
#include "packed.h"
#include "rows.h"

namespace {

struct Weight {  // of 8 bits where it has scales; its panels are those of packed.h or int8.h
  const void* panels;
  const float* scales;
  const int32_t* offsets;
  const float* bias;
  int64_t outputs, inputs;
};

struct Norm {  // null weight: there is none
  const float *weight, *bias;
};

struct Layer {  // filled in by kernels/cpu/layer.py
  Weight qkv, out, up, down;
  Norm attention_norm, feed_forward_norm;
  int64_t batch, length, width, heads;
  int64_t visible[3];  // strides of batch, head and query
  int64_t reach, positions;
  int64_t pre, center, gated, tanh, threads;
  float scale, eps;

  int64_t rows() const { return batch * length; }
  int64_t inner() const { return out.inputs; }

  Attention attention() const {
    const int64_t depth = inner() / heads;
    Attention at = {};
    at.batch = batch, at.heads = heads, at.queries = at.keys = length, at.width = at.value_width = depth;
    for (int64_t* strides : {at.q, at.k, at.v}) strides[0] = length * 3 * inner(), strides[1] = depth, strides[2] = 3 * inner();
    at.out[0] = length * inner(), at.out[1] = depth, at.out[2] = inner();
    std::memcpy(at.visible, visible, sizeof visible);
    at.threads = workers(batch * length * inner() * length / 32), at.reach = reach;
    at.positions = positions, at.tables = 1;
    for (int64_t* strides : {at.query_rows, at.key_rows}) strides[0] = inner(), strides[1] = depth;
    at.scale = scale, at.keep_scale = 1.0f;
    return at;
  }

  int64_t workers(int64_t work) const { return work < 1 << 15 ? 1 : threads; }  // SMALL of kernels/cpu/native.py

  void product(const float* x, const Weight& w, const float* bias, float* to) const {
    const int64_t busy = workers(rows() * w.inputs * w.outputs / 256);
    if (!w.scales) return packed_product(x, (const float*)w.panels, bias, to, rows(), w.outputs, w.inputs, busy);
#if INT8
    const int64_t depth = round_up(w.inputs, 4);
    const Memory room(rows() + rows() * depth / 4);
    auto* values = reinterpret_cast<uint8_t*>(room.data + rows());
    quantise_rows(x, values, room.data, rows(), w.inputs, workers(rows() * w.inputs));
    int8_product(values, room.data, {(const int8_t*)w.panels, w.scales, w.offsets}, 0, bias, to, rows(), w.outputs,
                 depth, busy);
#endif
  }

  // norm(residual + x + x_bias)
  void add_norm(const float* x, const float* x_bias, const float* residual, const Norm& norm, float* to,
                float* statistics) const {
    ::add_norm(x, x_bias, residual, norm.weight, norm.bias, center, to, statistics, nullptr, batch, length, width, 0, 0,
               1.0f, eps, workers(rows() * width));
  }

  void activate(const float* x, float* to) const {
    auto run = gated ? (tanh ? geglu<GeluTanh, float> : geglu<Gelu, float>) : (tanh ? ::gelu<GeluTanh, float> : ::gelu<Gelu, float>);
    run(x, up.bias, to, nullptr, batch, length, down.inputs, 0, 0, 1.0f, workers(rows() * down.inputs));
  }

  void run(const float* x, const uint8_t* visible, const Relative<float>& relative, float* result) const {
    const int64_t n = rows();
    const Memory room(n * (3 * inner() + inner() + 3 * width + 2 + heads + up.outputs + down.inputs));
    float *qkv_ = room.data, *attended = qkv_ + n * 3 * inner(), *change = attended + n * inner();
    float *sums = change + n * width, *normed = sums + n * width, *statistics = normed + n * width;
    float *normalisers = statistics + 2 * n, *wide = normalisers + n * heads, *activated = wide + n * up.outputs;

    const float* from = x;
    if (pre && attention_norm.weight) {
      add_norm(x, nullptr, nullptr, attention_norm, normed, statistics);
      from = normed;
    }
    product(from, qkv, qkv.bias, qkv_);
    attend(attention(), Inputs<float>{qkv_, qkv_ + inner(), qkv_ + 2 * inner(), nullptr, visible, nullptr, relative},
           attended, normalisers);
    product(attended, out, nullptr, change);
    if (pre)
      sum_norm(change, out.bias, x, feed_forward_norm.weight, feed_forward_norm.bias, center, sums, normed, statistics,
               nullptr, batch, length, width, 0, 0, 1.0f, eps, workers(n * width));
    else
      add_norm(change, out.bias, x, attention_norm, normed, statistics);
    product(normed, up, nullptr, wide);
    activate(wide, activated);
    product(activated, down, pre ? down.bias : nullptr, change);
    if (!pre) return add_norm(change, down.bias, normed, feed_forward_norm, result, statistics);
    for (int64_t i = 0; i < n * width; i++) result[i] = sums[i] + change[i];
  }
};

}  // namespace
