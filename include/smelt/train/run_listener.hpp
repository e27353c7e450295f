// SPDX-License-Identifier: Apache-2.0
//
// run_listener: what a run tells whoever shows it. The loop prints nothing itself; only rank 0 has
// a listener.
#pragma once

#include <cstdint>
#include <string>

#include "smelt/train/step_report.hpp"

namespace smelt {

/// A step as it is shown.
struct run_step {
  step_report report{};
  double seconds = 0.0;    // of the step
  std::int64_t flops = 0;  // of the step, attention by document
};

/// Every member does nothing unless it is overridden.
class run_listener {
 public:
  virtual ~run_listener() = default;
  /// A phase begins or goes on: `done` of its steps [first, last) are taken.
  virtual void begins(const std::string& /*phase*/, std::int64_t /*first*/, std::int64_t /*done*/,
                      std::int64_t /*last*/) {}
  virtual void stepped(const run_step&) {}
  virtual void evaluated(std::int64_t /*step*/, double /*validation_loss*/) {}
  /// What deserves a line of its own: a bad step, a branch that is passed over.
  virtual void says(const std::string& /*line*/) {}
  /// The phase is over, or was left by a signal.
  virtual void ends() {}
};

}  // namespace smelt
