// SPDX-License-Identifier: Apache-2.0
//
// Dense SwiGLU for every token (dense layers and shared experts):
//
//   [g u] = x W_gate_up^T,   h = silu(g) u,   y = h W_down^T
//
// Shapes: x [N, H], W_gate_up [2f, H] (gate rows first), W_down [H, f], y [N, H].
// FLOPs: 6 N H f forward, twice that backward. The elementwise part moves 5 N f elements beside.
#pragma once

#include <cstdint>

#include "smelt/exec/matmul.hpp"
#include "smelt/exec/matrix.hpp"
#include "smelt/exec/policy.hpp"
#include "smelt/op/silu.hpp"

namespace smelt {

/// Weights of one SwiGLU, or gradients of the same shapes.
template <class T>
struct swiglu_weights {
  matrix_view<T> gate_up;  // [2f, H]
  matrix_view<T> down;     // [H, f]
};

/// Memory that a SwiGLU borrows during a call; nothing in it outlives the call.
template <class Compute>
struct dense_ffn_workspace {
  real_of<Compute>* wide = nullptr;  // [N, 2f]
  Compute* narrow = nullptr;         // [N, 2f]
  Compute* hidden = nullptr;         // [N, f]
};

inline namespace host_backend {

/// y is overwritten or added to; saved_gate_up [N, 2f] is what backward needs.
template <class Compute, class Real = real_of<Compute>>
void dense_ffn_forward(const host<Compute>& run, matrix_view<const Compute> x,
                       const swiglu_weights<const Compute>& weights, Compute* saved_gate_up,
                       const dense_ffn_workspace<Compute>& work, matrix_view<Real> y, into mode) {
  const std::int64_t width = weights.down.columns;
  const matrix_view<Real> gate_up(work.wide, x.rows, 2 * width);
  const matrix_view<Compute> h(work.hidden, x.rows, width);
  product(run, x, transposed(weights.gate_up), gate_up);
  for_each_block(run, x.rows, 32, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n)
      swiglu_row(gate_up.row(n), width, Real(1), saved_gate_up + n * 2 * width, h.row(n));
  });
  product(run, h, transposed(weights.down), y, mode);
}

/// Gradients of the weights are added to; dx is overwritten or added to.
template <class Compute, class Real = real_of<Compute>>
void dense_ffn_backward(const host<Compute>& run, matrix_view<const Compute> dy,
                        matrix_view<const Compute> x, const Compute* saved_gate_up,
                        const swiglu_weights<const Compute>& weights,
                        const dense_ffn_workspace<Compute>& work,
                        const swiglu_weights<real_of<Compute>>& gradients, matrix_view<Real> dx,
                        into mode) {
  const std::int64_t width = weights.down.columns;
  const matrix_view<Real> dh(work.wide, x.rows, width);
  const matrix_view<Compute> h(work.hidden, x.rows, width);
  const matrix_view<Compute> dgate_up(work.narrow, x.rows, 2 * width);
  product(run, dy, weights.down, dh);
  for_each_block(run, x.rows, 32, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n)
      swiglu_row_backward(saved_gate_up + n * 2 * width, dh.row(n), width, Real(1), dgate_up.row(n),
                          h.row(n));
  });
  product(run, transposed(dy), h, gradients.down, into::accumulate);
  product(run, transposed(dgate_up), x, gradients.gate_up, into::accumulate);
  product(run, dgate_up, weights.gate_up, dx, mode);
}

}  // namespace host_backend
}  // namespace smelt
