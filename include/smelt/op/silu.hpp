// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of one element of SwiGLU, shared by dense layers and experts, host and device:
//
//   h = silu(g) u,   silu(g) = g s,   s = 1 / (1 + exp(-g))
//   dg = dh u s (1 + g (1 - s)),      du = dh silu(g)
//
// Source: the usual SwiGLU feed-forward; the sigmoid is written so that no input overflows.
#pragma once

#include <cstdint>

#include "smelt/exec/host_device.hpp"
#include "smelt/op/exponential.hpp"

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

}  // namespace smelt
