// SPDX-License-Identifier: Apache-2.0
//
// What the user of `smelt train` asks for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "smelt/train/branches.hpp"
#include "smelt/train/parallel_setting.hpp"
#include "smelt/train/run_setting.hpp"

namespace smelt_tool {

struct request {
  smelt::run_setting setting;
  smelt::parallel_setting parallel;
  std::vector<std::string> tokens;    // files and folders
  std::vector<std::string> held_out;  // the same
  bool headerless = false;            // uint16 without a header
  std::string folder;
  double factor = 0;  // of the paper's protocol; 0: --steps
  std::int64_t steps = 0;
  std::vector<std::int64_t> branch_at;
  std::int64_t branch_steps = 0;
  std::int64_t warmup = -1;  // negative: a fifth of the steps before the first branch
  std::string balance = "loss";
  std::string balance_over = "sequence";
  std::string bad_step = "stop";
  std::string part = "all";
  std::string device = "cpu";
  std::string compute = "float32";
  int threads = 0;
  bool mfu = false;
};

/// Turns words into settings.
/// @throws smelt::error where they do not fit together.
inline void settle(request& wanted) {
  smelt::run_setting& run = wanted.setting;
  if (wanted.factor > 0) {
    run.follow(smelt::paper_protocol.scaled(wanted.factor, run.shape.sequences, run.shape.context));
  } else if (wanted.steps > 0) {
    run.stable_steps = wanted.steps;
    for (const std::int64_t point : wanted.branch_at)
      run.branches.push_back({point, wanted.branch_steps});
  } else {
    throw smelt::detail::io_error("length of the run", "--factor or --steps", "neither",
                                  "--factor 1 is the paper's protocol");
  }
  run.warmup_steps = wanted.warmup >= 0 ? wanted.warmup : run.first_decay() / 5;
  if (wanted.balance == "bias" || wanted.balance == "none") run.options.balance_coefficient = 0;
  if (wanted.balance == "loss" || wanted.balance == "none") run.options.router_bias_rate = 0;
  // Of a sequence: then neither micro-batches nor ranks change what is balanced.
  if (wanted.balance_over == "sequence") run.options.balance_group_tokens = run.shape.context;
  wanted.parallel.global_balance = wanted.balance_over == "ranks";
  if (wanted.bad_step == "skip") run.bad_step = smelt::on_bad_step::skip;
  if (wanted.part == "stable") run.part = smelt::run_part::stable;
  if (wanted.part == "branches") run.part = smelt::run_part::branches;
  run.check();
}

}  // namespace smelt_tool
