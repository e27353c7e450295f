// SPDX-License-Identifier: Apache-2.0
//
// smelt: trains the models that it was compiled with, by the paper's protocol.
//
//   smelt models
//   smelt train smelt-gpt2 --tokens shards/ --held-out shards/ --out run --factor 0.001
//   smelt train baseline --tokens shards/ --held-out shards/ --out run
//         --steps 2000 --branch-at 500,2000 --branch-steps 200
//   mpirun -np 4 smelt train ...        the same run on four ranks
//
// Stopped by SIGINT or SIGTERM it leaves a checkpoint and ends with 0; killed in any way, the same
// command goes on where the last checkpoint stands. An error is one line and the exit code 1.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <string>

#include "command_line.hpp"
#include "describe_models.hpp"
#include "launch.hpp"
#include "smelt/train/stop_signal.hpp"
#include "train.hpp"

int main(int count, char** words) {
  // Before anything that starts a thread.
  smelt::stop_signal stop;
  // All ranks read the same words; one of them answers.
  const bool answers = smelt_tool::launched_rank() <= 0;
  CLI::App app("Trains Mixture-of-Experts models and their looped twins by one protocol.", "smelt");
  app.require_subcommand(1);
  app.footer(
      "SIGINT, SIGTERM and SIGUSR1 leave a checkpoint and end with 0; the same command goes on.\n"
      "mpirun passes SIGUSR1 on to its ranks; its own SIGTERM leaves them one second.");
  std::int64_t context = 256;
  CLI::App* models = app.add_subcommand("models", "The models of this program and what they cost");
  models->add_option("--context", context, "Tokens of a document, for the FLOPs of attention")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))
      ->capture_default_str();
  CLI::App* training =
      app.add_subcommand("train", "A stable phase and its branches; goes on if stopped");
  smelt_tool::request wanted;
  smelt_tool::describe(*training, wanted);
  try {
    app.parse(count, words);
  } catch (const CLI::CallForHelp& help) {
    return answers ? app.exit(help) : 0;
  } catch (const CLI::Error& error) {
    // One line, whatever the message has; said by one rank, and no rank leaves before it.
    std::string line = error.what();
    line = line.substr(0, line.find('\n')) + "; try smelt --help";
    return smelt_tool::launch(count, words,
                              [&](smelt_tool::ranks&) -> int { throw smelt::agreed_error(line); });
  }
  if (models->parsed()) {
    if (answers) smelt_tool::describe_models(context);
    return 0;
  }
  return smelt_tool::train(count, words, wanted, stop);
}
