// SPDX-License-Identifier: Apache-2.0
//
// run_model: a trainer and its checkpoints behind an interface, and what a run must know of the
// model's type. So the loop of a run is compiled once, not once per model and element type.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "smelt/budget/flops.hpp"
#include "smelt/budget/parameters.hpp"
#include "smelt/io/dtype.hpp"
#include "smelt/model/plan.hpp"
#include "smelt/train/checkpoint.hpp"
#include "smelt/train/run_endpoint.hpp"
#include "smelt/train/step_report.hpp"

namespace smelt {

/// One trainer; each member is the trainer's or the checkpoint's of that name.
class run_model {
 public:
  virtual ~run_model() = default;

  virtual std::int64_t steps() const = 0;
  virtual step_report step(std::span<const batch_view> micro_batches) = 0;
  /// Counts the step that was rejected, so that the next one takes the next batch.
  virtual void pass_over() = 0;
  virtual evaluation evaluate(const batch_view& batch) = 0;
  virtual void limit(double most_loss, double most_gradient_norm) = 0;
  virtual std::span<const std::int64_t> expert_counts() const = 0;
  virtual std::int64_t expert_stride() const = 0;

  virtual void save(const std::filesystem::path& root, const training_record& record,
                    const retention& keep) = 0;
  virtual checkpoint_state load(const std::filesystem::path& checkpoint) = 0;
  virtual std::optional<checkpoint_state> resume(const std::filesystem::path& root,
                                                 const training_record& record) = 0;
};

/// A trainer<Model, Policy, Engine> as a run_model.
template <class Trainer>
class run_model_of final : public run_model {
 public:
  /// The arguments are the trainer's.
  template <class... Arguments>
  explicit run_model_of(Arguments&&... arguments)
      : trainer_(std::forward<Arguments>(arguments)...) {}

  std::int64_t steps() const override { return trainer_.steps(); }
  step_report step(std::span<const batch_view> micro_batches) override {
    return trainer_.step(micro_batches);
  }
  void pass_over() override { trainer_.resume_at(trainer_.steps() + 1); }
  evaluation evaluate(const batch_view& batch) override { return trainer_.evaluate(batch); }
  void limit(double most_loss, double most_gradient_norm) override {
    trainer_.limit(most_loss, most_gradient_norm);
  }
  std::span<const std::int64_t> expert_counts() const override { return trainer_.expert_counts(); }
  std::int64_t expert_stride() const override { return trainer_.expert_stride(); }
  void save(const std::filesystem::path& root, const training_record& record,
            const retention& keep) override {
    smelt::save(trainer_, root, record, keep);
  }
  checkpoint_state load(const std::filesystem::path& checkpoint) override {
    return smelt::load(trainer_, checkpoint);
  }
  std::optional<checkpoint_state> resume(const std::filesystem::path& root,
                                         const training_record& record) override {
    return smelt::resume(trainer_, root, record);
  }

 private:
  Trainer trainer_;
};

/// What a run asks of a model: numbers of its type, and trainers.
struct run_subject {
  std::string architecture{};        ///< in words, as checkpoints have it
  std::string compute{};             ///< type of the products, as checkpoints spell it
  model_plan plan{};                 ///< of the whole model, whatever part of it a rank holds
  std::int64_t parameters = 0;       ///< of the body
  double law_flops_per_token = 0.0;  ///< F, for the context of the run
  double law_sparsity = 0.0;         ///< S
  /// Training FLOPs of tokens that attend so many pairs, the head included.
  std::int64_t (*flops)(std::int64_t tokens, std::int64_t pairs) = nullptr;
  /// A trainer with these options, of the run's seed; there is one at a time.
  std::function<std::unique_ptr<run_model>(const training_options&)> make{};
};

/// @param make  make(training_options) -> std::unique_ptr<run_model>.
template <has_head Model, class Compute, class Make>
run_subject subject_of(std::int64_t context, Make&& make) {
  run_subject subject;
  subject.architecture = architecture_text(architecture_fields<Model>());
  subject.compute = std::string(dtype_name(dtype_of<Compute>));
  subject.plan = plan_of<Model>();
  subject.parameters = parameters<body_of<Model>>;
  subject.law_flops_per_token = law_flops_per_token<Model>(context);
  subject.law_sparsity = law_sparsity<Model>(context);
  subject.flops = [](std::int64_t tokens, std::int64_t pairs) {
    return flops_per_step<Model>(tokens, pairs).total();
  };
  subject.make = std::forward<Make>(make);
  return subject;
}

}  // namespace smelt
