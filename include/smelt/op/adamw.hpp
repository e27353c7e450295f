// SPDX-License-Identifier: Apache-2.0
//
// AdamW with decoupled weight decay, and the global gradient norm it is clipped by:
//
//   m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2,  with g the gradient times the clip factor
//   w -= lr ( m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + decay w )
//   clip factor = min(1, clip / |g|_2)
//
// One pass reads and writes every array once: 28 bytes per float32 parameter, plus 2 for the bf16
// copy that the next step's products read; the floor is memory bandwidth. The norm is summed in
// double over fixed blocks. Source: Loshchilov and Hutter; the paper trains with AdamW (section 4).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "smelt/exec/host_device.hpp"
#include "smelt/exec/policy.hpp"
#include "smelt/op/lane_sum.hpp"

namespace smelt {

/// What the update of one step needs; the corrections are 1 - beta^t, computed once on the host.
template <class Real>
struct adamw_coefficients {
  Real learning_rate;
  Real beta1;
  Real beta2;
  Real epsilon;
  Real weight_decay;
  Real correction1;
  Real correction2;
  Real gradient_scale;  // the clip factor

  adamw_coefficients(double learning_rate_, double beta1_, double beta2_, double epsilon_,
                     double weight_decay_, std::int64_t step, double gradient_scale_)
      : learning_rate(static_cast<Real>(learning_rate_)),
        beta1(static_cast<Real>(beta1_)),
        beta2(static_cast<Real>(beta2_)),
        epsilon(static_cast<Real>(epsilon_)),
        weight_decay(static_cast<Real>(weight_decay_)),
        correction1(static_cast<Real>(1.0 - std::pow(beta1_, static_cast<double>(step)))),
        correction2(static_cast<Real>(1.0 - std::pow(beta2_, static_cast<double>(step)))),
        gradient_scale(static_cast<Real>(gradient_scale_)) {}
};

/// The arithmetic of one parameter; moments are updated in place, the new weight is returned.
template <class Real>
SMELT_HD Real adamw_element(Real weight, Real gradient, Real& first, Real& second,
                            const adamw_coefficients<Real>& c) {
  const Real g = gradient * c.gradient_scale;
  first = c.beta1 * first + (Real(1) - c.beta1) * g;
  second = c.beta2 * second + (Real(1) - c.beta2) * g * g;
  const Real direction = (first / c.correction1) / (std::sqrt(second / c.correction2) + c.epsilon);
  return weight - c.learning_rate * (direction + c.weight_decay * weight);
}

inline namespace host_backend {

/// Sum of squares of `count` elements, in double, over fixed blocks: the same on any threads.
template <class Compute, class Real = real_of<Compute>>
double sum_of_squares(const host<Compute>& run, const real_of<Compute>* values,
                      std::int64_t count) {
  return sum_over_blocks<double>(run.threads(), count, [&](std::int64_t begin, std::int64_t end) {
    return lane_sum<double>(end - begin, [=](std::int64_t i) {
      const double value = static_cast<double>(values[begin + i]);
      return value * value;
    });
  });
}

/// Updates `count` weights and moments; where products run in bf16, `copy` receives the rounded
/// weights, otherwise it is ignored.
template <class Compute, class Real = real_of<Compute>>
void adamw_update(const host<Compute>& run, const adamw_coefficients<real_of<Compute>>& c,
                  std::int64_t count, real_of<Compute>* weights, const real_of<Compute>* gradients,
                  real_of<Compute>* first, real_of<Compute>* second, Compute* copy) {
  for_each_block(run, count, 1 << 14, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      weights[i] = adamw_element(weights[i], gradients[i], first[i], second[i], c);
    if constexpr (!std::is_same_v<Compute, Real>)
      for (std::int64_t i = begin; i < end; ++i) copy[i] = static_cast<Compute>(weights[i]);
  });
}

}  // namespace host_backend
}  // namespace smelt
