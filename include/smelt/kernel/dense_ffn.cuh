// SPDX-License-Identifier: Apache-2.0
//
// Dense SwiGLU on CUDA; formulas, shapes and the arithmetic of an element are those of
// op/dense_ffn.hpp and op/silu.hpp.
//
// The products are cuBLAS's, 6 N H f FLOPs forward and twice that backward: bound by arithmetic.
// Between them one thread per element of [N, f] makes what both sides need:
//
//   forward    reads gate and up in float, writes both in Compute, and h     20 bytes an element,
//                                                                            14 in bf16
//   backward   reads gate, up and dh, writes dgate, dup and h again          24 and 14 bytes
//
// These are bound by memory. The gate and up halves of a row are f apart, so the walk is by row and
// column (for_each_element) whatever the width.
#pragma once

#include <cstdint>

#include "smelt/exec/cuda/matmul.cuh"
#include "smelt/kernel/elementwise.cuh"
#include "smelt/op/dense_ffn.hpp"

namespace smelt {
inline namespace cuda_backend {

namespace cuda_detail {

// gate_up, saved [N, 2f]; h [N, f].
template <class Compute>
struct swiglu_of_product {
  matrix_view<const float> gate_up;
  matrix_view<Compute> saved;
  matrix_view<Compute> h;

  __device__ void operator()(std::int64_t row, std::int64_t j) const {
    const std::int64_t width = h.columns;
    const float gate = gate_up.row(row)[j];
    const float up = gate_up.row(row)[width + j];
    saved.row(row)[j] = static_cast<Compute>(gate);
    saved.row(row)[width + j] = static_cast<Compute>(up);
    h.row(row)[j] = static_cast<Compute>(swiglu(gate, up));
  }
};

// saved, dgate_up [N, 2f]; dh, h [N, f].
template <class Compute>
struct swiglu_gradient_of_product {
  matrix_view<const Compute> saved;
  matrix_view<const float> dh;
  matrix_view<Compute> dgate_up;
  matrix_view<Compute> h;

  __device__ void operator()(std::int64_t row, std::int64_t j) const {
    const std::int64_t width = h.columns;
    const swiglu_gradient<float> gradient =
        swiglu_backward(static_cast<float>(saved.row(row)[j]),
                        static_cast<float>(saved.row(row)[width + j]), dh.row(row)[j]);
    dgate_up.row(row)[j] = static_cast<Compute>(gradient.gate);
    dgate_up.row(row)[width + j] = static_cast<Compute>(gradient.up);
    h.row(row)[j] = static_cast<Compute>(gradient.value);
  }
};

}  // namespace cuda_detail

/// As the host's: y is overwritten or added to; saved_gate_up [N, 2f] is what backward needs.
template <class Compute>
void dense_ffn_forward(const cuda<Compute>& run, matrix_view<const Compute> x,
                       const swiglu_weights<const Compute>& weights, Compute* saved_gate_up,
                       const dense_ffn_workspace<Compute>& work, matrix_view<float> y, into mode) {
  const std::int64_t width = weights.down.columns;
  const matrix_view<float> gate_up(work.wide, x.rows, 2 * width);
  const matrix_view<Compute> h(work.hidden, x.rows, width);
  product(run, x, transposed(weights.gate_up), gate_up);
  for_each_element(
      run, {"dense_ffn_forward", {x.rows, width}}, x.rows, width,
      cuda_detail::swiglu_of_product<Compute>{gate_up, {saved_gate_up, x.rows, 2 * width}, h});
  product(run, h, transposed(weights.down), y, mode);
}

/// As the host's: gradients of the weights are added to; dx is overwritten or added to.
template <class Compute>
void dense_ffn_backward(const cuda<Compute>& run, matrix_view<const Compute> dy,
                        matrix_view<const Compute> x, const Compute* saved_gate_up,
                        const swiglu_weights<const Compute>& weights,
                        const dense_ffn_workspace<Compute>& work,
                        const swiglu_weights<float>& gradients, matrix_view<float> dx, into mode) {
  const std::int64_t width = weights.down.columns;
  const matrix_view<float> dh(work.wide, x.rows, width);
  const matrix_view<Compute> h(work.hidden, x.rows, width);
  const matrix_view<Compute> dgate_up(work.narrow, x.rows, 2 * width);
  product(run, dy, weights.down, dh);
  for_each_element(run, {"dense_ffn_backward", {x.rows, width}}, x.rows, width,
                   cuda_detail::swiglu_gradient_of_product<Compute>{
                       {saved_gate_up, x.rows, 2 * width}, dh, dgate_up, h});
  product(run, transposed(dy), h, gradients.down, into::accumulate);
  product(run, transposed(dgate_up), x, gradients.gate_up, into::accumulate);
  product(run, dgate_up, weights.gate_up, dx, mode);
}

}  // namespace cuda_backend
}  // namespace smelt
