// SPDX-License-Identifier: Apache-2.0
//
// The command line of train_pair.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "pair.hpp"

namespace pair {

/// What the user asked for.
struct options {
  std::vector<std::string> text;  // files and folders; none: what Debian packages bring
  std::int64_t steps = 1200;
  double minutes = 0;             // above 0: as many steps as fit
  std::int64_t batch = 4;         // sequences per step
  std::int64_t tokens = context;  // of a sequence
  std::string device = "cpu";
  bool cuda = false;  // the short form of --device cuda
  int threads = 0;    // 0: all; of the CPU
  std::string precision = "float32";
  std::uint64_t seed = 1;
  double learning_rate = 3e-3;
  std::int64_t held_out_tokens = 32'768;  // predicted per source at the end
  std::string folder = "train_pair.out";
};

/// Declares the options on `app`; their values land in `chosen`. A wrong one is reported by CLI11
/// in one line that names the option and what it may be.
inline void declare(CLI::App& app, options& chosen) {
  app.add_option("text", chosen.text,
                 "Files and folders to train on, a source each; without any, manuals and code of "
                 "installed Debian packages");
  CLI::Option* steps = app.add_option("--steps", chosen.steps, "Steps of each model")
                           ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000'000}))
                           ->capture_default_str();
  app.add_option("--minutes", chosen.minutes, "As many steps as fit, for both models together")
      ->check(CLI::Range(0.01, 1e5))
      ->excludes(steps);
  app.add_option("--batch", chosen.batch, "Sequences of a step")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 32))
      ->capture_default_str();
  app.add_option("--context", chosen.tokens, "Tokens (bytes) of a sequence")
      ->check(CLI::Range(std::int64_t{2}, std::int64_t{1} << 24))
      ->capture_default_str();
  CLI::Option* device =
      app.add_option("--device", chosen.device, "auto: CUDA where there is a device, else the CPU")
          ->check(CLI::IsMember({"cpu", "cuda", "auto"}))
          ->capture_default_str();
  app.add_flag("--cuda", chosen.cuda, "The same as --device cuda")->excludes(device);
  app.add_option("--threads", chosen.threads, "Threads on the CPU; 0: all")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  app.add_option("--precision", chosen.precision,
                 "Of matrix products; auto: bf16 where matrix hardware has it (AMX, CUDA), else "
                 "float32")
      ->check(CLI::IsMember({"float32", "bf16", "auto"}))
      ->capture_default_str();
  app.add_option("--seed", chosen.seed, "Of weights and of the order of the text")
      ->capture_default_str();
  app.add_option("--learning-rate", chosen.learning_rate, "Peak of the schedule")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--held-out-tokens", chosen.held_out_tokens,
                 "Held-out tokens predicted per source; 0: all")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--out", chosen.folder, "Folder for metrics, summary and figure")
      ->capture_default_str();
}

}  // namespace pair
