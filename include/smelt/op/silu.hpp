// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of an element and of a row of SwiGLU, shared by dense layers and experts, host and
// device:
//
//   h = silu(g) u,   silu(g) = g s,   s = 1 / (1 + exp(-g))
//   dg = dh u s (1 + g (1 - s)),      du = dh silu(g)
//
// Source: the usual SwiGLU feed-forward; the sigmoid is written so that no input overflows.
#pragma once

#include <cstdint>

#include "smelt/exec/host_device.hpp"
#include "smelt/op/exponential.hpp"
#include "smelt/op/lane_sum.hpp"

namespace smelt {

template <class Real>
SMELT_HD Real sigmoid(Real x) {
  return Real(1) / (Real(1) + exponential(-x));
}

/// silu(gate) * up
template <class Real>
SMELT_HD Real swiglu(Real gate, Real up) {
  return gate * sigmoid(gate) * up;
}

template <class Real>
struct swiglu_gradient {
  Real value;  // the forward value again, which a backward pass needs for the weights' gradient
  Real gate;
  Real up;
};

/// Gradients of gate and up from the gradient of the product.
template <class Real>
SMELT_HD swiglu_gradient<Real> swiglu_backward(Real gate, Real up, Real dout) {
  const Real s = sigmoid(gate);
  const Real silu = gate * s;
  return {silu * up, dout * up * s * (Real(1) + gate * (Real(1) - s)), dout * silu};
}

/// One row: gate_up [2 width] of a product becomes what is kept, saved [2 width], and what the next
/// product takes, weighted [width] = weight * swiglu. The rows are apart from each other, which
/// __restrict promises: checking six of them against each other is more than a vectoriser does.
template <class Compute, class Real>
SMELT_HD void swiglu_row(const Real* __restrict gate_up, std::int64_t width, Real weight,
                         Compute* __restrict saved, Compute* __restrict weighted) {
  for (std::int64_t j = 0; j < width; ++j) {
    const Real gate = gate_up[j];
    const Real up = gate_up[width + j];
    saved[j] = static_cast<Compute>(gate);
    saved[width + j] = static_cast<Compute>(up);
    weighted[j] = static_cast<Compute>(weight * swiglu(gate, up));
  }
}

/// One row backward: dweighted [width] is the gradient of weight * swiglu. Writes dgate_up [2
/// width] and weighted [width] again, uses dweighted up, and returns the gradient of the weight.
template <class Compute, class Real>
SMELT_HD Real swiglu_row_backward(const Compute* __restrict saved, Real* __restrict dweighted,
                                  std::int64_t width, Real weight, Compute* __restrict dgate_up,
                                  Compute* __restrict weighted) {
  for (std::int64_t j = 0; j < width; ++j) {
    const Real outer = dweighted[j];
    const auto [value, gate, up] = swiglu_backward(
        static_cast<Real>(saved[j]), static_cast<Real>(saved[width + j]), weight * outer);
    dgate_up[j] = static_cast<Compute>(gate);
    dgate_up[width + j] = static_cast<Compute>(up);
    weighted[j] = static_cast<Compute>(weight * value);
    dweighted[j] = outer * value;
  }
  return lane_sum<Real>(width, [&](std::int64_t j) { return dweighted[j]; });
}

}  // namespace smelt
