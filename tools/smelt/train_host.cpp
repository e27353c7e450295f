// SPDX-License-Identifier: Apache-2.0
//
// The training itself: reads the text, describes the run, trains it, on one rank or several, with
// matrix products in float32 or bf16, on the CPU or through the trainers of train_cuda.cu.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "console.hpp"
#include "device_trainers.hpp"
#include "launch.hpp"
#include "model_numbers.hpp"
#include "shards.hpp"
#include "smelt/host.hpp"
#include "smelt/report/quantity.hpp"
#include "smelt/train/run.hpp"
#include "train.hpp"
#if defined(SMELT_MODELS)
#include SMELT_MODELS
#else
#include "models.hpp"
#endif

namespace smelt_tool {
namespace {

// FLOP/s of products of 1024 x 1024 x 1024: the best of a third of a second.
template <class Compute>
double product_rate(const smelt::host<Compute>& run) {
  using clock = std::chrono::steady_clock;
  constexpr std::int64_t size = 1024;
  const std::vector<Compute> a(size * size, Compute(0.5F)), b(size * size, Compute(0.25F));
  std::vector<float> c(size * size);
  const clock::time_point start = clock::now();
  double best = 0;
  for (clock::time_point now = start; now - start < std::chrono::milliseconds(333);) {
    smelt::product(run, smelt::matrix_view<const Compute>(a.data(), size, size),
                   smelt::matrix_view<const Compute>(b.data(), size, size),
                   smelt::matrix_view<float>(c.data(), size, size));
    const clock::time_point end = clock::now();
    best =
        std::max(best, 2.0 * size * size * size / std::chrono::duration<double>(end - now).count());
    now = end;
  }
  return best;
}

// What is about to happen, in three lines; `engine` is what multiplies.
void print_run(const request& wanted, const model_numbers& model, const smelt::run_tokens& tokens,
               std::int64_t size, const std::string& engine) {
  const smelt::run_setting& setting = wanted.setting;
  fmt::print("model  {}: {} parameters, {} active, {} layers executed, {} per token\n", model.name,
             smelt::grouped(model.parameters), smelt::grouped(model.active_parameters),
             model.executed_layers, smelt::scaled(model.flops_per_token, " FLOPs"));
  const std::int64_t drawn = setting.batches() * setting.shape.tokens();
  fmt::print(
      "text   {} tokens in {} shards, of which the run draws {} ({:.2f} epochs); held out {}\n",
      smelt::grouped(tokens.training.size()), tokens.training.shards().size(),
      smelt::grouped(drawn),
      static_cast<double>(drawn) / static_cast<double>(tokens.training.size()),
      smelt::grouped(tokens.held_out.size()));
  std::string points;
  for (const smelt::training_branch& branch : setting.branches)
    points += fmt::format("{}{}", points.empty() ? "" : ", ", branch.first_step);
  fmt::print("run    {} steps of {} x {} tokens{}; {} {} x {}\n\n",
             smelt::grouped(setting.stable_steps), setting.shape.sequences, setting.shape.context,
             points.empty()
                 ? ""
                 : fmt::format(", branches of {} at {}", setting.branches.front().steps, points),
             size, size == 1 ? "rank" : "ranks", engine);
}

void print_result(const request& wanted, const smelt::run_result& result,
                  const smelt::stop_signal& stop) {
  const std::size_t all = wanted.setting.branches.size();
  if (result.is_stopped)
    fmt::print("stopped by {}; the same command goes on from here\n",
               stop.number() == SIGINT    ? "SIGINT"
               : stop.number() == SIGTERM ? "SIGTERM"
               : stop.number() == SIGUSR1 ? "SIGUSR1"
                                          : "a signal of another rank");
  if (all > 0)
    fmt::print("{} of {} branches are finished{}\n", result.finished, all,
               result.finished > 0 ? ": " + wanted.folder + "/runs.jsonl" : "");
}

// What the trainers run on.
struct trainer_engine {
  std::string description;               // "2 threads, float32 products by oneDNN"
  std::function<double()> product_rate;  // FLOP/s of one rank
};

void train_subject(ranks& all, const trainer_engine& engine, const request& wanted,
                   const model_numbers& model, const smelt::run_subject& subject,
                   smelt::stop_signal& stop) {
  std::optional<smelt::token_set> training;
  std::optional<smelt::token_set> held_out;
  smelt::together(all, smelt::host<float>(1), [&] {
    const smelt::grid_shape grid = wanted.parallel.grid(all.size());
    for (const std::int64_t experts : model.experts) grid.check_experts(experts);
    const auto format =
        wanted.headerless ? std::optional(smelt::token_format::headerless_uint16) : std::nullopt;
    training.emplace(token_set_at(wanted.tokens, "train.", model.vocabulary, format));
    held_out.emplace(token_set_at(wanted.held_out, "held_out.", model.vocabulary, format));
  });
  const smelt::run_tokens tokens{*training, *held_out, model.end_of_text};
  // What can be refused is refused here, before a line is printed.
  smelt::training_run<ranks> training_run(wanted.folder, wanted.setting, tokens, subject, all,
                                          stop);
  std::optional<console> shown;
  if (all.rank() == 0) {
    print_run(wanted, model, tokens, all.size(), engine.description);
    double rate = 0;
    if (wanted.mfu || smelt::progress_screen::of(stdout).in_place)
      rate = engine.product_rate() * static_cast<double>(all.size());
    if (rate > 0)
      fmt::print("{} measured with large products, the 100 % of MFU\n",
                 smelt::scaled(rate, "FLOP/s"));
    std::fflush(stdout);
    shown.emplace(wanted.setting.shape.tokens(), rate);
  }
  const smelt::run_result result = training_run.go(shown ? &*shown : nullptr);
  if (all.rank() == 0) print_result(wanted, result, stop);
}

template <class Compute>
void train_on_host(ranks& all, request& wanted, smelt::stop_signal& stop) {
  smelt::host<Compute> run(wanted.threads);
  if (wanted.threads == 0) run = smelt::host<Compute>(std::max(1, run.threads() / local_ranks()));
  const std::int64_t context = wanted.setting.shape.context;
  smelt_models::all::with(wanted.setting.model, [&]<class Model>() {
    using trainer = smelt::trainer<Model, smelt::host<Compute>, ranks>;
    const model_numbers model = numbers_of<Model>(context);
    wanted.setting.architecture = model.architecture;
    const auto make =
        [&](const smelt::training_options& options) -> std::unique_ptr<smelt::run_model> {
      return std::make_unique<smelt::run_model_of<trainer>>(run, options, wanted.setting.seed, all,
                                                            wanted.parallel);
    };
    const trainer_engine engine{fmt::format("{} {}, {} products by {}", run.threads(),
                                            run.threads() == 1 ? "thread" : "threads",
                                            wanted.compute, smelt::matmul_library_name()),
                                [&run] { return product_rate(run); }};
    train_subject(all, engine, wanted, model, smelt::subject_of<Model, Compute>(context, make),
                  stop);
  });
}

template <class Compute>
void train_on_cuda(ranks& all, request& wanted, smelt::stop_signal& stop) {
  std::unique_ptr<device_trainers> trainers;
  smelt::together(all, smelt::host<float>(1), [&] { trainers = trainers_on_cuda(all, wanted); });
  const std::int64_t context = wanted.setting.shape.context;
  smelt_models::all::with(wanted.setting.model, [&]<class Model>() {
    const model_numbers model = numbers_of<Model>(context);
    wanted.setting.architecture = model.architecture;
    const auto make = [&](const smelt::training_options& options) {
      return trainers->make(options);
    };
    const trainer_engine engine{trainers->description(), [&] { return trainers->product_rate(); }};
    train_subject(all, engine, wanted, model, smelt::subject_of<Model, Compute>(context, make),
                  stop);
  });
}

template <class Compute>
void train_on(ranks& all, request& wanted, smelt::stop_signal& stop) {
  if (wanted.device == "cuda")
    train_on_cuda<Compute>(all, wanted, stop);
  else
    train_on_host<Compute>(all, wanted, stop);
}

}  // namespace

int train(int count, char** words, request& wanted, smelt::stop_signal& stop) {
  return launch(count, words, [&](ranks& all) {
    smelt::together(all, smelt::host<float>(1), [&] {
      smelt_models::all::expect(wanted.setting.model);
      settle(wanted);
    });
    if (wanted.compute == "bf16")
      train_on<smelt::bf16>(all, wanted, stop);
    else
      train_on<float>(all, wanted, stop);
    return 0;
  });
}

}  // namespace smelt_tool
