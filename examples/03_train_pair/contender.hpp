// SPDX-License-Identifier: Apache-2.0
//
// contender: one of the two models in training, and what is remembered of it.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine.hpp"
#include "smelt/report.hpp"
#include "smelt/train/byte_counts.hpp"
#include "smelt/train/data.hpp"

namespace pair {

/// Seconds since it was made.
class stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Loss on the held-out text of one source.
struct held_out_loss {
  std::string source;
  double sum = 0;  // nats
  std::int64_t tokens = 0;
  double mean() const { return tokens > 0 ? sum / static_cast<double>(tokens) : 0.0; }
};

struct training_speed {
  std::int64_t tokens = 0;
  double seconds = 0;   // spent in steps, not in reports or in the other model
  double flops = 0;     // of the model, by its type: head and router in, attention by document
  double hardware = 0;  // FLOP/s of a plain product

  double tokens_per_second() const {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  }
  double mfu() const { return seconds > 0 && hardware > 0 ? flops / seconds / hardware : 0; }
};

/// Training loss over tokens seen.
struct loss_curve {
  std::vector<double> tokens;
  std::vector<double> loss;
};

/// A trainer with its metrics file. A step costs a line of JSON beside the training itself; the
/// time of that line is not counted into the speed.
class contender {
 public:
  /// FLOPs of a training step on a number of tokens with a number of attended pairs.
  using flops_of_step = std::int64_t (*)(std::int64_t tokens, std::int64_t pairs);

  contender(std::string name, std::unique_ptr<learner> model, flops_of_step flops,
            const smelt::training_options& how, std::filesystem::path metrics, double hardware)
      : name_(std::move(name)),
        model_(std::move(model)),
        flops_(flops),
        metrics_(std::move(metrics)) {
    speed_.hardware = hardware;
    curve_.tokens.reserve(static_cast<std::size_t>(how.schedule.steps));
    curve_.loss.reserve(static_cast<std::size_t>(how.schedule.steps));
  }

  const std::string& name() const { return name_; }
  const loss_curve& curve() const { return curve_; }
  const training_speed& speed() const { return speed_; }
  const std::vector<held_out_loss>& held_out() const { return held_out_; }
  const std::filesystem::path& metrics() const { return metrics_.path(); }

  // What the progress line shows: means over about the last 20 steps.
  double recent_loss() const { return recent_loss_; }
  double tokens_per_second() const { return recent_.tokens_per_second(); }
  double mfu() const { return recent_.mfu(); }

  /// One training step. Throws smelt::error, naming model and step, where the loss is no number.
  void step(const smelt::batch_view& batch) {
    const stopwatch clock;
    smelt::step_report report;
    try {
      report = model_->step(batch);
    } catch (const smelt::error& e) {
      throw smelt::error(name_ + ", " + e.what());
    }
    training_speed now;
    now.hardware = speed_.hardware;
    now.seconds = clock.seconds();
    now.tokens = report.tokens;
    // Exact for this batch: attention costs the squares of its documents' lengths.
    now.flops = static_cast<double>(flops_(batch.tokens, batch.documents.pairs()));
    remember(now, report);
    metrics_.write(nlohmann::ordered_json{{"step", report.step},
                                          {"tokens", speed_.tokens},
                                          {"loss", report.loss},
                                          {"load_balance", report.load_balance},
                                          {"router_z", report.router_z},
                                          {"gradient_norm", report.gradient_norm},
                                          {"learning_rate", report.learning_rate},
                                          {"seconds", now.seconds},
                                          {"tokens_per_second", now.tokens_per_second()},
                                          {"mfu", now.mfu()}}
                       .dump() +
                   "\n");
  }

  /// Loss on held-out text; what is printed at the end.
  void predict(const std::string& source, const smelt::held_out_batches& batches,
               smelt::token_batch& batch) {
    held_out_loss loss{source};
    for (std::int64_t i = 0; i < batches.batches(); ++i) {
      batches.fill(i, batch);
      const smelt::evaluation found = model_->evaluate(batch.view());
      loss.sum += found.loss_sum;
      loss.tokens += found.tokens;
    }
    held_out_.push_back(loss);
  }

  /// FLOP/s that the speed of the whole run is a share of.
  void rate_against(double hardware) { speed_.hardware = hardware; }

  /// Gives the metrics their name.
  void finish() { metrics_.finish(); }

 private:
  void remember(const training_speed& now, const smelt::step_report& report) {
    speed_.tokens += now.tokens;
    speed_.seconds += now.seconds;
    speed_.flops += now.flops;
    constexpr double fading = 0.95;  // per step
    const bool first = curve_.loss.empty();
    recent_loss_ = first ? report.loss : fading * recent_loss_ + (1 - fading) * report.loss;
    recent_.hardware = now.hardware;
    recent_.seconds = fading * recent_.seconds + now.seconds;
    recent_.flops = fading * recent_.flops + now.flops;
    recent_.tokens =
        now.tokens + static_cast<std::int64_t>(fading * static_cast<double>(recent_.tokens));
    curve_.tokens.push_back(static_cast<double>(speed_.tokens));
    curve_.loss.push_back(report.loss);
  }

  std::string name_;
  std::unique_ptr<learner> model_;
  flops_of_step flops_;
  smelt::output_file metrics_;
  loss_curve curve_;
  training_speed speed_;   // of the whole run
  training_speed recent_;  // fading sums
  double recent_loss_ = 0;
  std::vector<held_out_loss> held_out_;
};

}  // namespace pair
