// SPDX-License-Identifier: Apache-2.0
//
// Compute-equivalent gain: the share of training FLOPs that the target architecture saves.
//
//   gain(C, S) = 1 - C / C_reference,   L*_reference(C_reference) = L*_target(C),   both at S
//
// that is: spend C on the target's frontier, and ask what the reference needs for the same loss
// (paper, section 5). Negative where the target loses.
#pragma once

#include <cmath>
#include <optional>

#include "smelt/error.hpp"
#include "smelt/law/frontier.hpp"
#include "smelt/law/message.hpp"
#include "smelt/law/surface.hpp"

namespace smelt::law {

/// The gain of `target` over `reference` at `compute_flops` total training FLOPs of the target and
/// sparsity S, as a fraction (0.158 is 15.8 %).
/// @throws smelt::error if either surface has no frontier, or if the reference never comes down to
///         the target's loss because that lies at or below its E.
inline double gain(const surface& reference, const surface& target, double compute_flops,
                   double sparsity) {
  const frontier of_reference(reference, sparsity);
  const frontier of_target(target, sparsity);
  const double loss = of_target.loss(compute_flops);
  if (!of_reference.reaches(loss)) {
    throw error("law: no gain at C " + number_text(compute_flops) + " and S " +
                number_text(sparsity) + ": the target's loss " + number_text(loss) +
                " is not above the reference's irreducible loss E " + number_text(reference.E) +
                ", which no compute reaches; ask for a smaller C");
  }
  return 1 - compute_flops / of_reference.compute_for(loss);
}

/// The tokens D at which the data terms K / D^c of two surfaces cross: beyond them the one with
/// the larger c has less left to learn from data.
/// @throws smelt::error if the exponents are equal (parallel terms never cross) or K not positive.
inline double data_crossover_tokens(const surface& reference, const surface& target) {
  if (!(reference.K > 0) || !(target.K > 0)) {
    throw error("law: coefficient K is " + number_text(reference.K) + " and " +
                number_text(target.K) + ", expected both positive; no crossover");
  }
  if (reference.c == target.c) {
    throw error("law: both data terms have exponent c " + number_text(reference.c) +
                ", parallel terms never cross");
  }
  return std::exp((std::log(target.K) - std::log(reference.K)) / (target.c - reference.c));
}

/// The lowest compute in [lowest_flops, highest_flops] at which the gain changes sign at S, to a
/// relative 1e-12, or nothing if it keeps its sign. The two frontiers meet there.
/// @throws smelt::error if a surface has no frontier or the range is not 0 < lowest < highest.
inline std::optional<double> break_even_compute(const surface& reference, const surface& target,
                                                double sparsity, double lowest_flops = 1e15,
                                                double highest_flops = 1e27) {
  if (!(lowest_flops > 0) || !(lowest_flops < highest_flops) || !std::isfinite(highest_flops)) {
    throw error("law: compute range " + number_text(lowest_flops) + " to " +
                number_text(highest_flops) + " FLOPs, expected 0 < lowest < highest");
  }
  const frontier of_reference(reference, sparsity);
  const frontier of_target(target, sparsity);
  // The sign of the gain is the sign of this difference, which exists where the gain does not.
  const auto lead = [&](double log_c) {
    return of_reference.loss(std::exp(log_c)) - of_target.loss(std::exp(log_c));
  };
  const double from = std::log(lowest_flops);
  const double to = std::log(highest_flops);
  // Two power laws with offsets meet at most twice: steps this fine separate the two.
  constexpr int steps = 400;
  double left = from;
  for (int i = 1; i <= steps; ++i) {
    double right = from + (to - from) * i / steps;
    const bool ahead = lead(left) > 0;
    if (ahead == (lead(right) > 0)) {
      left = right;
      continue;
    }
    while (right - left > 1e-12) {
      const double middle = (left + right) / 2;
      if (middle <= left || middle >= right) break;
      ((lead(middle) > 0) == ahead ? left : right) = middle;
    }
    return std::exp((left + right) / 2);
  }
  return std::nullopt;
}

}  // namespace smelt::law
