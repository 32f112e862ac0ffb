// What kernels/cpu/ calls: plain C functions over raw pointers, so that no torch header is needed and everything
// compiles in seconds. plain.py says what each function computes.
//
// One pass over memory per function, dropout masks made in registers, float32 arithmetic whatever the storage: `half`
// chooses bfloat16 for activations; parameters, statistics and their gradients are float32. Sums over rows go through a
// fixed number of chunks, so results do not depend on the number of threads.

#include "attention.h"
#include "convolution.h"
#include "int8.h"
#include "layer.h"
#include "matrices.h"
#include "packed.h"
#include "rows.h"

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

EXPORT encoderlab_product(const bf16* a, int64_t a_row, int64_t a_column, const bf16* b, int64_t b_row,
                          int64_t b_column, bf16* c, int64_t c_row, const float* bias, int64_t rows, int64_t columns,
                          int64_t depth, int64_t add, int64_t threads) {
  product({a, a_row, a_column}, {b, b_row, b_column}, c, c_row, bias, rows, columns, depth, add, threads);
}

EXPORT encoderlab_dropout(int64_t half, const void* x, void* out, const int64_t* seeds, int64_t batch,
                          int64_t positions, int64_t width, int64_t site, int64_t threshold, float scale,
                          int64_t threads) {
  typed(half, [&](auto kind) {
    using T = decltype(kind);
    dropout((const T*)x, (T*)out, seeds, batch, positions, width, site, threshold, scale, threads);
  });
}

EXPORT encoderlab_add_norm(int64_t half, const void* x, const float* x_bias, const void* residual, const float* weight,
                           const float* bias, int64_t center, void* out, float* statistics, const int64_t* seeds,
                           int64_t batch, int64_t positions, int64_t width, int64_t site, int64_t threshold,
                           float scale, float eps, int64_t threads) {
  typed(half, [&](auto kind) {
    using T = decltype(kind);
    add_norm((const T*)x, x_bias, (const T*)residual, weight, bias, center, (T*)out, statistics, seeds, batch,
             positions, width, site, threshold, scale, eps, threads);
  });
}

EXPORT encoderlab_add_norm_backward(int64_t half, const void* grad, const void* x, const float* x_bias,
                                    const void* residual, const float* weight, int64_t center,
                                    const float* statistics, void* dx,
                                    void* dresidual, float* partial, float* sums, const int64_t* seeds, int64_t batch,
                                    int64_t positions, int64_t width, int64_t site, int64_t threshold, float scale,
                                    int64_t threads) {
  typed(half, [&](auto kind) {
    using T = decltype(kind);
    add_norm_backward((const T*)grad, (const T*)x, x_bias, (const T*)residual, weight, center, statistics, (T*)dx,
                      (T*)dresidual, partial, sums, seeds, batch, positions, width, site, threshold, scale, threads);
  });
}

// `wide`: the residual stream is float32 whatever the rest is.
EXPORT encoderlab_sum_norm(int64_t half, int64_t wide, const void* x, const float* x_bias, const void* residual,
                           const float* weight, const float* bias, int64_t center, void* sums, void* out,
                           float* statistics, const int64_t* seeds, int64_t batch, int64_t positions, int64_t width,
                           int64_t site, int64_t threshold, float scale, float eps, int64_t threads) {
  typed(half, [&](auto kind) {
    typed(half && !wide, [&](auto stream) {
      using T = decltype(kind);
      using R = decltype(stream);
      sum_norm((const T*)x, x_bias, (const R*)residual, weight, bias, center, (R*)sums, (T*)out, statistics, seeds,
               batch, positions, width, site, threshold, scale, eps, threads);
    });
  });
}

EXPORT encoderlab_sum_norm_backward(int64_t half, int64_t wide, const void* grad, const void* dsums, const void* sums,
                                    const float* weight, int64_t center, const float* statistics, void* dresidual,
                                    void* dx, float* partial, float* totals, const int64_t* seeds, int64_t batch,
                                    int64_t positions, int64_t width, int64_t site, int64_t threshold, float scale,
                                    int64_t threads) {
  typed(half, [&](auto kind) {
    typed(half && !wide, [&](auto stream) {
      using T = decltype(kind);
      using R = decltype(stream);
      sum_norm_backward((const T*)grad, (const R*)dsums, (const R*)sums, weight, center, statistics, (R*)dresidual,
                        (T*)dx, partial, totals, seeds, batch, positions, width, site, threshold, scale, threads);
    });
  });
}

EXPORT encoderlab_geglu(int64_t half, int64_t tanh, const void* x, const float* bias, void* out, const int64_t* seeds,
                        int64_t batch, int64_t positions, int64_t width, int64_t site, int64_t threshold, float scale,
                        int64_t threads) {
  typed(half, [&](auto kind) {
    using T = decltype(kind);
    auto run = tanh ? geglu<GeluTanh, T> : geglu<Gelu, T>;
    run((const T*)x, bias, (T*)out, seeds, batch, positions, width, site, threshold, scale, threads);
  });
}

EXPORT encoderlab_geglu_backward(int64_t half, int64_t tanh, void* grad, const void* x, const float* bias, void* dx,
                                 float* partial, float* dbias, const int64_t* seeds, int64_t batch, int64_t positions,
                                 int64_t width, int64_t site, int64_t threshold, float scale, int64_t threads) {
  typed(half, [&](auto kind) {
    using T = decltype(kind);
    auto run = tanh ? geglu_backward<GeluTanh, T> : geglu_backward<Gelu, T>;
    run((T*)grad, (const T*)x, bias, (T*)dx, partial, dbias, seeds, batch, positions, width, site, threshold, scale,
        threads);
  });
}

EXPORT encoderlab_gelu(int64_t half, int64_t tanh, const void* x, const float* bias, void* out, const int64_t* seeds,
                       int64_t batch, int64_t positions, int64_t width, int64_t site, int64_t threshold, float scale,
                       int64_t threads) {
  typed(half, [&](auto kind) {
    using T = decltype(kind);
    auto run = tanh ? gelu<GeluTanh, T> : gelu<Gelu, T>;
    run((const T*)x, bias, (T*)out, seeds, batch, positions, width, site, threshold, scale, threads);
  });
}

EXPORT encoderlab_gelu_backward(int64_t half, int64_t tanh, void* grad, const void* x, const float* bias, void* out,
                                float* partial, float* dbias, const int64_t* seeds, int64_t batch, int64_t positions,
                                int64_t width, int64_t site, int64_t threshold, float scale, int64_t threads) {
  typed(half, [&](auto kind) {
    using T = decltype(kind);
    auto run = tanh ? gelu_backward<GeluTanh, T> : gelu_backward<Gelu, T>;
    run((T*)grad, (const T*)x, bias, (T*)out, partial, dbias, seeds, batch, positions, width, site, threshold, scale,
        threads);
  });
}

EXPORT encoderlab_cross_entropy(int64_t half, void* logits, int64_t stride, const float* bias, const int64_t* labels,
                                float* loss, uint8_t* hit, const double* uniforms, int64_t* sampled,
                                float* partial, float* dbias, int64_t rows, int64_t classes,
                                int64_t gradients, float z_loss, int64_t threads) {
  typed(half, [&](auto kind) {
    using T = decltype(kind);
    cross_entropy((T*)logits, stride, bias, labels, loss, hit, uniforms, sampled, partial, dbias, rows,
                  classes, gradients, z_loss, threads);
  });
}

EXPORT encoderlab_divergence(int64_t half, const void* logits, const void* targets, void* gradient, float* loss,
                             uint8_t* hit, int64_t rows, int64_t classes, float cold, int64_t threads) {
  typed(half, [&](auto kind) {
    using T = decltype(kind);
    divergence((const T*)logits, (const T*)targets, (T*)gradient, loss, hit, rows, classes, cold, threads);
  });
}

template <class T>
static Inputs<T> inputs_of(const void* q, const void* k, const void* v, const void* bias, const uint8_t* visible,
                           const int64_t* seeds, const Pointers* pointers) {
  const Pointers p = pointers ? *pointers : Pointers{};
  const Relative<T> relative = {(const T*)p.query_rows, (const T*)p.key_rows, (const T*)p.position_query,
                                p.table, p.segment, p.different, p.rotation, p.dquery_rows, p.dkey_rows, p.dsegment,
                                (T*)p.dposition_query};
  return {(const T*)q, (const T*)k, (const T*)v, (const T*)bias, visible, seeds, relative};
}

EXPORT encoderlab_attend(int64_t half, const Attention* at, const void* q, const void* k, const void* v,
                         const void* bias, const uint8_t* visible, const int64_t* seeds, const Pointers* pointers,
                         void* out, float* normalisers) {
  typed(half, [&](auto kind) {
    using T = decltype(kind);
    attend(*at, inputs_of<T>(q, k, v, bias, visible, seeds, pointers), (T*)out, normalisers);
  });
}

EXPORT encoderlab_attend_backward(int64_t half, const Attention* at, const Attention* to, const void* grad,
                                  const void* q, const void* k, const void* v, const void* bias, const uint8_t* visible,
                                  const int64_t* seeds, const float* normalisers, const Pointers* pointers, void* dq,
                                  void* dk, void* dv, void* dbias) {
  typed(half, [&](auto kind) {
    using T = decltype(kind);
    const auto in = inputs_of<T>(q, k, v, bias, visible, seeds, pointers);
    Backward<T>{*at, *to, in, (const T*)grad, normalisers, (T*)dq, (T*)dk, (T*)dv, (T*)dbias}.run();
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
                          int64_t out_row, float* kernels, int64_t batch, int64_t length, int64_t heads, int64_t width,
                          int64_t taps, int64_t threads) {
  typed(half, [&](auto kind) {
    using T = decltype(kind);
    dynamic((const T*)x, (const T*)logits, doc, (T*)out, out_row, kernels, batch, length, heads, width, taps, threads);
  });
}

EXPORT encoderlab_dynamic_backward(int64_t half, const void* grad, int64_t grad_row, const void* x,
                                   const float* kernels, const int32_t* doc, void* dx, void* dlogits, int64_t batch,
                                   int64_t length, int64_t heads, int64_t width, int64_t taps, int64_t threads) {
  typed(half, [&](auto kind) {
    using T = decltype(kind);
    dynamic_backward((const T*)grad, grad_row, (const T*)x, kernels, doc, (T*)dx, (T*)dlogits, batch, length, heads,
                     width, taps, threads);
  });
}

EXPORT encoderlab_panel(int64_t* panel) { *panel = PANEL; }

EXPORT encoderlab_packed_product(const float* a, const float* panels, const float* bias, float* out, int64_t rows,
                                 int64_t columns, int64_t depth, int64_t threads) {
  packed_product(a, panels, bias, out, rows, columns, depth, threads);
}

EXPORT encoderlab_layer(const Layer* layer, const float* x, const uint8_t* visible, const Pointers* pointers,
                        float* out) {
  layer->run(x, visible, inputs_of<float>(x, x, x, nullptr, visible, nullptr, pointers).relative, out);
}

// Columns of a panel of weights in 8 bits; 0 where the processor has no instructions for them.
EXPORT encoderlab_int8_panel(int64_t* panel) {
#if INT8
  *panel = INT8_PANEL;
#else
  *panel = 0;
#endif
}

#if INT8
EXPORT encoderlab_quantise_rows(const float* x, uint8_t* q, float* scales, int64_t rows, int64_t width,
                                int64_t threads) {
  quantise_rows(x, q, scales, rows, width, threads);
}

EXPORT encoderlab_int8_product(const uint8_t* a, const float* a_scales, const int8_t* panels, const float* scales,
                               const int32_t* offsets, int64_t first, const float* bias, float* out, int64_t rows,
                               int64_t columns, int64_t depth, int64_t threads) {
  int8_product(a, a_scales, {panels, scales, offsets}, first, bias, out, rows, columns, depth, threads);
}
#endif
