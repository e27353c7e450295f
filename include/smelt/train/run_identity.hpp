// SPDX-License-Identifier: Apache-2.0
//
// What the ranks of a job must agree on before they train: model, compute type, seed, options.
//
// Ranks that differ in any of them would add up gradients of different things, and nothing later
// would show it. Compared once, as text, when a trainer is made: comm/collectives.hpp.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "smelt/comm/collectives.hpp"
#include "smelt/exec/policy.hpp"
#include "smelt/train/checkpoint_architecture.hpp"
#include "smelt/train/parallel_setting.hpp"
#include "smelt/train/step_report.hpp"

namespace smelt::detail {

// Every option, its name before it; std::to_string would round small ones to 0.
inline std::string options_in_words(const training_options& o) {
  std::string text;
  // Appended piece by piece: of sums of temporaries g++ 12 warns without reason.
  const auto named = [&text](const char* name) {
    text.append(text.empty() ? "" : " ").append(name).append("=");
  };
  const auto add = [&](const char* name, double value) {
    char digits[40];
    std::snprintf(digits, sizeof digits, "%.17g", value);
    named(name);
    text.append(digits);
  };
  const auto whole = [&](const char* name, std::int64_t value) {
    named(name);
    text.append(std::to_string(value));
  };
  add("peak", o.schedule.peak);
  whole("warmup_steps", o.schedule.warmup_steps);
  whole("decay_steps", o.schedule.decay_steps);
  whole("steps", o.schedule.steps);
  add("last_fraction", o.schedule.last_fraction);
  whole("batch_tokens", o.batch_tokens);
  add("beta1", o.beta1);
  add("beta2", o.beta2);
  add("epsilon", o.epsilon);
  add("weight_decay", o.weight_decay);
  add("clip_norm", o.clip_norm);
  add("balance_coefficient", o.balance_coefficient);
  add("z_coefficient", o.z_coefficient);
  whole("balance_group_tokens", o.balance_group_tokens);
  add("router_bias_rate", o.router_bias_rate);
  return text;
}

/// @throws smelt::agreed_error on every rank, naming the first rank that differs and in what.
template <class Model, class Policy, class Engine>
void expect_same_run(Engine& ranks, const training_options& options, std::uint64_t seed,
                     const parallel_setting& how) {
  const host<> run(1);
  expect_same(ranks, run, "model", architecture_text(architecture_fields<Model>()));
  expect_same(ranks, run, "bytes of a number in products",
              std::to_string(sizeof(typename Policy::compute)));
  expect_same(ranks, run, "seed", std::to_string(seed));
  expect_same(ranks, run, "options", options_in_words(options));
  expect_same(ranks, run, "parallel setting",
              "expert_ranks=" + std::to_string(how.expert_ranks) +
                  " sharded_optimizer=" + std::to_string(static_cast<int>(how.sharded_optimizer)) +
                  " global_balance=" + std::to_string(static_cast<int>(how.global_balance)));
}

}  // namespace smelt::detail
