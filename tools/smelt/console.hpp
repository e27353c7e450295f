// SPDX-License-Identifier: Apache-2.0
//
// console: shows a run on stdout, the progress line of report/progress.hpp and lines between.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "smelt/report/progress.hpp"
#include "smelt/train/run_listener.hpp"

namespace smelt_tool {

class console final : public smelt::run_listener {
 public:
  /// @param step_tokens         of a step, over all ranks.
  /// @param flops_per_second    of the hardware, the 100 % of MFU; 0: not known.
  console(std::int64_t step_tokens, double flops_per_second)
      : step_tokens_(step_tokens), hardware_(flops_per_second) {}

  void begins(const std::string& phase, std::int64_t first, std::int64_t done,
              std::int64_t last) override {
    phase_ = phase;
    first_ = first;
    tokens_ = seconds_ = flops_ = 0;
    resident_ = -1;
    begun_ = clock::now();
    if (done > first) fmt::print("{}: goes on from step {}\n", phase, done);
    line_.emplace(smelt::progress_screen::of(stdout), last - first, done - first);
  }

  void stepped(const smelt::run_step& step) override {
    // Of about the last 20 steps.
    constexpr double fading = 0.95;
    tokens_ = fading * tokens_ + static_cast<double>(step_tokens_);
    seconds_ = fading * seconds_ + step.seconds;
    flops_ = fading * flops_ + static_cast<double>(step.flops);
    smelt::progress::point at{step.report.step + 1 - first_, phase_, step.report.loss,
                              tokens_ / seconds_};
    if (hardware_ > 0) at.mfu = flops_ / seconds_ / hardware_;
    const double now = std::chrono::duration<double>(clock::now() - begun_).count();
    // Asked of the system as often as the line is drawn, not at every step.
    if (resident_ < 0 || now > resident_asked_ + 0.1) {
      resident_ = smelt::resident_bytes();
      resident_asked_ = now;
    }
    at.resident_bytes = resident_;
    line_->show(at, now);
  }

  void evaluated(std::int64_t step, double validation_loss) override {
    says(fmt::format("{}: validation loss {:.4f} at step {}", phase_, validation_loss, step));
  }

  void says(const std::string& line) override {
    if (line_) line_->end_line();
    fmt::print("{}\n", line);
    std::fflush(stdout);
  }

  void ends() override {
    line_.reset();
    std::fflush(stdout);
  }

 private:
  using clock = std::chrono::steady_clock;

  std::int64_t step_tokens_;
  double hardware_;
  std::string phase_;
  std::int64_t first_ = 0;
  clock::time_point begun_ = clock::now();
  std::optional<smelt::progress> line_;
  double tokens_ = 0;  // fading sums
  double seconds_ = 0;
  double flops_ = 0;
  double resident_ = -1;
  double resident_asked_ = 0;
};

}  // namespace smelt_tool
