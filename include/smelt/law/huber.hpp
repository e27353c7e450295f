// SPDX-License-Identifier: Apache-2.0
//
// Huber's loss of one residual r, quadratic up to delta and linear beyond:
//
//   huber(r) = r^2 / 2                  for |r| <= delta
//              delta (|r| - delta / 2)  otherwise
//
// With delta = 1e-3 on log loss nearly every endpoint of a real law lies in the linear part, so a
// few bad runs cannot pull the surface (paper, section 5; Hoffmann et al. 2022).
#pragma once

#include <cmath>

namespace smelt::law {

/// Value of Huber's loss and its slope at one residual.
struct huber_loss {
  double value;  ///< in the square of the residual's unit
  double slope;  ///< d value / d residual, never beyond +-delta
};

/// Huber's loss of `residual` with threshold `delta` > 0, both in the same unit.
inline huber_loss huber(double residual, double delta) {
  const double size = std::fabs(residual);
  if (size <= delta) return {0.5 * residual * residual, residual};
  return {delta * (size - 0.5 * delta), std::copysign(delta, residual)};
}

}  // namespace smelt::law
