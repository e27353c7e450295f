// SPDX-License-Identifier: Apache-2.0
//
// AdamW with decoupled weight decay, and the global gradient norm it is clipped by:
//
//   m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2,  with g the gradient times the clip factor
//   w -= lr ( m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + decay w )
//   clip factor = min(1, clip / |g|_2)
//
// A step whose loss or gradient is not finite, or beyond a limit, changes nothing: judge_step says
// so in a number that the updates of the step read, 0 or infinity.
//
// One pass reads and writes every array once: 28 bytes per float32 parameter, plus 2 for the bf16
// copy that the next step's products read; the floor is memory bandwidth. The norm is summed in
// double over fixed blocks. Source: Loshchilov and Hutter; the paper trains with AdamW (section 4).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "smelt/exec/host_device.hpp"
#include "smelt/exec/into.hpp"
#include "smelt/exec/policy.hpp"
#include "smelt/op/lane_sum.hpp"

namespace smelt {

/// What stays over a run.
struct adamw_setting {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  double clip_norm = 1.0;  // of the whole gradient; 0 for no clipping
};

/// What a step may have at most if it is to change weights.
struct step_limits {
  double loss_sum = std::numeric_limits<double>::infinity();  // nats, not their mean
  double gradient_norm = std::numeric_limits<double>::infinity();
};

/// What changes with the step; on a device it lies in its memory, so that a graph can be replayed.
template <class Real>
struct adamw_rates {
  Real learning_rate;
  Real correction1;  // 1 - beta1^t, t counted from 1
  Real correction2;
  Real most_loss_sum;
  Real most_gradient_norm;

  adamw_rates(const adamw_setting& setting, double learning_rate_, std::int64_t step,
              const step_limits& limits = {})
      : learning_rate(static_cast<Real>(learning_rate_)),
        correction1(static_cast<Real>(1.0 - std::pow(setting.beta1, static_cast<double>(step)))),
        correction2(static_cast<Real>(1.0 - std::pow(setting.beta2, static_cast<double>(step)))),
        most_loss_sum(static_cast<Real>(limits.loss_sum)),
        most_gradient_norm(static_cast<Real>(limits.gradient_norm)) {}
};

/// The numbers of one update in the type it is computed in.
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

  /// The run's constants; rates and clip factor follow where a step knows them.
  explicit adamw_coefficients(const adamw_setting& setting)
      : learning_rate(0),
        beta1(static_cast<Real>(setting.beta1)),
        beta2(static_cast<Real>(setting.beta2)),
        epsilon(static_cast<Real>(setting.epsilon)),
        weight_decay(static_cast<Real>(setting.weight_decay)),
        correction1(1),
        correction2(1),
        gradient_scale(1) {}
  /// Of one step: squares is the sum of squares of the whole gradient.
  template <class Statistic>
  SMELT_HD void begin_step(const adamw_rates<Real>& rates, Statistic squares, Statistic clip_norm) {
    learning_rate = rates.learning_rate;
    correction1 = rates.correction1;
    correction2 = rates.correction2;
    const Statistic norm = std::sqrt(squares);
    gradient_scale = static_cast<Real>(
        clip_norm > Statistic(0) && norm > clip_norm ? clip_norm / norm : Statistic(1));
  }
};

/// Whether a step may change weights: a sum that is Inf or NaN would spoil all of them.
template <class Statistic>
SMELT_HD bool step_is_finite(Statistic squares, Statistic loss_sum) {
  return squares - squares == Statistic(0) && loss_sum - loss_sum == Statistic(0);
}

/// 0 for a step that may change weights, infinity for one that may not.
template <class Real, class Statistic>
SMELT_HD Statistic step_verdict(const adamw_rates<Real>& rates, Statistic squares,
                                Statistic loss_sum) {
  const bool accepted = step_is_finite(squares, loss_sum) &&
                        loss_sum <= static_cast<Statistic>(rates.most_loss_sum) &&
                        std::sqrt(squares) <= static_cast<Statistic>(rates.most_gradient_norm);
  return accepted ? Statistic(0) : static_cast<Statistic>(INFINITY);
}

/// a b + c. On a device rounded once, always: left to itself the compiler fuses in one kernel and
/// not in the other, and a parameter's bits would depend on which of them updates it.
template <class Real>
SMELT_HD Real multiply_add(Real a, Real b, Real c) {
#if defined(__CUDA_ARCH__)
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}

/// The arithmetic of one parameter; moments are updated in place, the new weight is returned.
template <class Real>
SMELT_HD Real adamw_element(Real weight, Real gradient, Real& first, Real& second,
                            const adamw_coefficients<Real>& c) {
  const Real g = gradient * c.gradient_scale;
  first = multiply_add(c.beta1, first, (Real(1) - c.beta1) * g);
  second = multiply_add(c.beta2, second, (Real(1) - c.beta2) * g * g);
  const Real direction = (first / c.correction1) / (std::sqrt(second / c.correction2) + c.epsilon);
  return weight - c.learning_rate * (direction + c.weight_decay * weight);
}

inline namespace host_backend {

/// *squares (+)= sum of squares of `count` elements, in double over fixed blocks: the same on any
/// number of threads.
template <class Compute>
void sum_of_squares(const host<Compute>& run, const real_of<Compute>* values, std::int64_t count,
                    typename host<Compute>::statistic* squares, into mode = into::overwrite) {
  const double sum =
      sum_over_blocks<double>(run.threads(), count, [&](std::int64_t begin, std::int64_t end) {
        return lane_sum<double>(end - begin, [=](std::int64_t i) {
          const double value = static_cast<double>(values[begin + i]);
          return value * value;
        });
      });
  *squares = mode == into::accumulate ? *squares + sum : sum;
}

/// *verdict = 0 where the step may change weights, infinity where not; squares and loss_sum are
/// those of the whole step.
template <class Compute>
void judge_step(const host<Compute>&, const adamw_rates<real_of<Compute>>* rates,
                const typename host<Compute>::statistic* squares,
                const typename host<Compute>::statistic* loss_sum,
                typename host<Compute>::statistic* verdict) {
  *verdict = step_verdict(*rates, *squares, *loss_sum);
}

/// Updates `count` weights and moments; where products run in bf16, `copy` receives the rounded
/// weights, otherwise it is ignored. Does nothing unless the gradient's sum of squares and the
/// verdict (or a loss) are finite, so that a step that went wrong leaves its weights alone.
template <class Compute>
void adamw_update(const host<Compute>& run, const adamw_setting& setting,
                  const adamw_rates<real_of<Compute>>* rates,
                  const typename host<Compute>::statistic* squares,
                  const typename host<Compute>::statistic* verdict, std::int64_t count,
                  real_of<Compute>* weights, const real_of<Compute>* gradients,
                  real_of<Compute>* first, real_of<Compute>* second, Compute* copy) {
  using real = real_of<Compute>;
  if (!step_is_finite(*squares, *verdict)) return;
  adamw_coefficients<real> c(setting);
  c.begin_step(*rates, *squares, setting.clip_norm);
  for_each_block(run, count, 1 << 14, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      weights[i] = adamw_element(weights[i], gradients[i], first[i], second[i], c);
    if constexpr (!std::is_same_v<Compute, real>)
      for (std::int64_t i = begin; i < end; ++i) copy[i] = static_cast<Compute>(weights[i]);
  });
}

}  // namespace host_backend
}  // namespace smelt
