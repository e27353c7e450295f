// SPDX-License-Identifier: Apache-2.0
//
// Token embedding:  x[n] = W[token[n]],   dW[t] = sum over the n with token[n] = t of dx[n]
//
// Shapes: W [V, H], x [N, H], tokens [N] in [0, V) (checked where a batch is made, not here).
// Forward moves N H elements. Backward is cut by columns, and each column adds its tokens in order:
// no two threads meet in one element, so the sum is the same on any number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "smelt/exec/matrix.hpp"
#include "smelt/exec/policy.hpp"

namespace smelt {
inline namespace host_backend {

template <class Compute, class Real = real_of<Compute>>
void embed_forward(const host<Compute>& run, const std::int32_t* tokens,
                   matrix_view<const Real> weights, matrix_view<Real> x) {
  for_each_block(run, x.rows, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n)
      std::copy_n(weights.row(tokens[n]), x.columns, x.row(n));
  });
}

/// Adds to dweights.
template <class Compute, class Real = real_of<Compute>>
void embed_backward(const host<Compute>& run, const std::int32_t* tokens,
                    matrix_view<const Real> dx, matrix_view<Real> dweights) {
  for_each_block(run, dx.columns, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = 0; n < dx.rows; ++n) {
      const Real* from = dx.row(n);
      Real* to = dweights.row(tokens[n]);
      for (std::int64_t j = begin; j < end; ++j) to[j] += from[j];
    }
  });
}

}  // namespace host_backend
}  // namespace smelt
