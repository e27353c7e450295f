// SPDX-License-Identifier: Apache-2.0
//
// The residual stream:  y = x + s u,   and for its gradient  du = s dy  (dx = dy passes by
// untouched)
//
// s is 1 outside looped spans and 1/visits inside (paper section 1). Shapes: all [N, H]. Bytes:
// three times N H elements moved, nothing to compute; a row block of 16 KiB keeps what the next op
// reads in cache. scaled() also converts between float and bf16.
#pragma once

#include <cstdint>

#include "smelt/exec/host_device.hpp"
#include "smelt/exec/matrix.hpp"
#include "smelt/exec/policy.hpp"

namespace smelt {

/// One element of the stream after an update.
template <class Real>
SMELT_HD Real residual_element(Real x, Real scale, Real update) {
  return x + scale * update;
}

/// One element, multiplied in Real and converted.
template <class Out, class In, class Real>
SMELT_HD Out scaled_element(In value, Real scale) {
  return static_cast<Out>(scale * static_cast<Real>(value));
}

inline namespace host_backend {

/// y = x + scale * update; y may be x.
template <class Compute, class Real = real_of<Compute>>
void residual_add(const host<Compute>& run, matrix_view<const Real> x, real_of<Compute> scale,
                  matrix_view<const Real> update, matrix_view<Real> y) {
  for_each_block(run, x.rows, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      const Real* from = x.row(n);
      const Real* change = update.row(n);
      Real* to = y.row(n);
      for (std::int64_t j = 0; j < x.columns; ++j)
        to[j] = residual_element(from[j], scale, change[j]);
    }
  });
}

/// out = scale * in, converted to the element type of out.
template <class Compute, class In, class Out>
void scaled(const host<Compute>& run, matrix_view<const In> in, real_of<Compute> scale,
            matrix_view<Out> out) {
  for_each_block(run, in.rows, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      const In* from = in.row(n);
      Out* to = out.row(n);
      for (std::int64_t j = 0; j < in.columns; ++j) to[j] = scaled_element<Out>(from[j], scale);
    }
  });
}

}  // namespace host_backend
}  // namespace smelt
