// SPDX-License-Identifier: Apache-2.0
//
// Learning rate over the steps of a run: warmup, stable, decay.
//
//   warmup   peak * (step + 1) / warmup                               step < warmup
//   stable   peak
//   decay    last + (peak - last) (1 + cos(pi d)) / 2,  d in (0, 1]   the last `decay` steps
//
// Source: paper section 4 (warmup-stable-decay with cosine branches; warmup and peak not printed).
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>

#include "smelt/error.hpp"

namespace smelt {

/// Steps are counted from 0. A constant rate is {peak, 0, 0, steps}.
struct warmup_stable_decay {
  double peak = 1e-3;
  std::int64_t warmup_steps = 0;
  std::int64_t decay_steps = 0;
  std::int64_t steps = 1;      // of the whole run
  double last_fraction = 0.0;  // of the peak, reached after the last step of the decay

  /// Throws smelt::error where the phases do not fit into the run.
  void check() const {
    if (steps < 1 || warmup_steps < 0 || decay_steps < 0 || warmup_steps + decay_steps > steps)
      throw error("schedule: warmup " + std::to_string(warmup_steps) + " and decay " +
                  std::to_string(decay_steps) + " steps do not fit into a run of " +
                  std::to_string(steps) + "; shorten them or train longer");
    if (!(peak > 0.0) || last_fraction < 0.0 || last_fraction > 1.0)
      throw error("schedule: expected a peak learning rate above 0 and a last fraction in [0, 1]");
  }

  double learning_rate(std::int64_t step) const {
    if (step < warmup_steps)
      return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
    const std::int64_t decay_begin = steps - decay_steps;
    if (step < decay_begin || decay_steps == 0) return peak;
    const double done =
        static_cast<double>(step + 1 - decay_begin) / static_cast<double>(decay_steps);
    const double last = peak * last_fraction;
    return last + (peak - last) * 0.5 * (1.0 + std::cos(std::numbers::pi * done));
  }
};

}  // namespace smelt
