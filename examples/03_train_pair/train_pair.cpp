// SPDX-License-Identifier: Apache-2.0
//
// train_pair: two architectures of the same cost, trained on the same tokens. Which one is better?
//
//   1  read the text and hold a part of it out
//   2  measure what matrix products reach here, the 100 % of MFU (and once more after training)
//   3  train both, in turns of a few steps, so that a busy machine slows both alike
//   4  predict what was held out, source by source; print tables, write metrics and a figure
//
// Everything that can be wrong with the input is found before anything is written. Each model's
// metrics grow in FOLDER/NAME.jsonl.part, a line per step, and get their name at the end: a run
// that is killed leaves the .part, a run that fails leaves nothing.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "contender.hpp"
#include "default_text.hpp"
#include "engine.hpp"
#include "options.hpp"
#include "pair.hpp"
#include "smelt/report.hpp"
#include "smelt/train/byte_counts.hpp"
#include "smelt/train/data.hpp"
#include "summary.hpp"

namespace pair {
namespace {

// --- 1. the text -------------------------------------------------------------------------------

// What the user names must be there; of the default sources one may be missing.
void read_text(const options& chosen, smelt::text_corpus& corpus) {
  for (const std::string& name : chosen.text) corpus.add({name, {name}});
  if (!chosen.text.empty()) return;
  std::string packages;
  for (const default_source& source : default_sources) {
    packages += fmt::format(" {}", source.package);
    const std::filesystem::path folder = folder_of(source);
    try {
      if (folder.empty()) throw smelt::error("not installed");
      corpus.add(
          {std::string(source.name), {folder}, {std::string(source.ending)}, default_source_bytes});
    } catch (const smelt::error& e) {
      fmt::print("without {}: {} (apt-get install {})\n", source.name, e.what(), source.package);
    }
  }
  if (corpus.sources().empty())
    throw smelt::error("no text: none of the default sources is installed; apt-get install" +
                       packages + ", or name files or folders");
}

// What was read, and what was not and why.
void print_text(const smelt::text_corpus& corpus, const smelt::text_split& split,
                const unigram& bytes) {
  smelt::table t({{"text", smelt::align::left},
                  {"documents"},
                  {"bytes"},
                  {"held out"},
                  {"passed over", smelt::align::left}});
  for (std::size_t s = 0; s < corpus.sources().size(); ++s) {
    const smelt::text_source& source = corpus.sources()[s];
    std::string over;
    const auto note = [&](std::int64_t count, const char* what) {
      if (count > 0) over += fmt::format("{}{} {}", over.empty() ? "" : ", ", count, what);
    };
    note(source.binary_files - source.compressed_files, "binary");
    note(source.compressed_files, "gzip (gunzip them)");
    note(source.repeated_files, "repeated");
    note(source.unreadable_files, "unreadable");
    t.row({source.name, smelt::grouped(source.documents()), smelt::grouped(source.bytes),
           smelt::grouped(split.held_out[s].tokens()), over});
  }
  fmt::print("{}training text: {} bytes, unigram entropy {:.3f} nats per byte\n\n", t.text(),
             smelt::grouped(split.training_tokens()), bytes.training.entropy());
}

// --- 2. the machine ----------------------------------------------------------------------------

// What trains: the device that was asked for, or the CPU with a note where "auto" finds no other.
std::unique_ptr<engine> engine_for(options& chosen) {
  if (chosen.cuda) chosen.device = "cuda";
  const std::string precision = chosen.precision;
  if (chosen.device != "cpu") {
    try {
      if (precision == "auto") chosen.precision = "bf16";
      auto found = cuda_engine(chosen.precision);
      chosen.device = "cuda";
      return found;
    } catch (const smelt::error& e) {
      if (chosen.device == "cuda") throw;
      fmt::print("on the CPU: {}\n", e.what());
      chosen.device = "cpu";
    }
  }
  chosen.precision = precision;
  if (precision == "auto") chosen.precision = host_prefers_bf16() ? "bf16" : "float32";
  return host_engine(chosen.precision, chosen.threads);
}

// --- 3. training -------------------------------------------------------------------------------

// The folder of a run. If the run fails, a folder that it made itself goes away again.
class run_folder {
 public:
  explicit run_folder(const std::string& name) : path_(name) {
    std::error_code code;
    made_ = std::filesystem::create_directories(path_, code);
    if (code || !std::filesystem::is_directory(path_, code))
      throw smelt::error(fmt::format("{}: cannot make the folder: {}; choose another with --out",
                                     name, code ? code.message() : "a file of that name is there"));
  }
  run_folder(const run_folder&) = delete;
  run_folder& operator=(const run_folder&) = delete;
  ~run_folder() {
    std::error_code ignored;
    if (made_) std::filesystem::remove(path_, ignored);  // only an empty folder can be removed
  }
  std::filesystem::path operator/(const char* file) const { return path_ / file; }

 private:
  std::filesystem::path path_;
  bool made_ = false;
};

smelt::training_options training(const options& chosen, std::int64_t steps) {
  smelt::training_options training;
  training.batch_tokens = chosen.batch * chosen.tokens;
  // Short runs: a quick warmup, and a decay over the second half, where most of the gain is.
  training.schedule = {chosen.learning_rate, std::min<std::int64_t>(50, steps / 5), steps / 2,
                       steps, 0.05};
  return training;
}

// Steps that fit into the time, from a few steps of two models that are thrown away.
std::int64_t steps_within(const options& chosen, const engine& machine,
                          smelt::training_batches& batches, smelt::token_batch& batch) {
  constexpr std::int64_t trial = 4;
  const auto baseline = machine.baseline(training(chosen, trial), chosen.seed);
  const auto looped = machine.looped(training(chosen, trial), chosen.seed);
  double seconds = 0;
  for (std::int64_t step = 0; step < trial; ++step) {
    const stopwatch clock;
    batches.fill(step, batch);
    baseline->step(batch.view());
    looped->step(batch.view());
    if (step > 0) seconds += clock.seconds() / (trial - 1);  // the first one warms caches up
  }
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(60 * chosen.minutes / seconds));
}

template <class Model>
std::int64_t flops_of(std::int64_t tokens, std::int64_t pairs) {
  return smelt::flops_per_step<Model>(tokens, pairs).total();
}

// The order matters: everything that can be refused is refused before the folder is made.
void train(options chosen, const engine& machine, const smelt::text_corpus& corpus,
           const smelt::text_split& split, const unigram& bytes) {
  const smelt::batch_shape shape{chosen.batch, chosen.tokens};
  smelt::training_batches batches(corpus, split, shape, chosen.seed);
  smelt::token_batch batch(shape.tokens());

  double hardware = machine.product_rate();
  fmt::print("{}: {} measured at 1024 x 1024 x 1024, the 100 % of MFU\n", machine.description(),
             smelt::scaled(hardware, "FLOP/s"));
  if (chosen.minutes > 0) chosen.steps = steps_within(chosen, machine, batches, batch);
  const std::int64_t steps = chosen.steps;
  fmt::print(
      "{} steps of {} sequences of {} tokens, {:.2f} epochs of the text; --seed {} --steps "
      "{} repeats this run\n\n",
      smelt::grouped(steps), chosen.batch, chosen.tokens,
      static_cast<double>(steps * shape.tokens()) / static_cast<double>(batches.tokens_per_epoch()),
      chosen.seed, steps);

  const run_folder folder(chosen.folder);
  const smelt::training_options how = training(chosen, steps);
  contender baseline("Baseline", machine.baseline(how, chosen.seed), flops_of<baseline_model>, how,
                     folder / "baseline.jsonl", hardware);
  contender looped("SMELT", machine.looped(how, chosen.seed), flops_of<smelt_model>, how,
                   folder / "smelt.jsonl", hardware);
  constexpr std::int64_t turn = 10;  // steps of one model before the other has its turn
  {
    smelt::progress progress(smelt::progress_screen::of(stdout), 2 * steps);
    const stopwatch clock;
    const auto take_turn = [&](auto& model, std::int64_t first, std::int64_t done) {
      const std::int64_t last = std::min(steps, first + turn);
      const std::string label = fmt::format("{:<8}", model.name());  // the line stands still
      for (std::int64_t step = first; step < last; ++step) {
        batches.fill(step, batch);  // the same tokens for both models
        model.step(batch.view());
        progress.show({done + step - first + 1, label, model.recent_loss(),
                       model.tokens_per_second(), model.mfu()},
                      clock.seconds());
      }
      return last - first;
    };
    std::int64_t done = 0;
    for (std::int64_t first = 0; first < steps; first += turn) {
      done += take_turn(baseline, first, done);
      done += take_turn(looped, first, done);
    }
  }

  // --- 4. the verdict --------------------------------------------------------------------------

  // Others may have been busy at the start, and less so later: an MFU must not profit from that.
  hardware = std::max(hardware, machine.product_rate());
  baseline.rate_against(hardware);
  looped.rate_against(hardware);
  for (const smelt::text_split::held_out_source& held : split.held_out) {
    const smelt::held_out_batches predicted(corpus, held, shape, chosen.held_out_tokens);
    baseline.predict(held.name, predicted, batch);
    looped.predict(held.name, predicted, batch);
  }
  fmt::print("\n{}\n{}\n{}", budget_table().text(),
             loss_table(bytes, baseline.held_out(), looped.held_out()).text(),
             speed_table(baseline.speed(), looped.speed()).text());

  fmt::print("MFU of {}, the better of a product's rate at start and end\n\n",
             smelt::scaled(hardware, "FLOP/s"));

  smelt::output_file summary(folder / "summary.json");
  summary.write(summary_of(chosen, hardware, bytes, baseline, looped).dump(2) + "\n");
  baseline.finish();
  looped.finish();
  summary.finish();
  fmt::print("{}\n{}\n{}\n", baseline.metrics().string(), looped.metrics().string(),
             summary.path().string());
  try {
    const std::filesystem::path png = folder / "loss.png";
    loss_figure(bytes.training.entropy(), baseline.curve(), looped.curve()).write(png);
    fmt::print("{}\n", png.string());
  } catch (const smelt::error& e) {
    fmt::print("{}\n", e.what());  // the figures are there without the picture
  }
}

void run(options chosen) {
  const std::unique_ptr<engine> machine = engine_for(chosen);
  smelt::text_corpus corpus;
  read_text(chosen, corpus);
  const smelt::text_split split = smelt::split_text(corpus);
  const unigram bytes(corpus, split);
  print_text(corpus, split, bytes);
  train(chosen, *machine, corpus, split, bytes);
}

}  // namespace
}  // namespace pair

int main(int count, char** arguments) {
  CLI::App app("Trains a Baseline and its SMELT twin, which cost the same, on the same text.",
               "train_pair");
  pair::options chosen;
  pair::declare(app, chosen);
  try {
    app.parse(count, arguments);
  } catch (const CLI::Success& wish) {
    return app.exit(wish);  // --help
  } catch (const CLI::ParseError& e) {
    fmt::print(stderr, "train_pair: {}; see train_pair --help\n", e.what());
    return 1;
  }
  try {
    pair::run(chosen);
  } catch (const std::exception& e) {
    fmt::print(stderr, "train_pair: {}\n", e.what());
    return 1;
  }
  return 0;
}
