// SPDX-License-Identifier: Apache-2.0
//
// policy_engine: the engine of one policy. Included by one file per backend.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine.hpp"
#include "pair.hpp"
#include "smelt/exec/buffer.hpp"
#include "smelt/train/step.hpp"

namespace pair {

template <class Model, class Policy>
class policy_learner : public learner {
 public:
  policy_learner(const Policy& run, const smelt::training_options& how, std::uint64_t seed)
      : trainer_(run, how, seed) {}
  smelt::step_report step(const smelt::batch_view& batch) override { return trainer_.step(batch); }
  smelt::evaluation evaluate(const smelt::batch_view& batch) override {
    return trainer_.evaluate(batch);
  }

 private:
  smelt::trainer<Model, Policy> trainer_;
};

template <class Policy>
class policy_engine : public engine {
 public:
  policy_engine(Policy run, std::string description)
      : run_(std::move(run)), description_(std::move(description)) {}

  std::unique_ptr<learner> baseline(const smelt::training_options& how,
                                    std::uint64_t seed) const override {
    return std::make_unique<policy_learner<baseline_model, Policy>>(run_, how, seed);
  }
  std::unique_ptr<learner> looped(const smelt::training_options& how,
                                  std::uint64_t seed) const override {
    return std::make_unique<policy_learner<smelt_model, Policy>>(run_, how, seed);
  }
  std::string description() const override { return description_; }

  // The best of half a second of products of 1024 x 1024 x 1024.
  double product_rate() const override {
    using compute = typename Policy::compute;
    using clock = std::chrono::steady_clock;
    constexpr std::int64_t size = 1024;
    const auto memory_of = [&](auto element) {
      using T = decltype(element);
      auto memory = smelt::allocate(run_, size * size * static_cast<std::int64_t>(sizeof(T)));
      std::vector<T> values(static_cast<std::size_t>(size * size));
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<T>(static_cast<float>(i % 17) * 0.1F - 0.8F);
      smelt::upload(run_, values.data(), size * size, reinterpret_cast<T*>(memory.data()));
      return memory;
    };
    const auto a = memory_of(compute{}), b = memory_of(compute{}), c = memory_of(float{});
    const auto view = [](const auto& memory, auto element) {
      using T = decltype(element);
      return smelt::matrix_view<T>(reinterpret_cast<T*>(memory.data()), size, size);
    };
    const auto since = [](clock::time_point start) {
      return std::chrono::duration<double>(clock::now() - start).count();
    };
    // FLOP/s of `count` products, started together.
    const auto rate_of = [&](int count) {
      float last = 0;
      const clock::time_point start = clock::now();
      for (int i = 0; i < count; ++i)
        smelt::product(run_, smelt::matrix_view<const compute>(view(a, compute{})),
                       smelt::matrix_view<const compute>(view(b, compute{})), view(c, float{}));
      smelt::download(run_, view(c, float{}).data, 1, &last);  // waits
      return count * 2.0 * size * size * size / since(start);
    };
    const clock::time_point all = clock::now();
    double best = rate_of(1);  // the first one also wakes the library up
    const clock::time_point second = clock::now();
    best = std::max(best, rate_of(1));
    // On a device a launch takes as long as a product: several have to follow each other.
    const int together = since(second) < 2e-3 ? 16 : 1;
    while (since(all) < 0.5) best = std::max(best, rate_of(together));
    return best;
  }

 private:
  Policy run_;
  std::string description_;
};

}  // namespace pair
