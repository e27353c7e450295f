// SPDX-License-Identifier: Apache-2.0
//
// The command line of `smelt train`.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>

#include "request.hpp"

namespace smelt_tool {

/// Declares the options on `app`; their values land in `wanted`.
inline void describe(CLI::App& app, request& wanted) {
  smelt::run_setting& run = wanted.setting;
  const CLI::Range count(std::int64_t{1}, std::int64_t{1} << 40);
  const CLI::Range count_or_none(std::int64_t{0}, std::int64_t{1} << 40);
  app.add_option("MODEL", run.model, "A model that `smelt models` lists")->required();
  app.add_option("--tokens", wanted.tokens, "Token shards, or folders with train.*.bin or *.bin")
      ->required();
  app.add_option("--held-out", wanted.held_out, "The same with held_out.*.bin, for the loss")
      ->required();
  app.add_flag("--headerless", wanted.headerless,
               "The shards are uint16 from their first byte; otherwise each says what it is");
  app.add_option("--out", wanted.folder, "Folder of the run; where it is one, the run goes on")
      ->required();

  CLI::Option* factor =
      app.add_option("--factor", wanted.factor, "The paper's protocol of 6 branches, times this")
          ->check(CLI::Range(1e-9, 1000.0));
  CLI::Option* steps =
      app.add_option("--steps", wanted.steps, "Or: steps of the stable phase")->check(count);
  CLI::Option* points = app.add_option("--branch-at", wanted.branch_at, "Steps to branch at")
                            ->delimiter(',')
                            ->check(count);
  CLI::Option* length =
      app.add_option("--branch-steps", wanted.branch_steps, "Steps of each decay")->check(count);
  factor->excludes(steps)->excludes(points)->excludes(length);
  points->needs(steps)->needs(length);
  length->needs(points);

  app.add_option("--sequences", run.shape.sequences, "Sequences of a step, over all ranks")
      ->check(count)
      ->capture_default_str();
  app.add_option("--context", run.shape.context, "Tokens of a sequence")
      ->check(count)
      ->capture_default_str();
  app.add_option("--micro-batches", run.micro_batches, "Parts of a rank's share, one at a time")
      ->check(count)
      ->capture_default_str();
  app.add_option("--seed", run.seed, "Of weights and batches; a pair takes the same")
      ->capture_default_str();
  app.add_option("--peak", run.peak, "Learning rate of the stable phase")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--warmup", wanted.warmup, "Steps; default: 1/5 of those before the first branch")
      ->check(count_or_none);

  app.add_option("--balance", wanted.balance, "How experts are balanced: loss, bias, both, none")
      ->check(CLI::IsMember({"loss", "bias", "both", "none"}))
      ->capture_default_str();
  app.add_option("--balance-over", wanted.balance_over,
                 "Tokens the balancing loss looks at together: sequence, micro-batch, ranks")
      ->check(CLI::IsMember({"sequence", "micro-batch", "ranks"}))
      ->capture_default_str();
  app.add_option("--balance-coefficient", run.options.balance_coefficient, "Of the balancing loss")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  run.options.router_bias_rate = 1e-3;
  app.add_option("--bias-rate", run.options.router_bias_rate, "Of the balancing bias, per step")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--z-coefficient", run.options.z_coefficient, "Of the router z-loss")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();

  app.add_option("--checkpoint-every", run.checkpoint_every, "Steps")
      ->check(count)
      ->capture_default_str();
  app.add_option("--keep", run.keep, "Newest checkpoints of a phase; branch points stay")
      ->check(count)
      ->capture_default_str();
  app.add_option("--evaluate-every", run.evaluate_every, "Steps; 0: at the end of a phase")
      ->check(count_or_none)
      ->capture_default_str();
  app.add_option("--held-out-tokens", run.held_out_tokens, "Of an evaluation, about; 0: all")
      ->check(count_or_none)
      ->capture_default_str();
  app.add_option("--phase", wanted.part, "all, stable, branches; processes may share the branches")
      ->check(CLI::IsMember({"all", "stable", "branches"}))
      ->capture_default_str();
  app.add_option("--on-bad-step", wanted.bad_step,
                 "Where loss or gradient is no number or a spike: stop, skip")
      ->check(CLI::IsMember({"stop", "skip"}))
      ->capture_default_str();
  app.add_option("--spike-factor", run.spike_factor,
                 "A loss so many deviations above the last 100 is a spike; 0: none is")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();

  app.add_option("--device", wanted.device, "cpu, or cuda: one device for each rank")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--compute", wanted.compute, "Matrix products in float32 or bf16")
      ->check(CLI::IsMember({"float32", "bf16"}))
      ->capture_default_str();
  app.add_option("--threads", wanted.threads, "Of each rank; 0: all, shared by the ranks here")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  app.add_option("--expert-ranks", wanted.parallel.expert_ranks, "Ranks that share the experts")
      ->check(count)
      ->capture_default_str();
  app.add_flag("--shard-optimizer", wanted.parallel.sharded_optimizer,
               "Divide AdamW's moments among the ranks");
  app.add_flag("--mfu", wanted.mfu, "Measure the rate of a product first, the 100 % of MFU");
}

}  // namespace smelt_tool
