// SPDX-License-Identifier: Apache-2.0
//
// The training protocol against what the paper prints, its schedules, its data, and its scaling.
#include "smelt/train/branches.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <set>
#include <vector>

#include "smelt/train/data.hpp"
#include "support/folder.hpp"

using namespace smelt;

// The numbers of paper section 4, spelled out.
static_assert(paper_protocol.stable_steps == 196'075);
static_assert(paper_protocol.step_tokens() == 1'048'576);
static_assert(paper_protocol.stable_tokens() == 205'599'539'200);
static_assert(paper_protocol.branch_steps == 9'537);
static_assert(paper_protocol.branch(0) == training_branch{10'000, 9'537});
static_assert(paper_protocol.branch(3) == training_branch{100'000, 9'537});
static_assert(paper_protocol.batches() == 205'612);
static_assert(paper_protocol.scaled(1.0) == paper_protocol);
static_assert(paper_protocol.scaled(0.001, 8, 512) ==
              training_protocol{196, 8, 512, 10, {10, 20, 50, 100, 150, 196}});
static_assert(paper_protocol.scaled(2.0).branch_steps == 19'074);

TEST_CASE("the tokens of each branch are those the paper prints") {
  const double printed[] = {20.5, 31.0, 62.4, 114.9, 167.3, 215.6};  // 1e9, one decimal
  for (std::size_t i = 0; i < training_protocol::branches; ++i) {
    const double found = static_cast<double>(paper_protocol.tokens(i)) / 1e9;
    CHECK(std::round(found * 10.0) / 10.0 == doctest::Approx(printed[i]).epsilon(1e-12));
  }
}

TEST_CASE("scaling rounds as it says, at any factor") {
  for (const double factor : {1e-4, 0.00037, 0.01, 0.3, 1.7, 100.0}) {
    const training_protocol p = paper_protocol.scaled(factor);
    CHECK(std::abs(static_cast<double>(p.stable_steps) - 196'075 * factor) <= 0.5 + 1e-6);
    CHECK(static_cast<double>(p.branch_steps) >= 9'537 * factor);
    CHECK(static_cast<double>(p.branch_steps) < 9'537 * factor + 1.0);
    for (std::size_t i = 0; i < training_protocol::branches; ++i)
      CHECK(std::abs(static_cast<double>(p.branch_points[i]) -
                     static_cast<double>(paper_protocol.branch_points[i]) * factor) <= 0.5 + 1e-6);
    CHECK(p.branch_points.back() == p.stable_steps);
  }
  CHECK_THROWS_WITH_AS(paper_protocol.scaled(1e-5),
                       "training protocol: expected branch points apart, found two at step 1; use "
                       "a larger factor",
                       error);
  CHECK_THROWS_WITH_AS(paper_protocol.scaled(0.0),
                       "training protocol: expected a factor above 0 and at most 1000, found "
                       "0.000000; 1 is the protocol itself",
                       error);
  CHECK_THROWS_AS(paper_protocol.scaled(std::nan("")), error);
  CHECK_THROWS_AS(paper_protocol.scaled(0.5, 0, 4), error);
}

TEST_CASE("a branch goes on at the stable run's rate and decays along a cosine") {
  const training_protocol p = paper_protocol.scaled(0.001, 8, 512);
  const warmup_stable_decay stable = p.stable_schedule(2.0, 5);
  for (std::size_t i = 0; i < training_protocol::branches; ++i) {
    const training_branch b = p.branch(i);
    const warmup_stable_decay s = b.schedule(stable, 0.1);
    // Where both have steps before the branch point they agree to the bit.
    for (std::int64_t step = 0; step < b.first_step; ++step)
      CHECK(s.learning_rate(step) == stable.learning_rate(step));
    CHECK(s.steps == b.last_step());
    double before = stable.learning_rate(b.first_step - 1);
    CHECK(before == 2.0);
    for (std::int64_t local = 0; local < b.steps; ++local) {
      const double rate = b.learning_rate(local, stable, 0.1);
      const double pi = std::acos(-1.0);
      const double done = static_cast<double>(local + 1) / static_cast<double>(b.steps);
      CHECK(rate == doctest::Approx(0.2 + 0.9 * (1.0 + std::cos(pi * done))).epsilon(1e-12));
      CHECK(rate < before);
      before = rate;
    }
    CHECK(before == doctest::Approx(0.2));
  }
  // The stable run itself knows nothing of them.
  CHECK(stable.learning_rate(p.stable_steps - 1) == 2.0);
}

TEST_CASE("what is no stable schedule is refused in words") {
  const training_branch b{10, 5};
  CHECK_THROWS_WITH_AS(
      b.schedule({.peak = 1.0, .warmup_steps = 11, .decay_steps = 0, .steps = 100}),
      "branch at step 10: expected a stable schedule without decay that reaches it at its peak, "
      "found warmup 11, decay 0 and 100 steps; shorten the warmup or move the branch",
      error);
  CHECK_THROWS_AS(b.schedule({.peak = 1.0, .warmup_steps = 0, .decay_steps = 1, .steps = 100}),
                  error);
  CHECK_THROWS_AS(b.schedule({.peak = 1.0, .warmup_steps = 0, .decay_steps = 0, .steps = 9}),
                  error);
  CHECK_THROWS_AS(b.schedule({.peak = 1.0, .warmup_steps = 0, .decay_steps = 0, .steps = 100}, 1.1),
                  error);
}

TEST_CASE("a branch draws batches that its stable run has not drawn before it") {
  const training_protocol p = paper_protocol.scaled(0.001, 8, 512);
  for (std::size_t i = 0; i < training_protocol::branches; ++i) {
    const training_branch b = p.branch(i);
    std::set<std::int64_t> drawn;
    for (std::int64_t step = 0; step < b.first_step; ++step) drawn.insert(step);
    for (std::int64_t local = 0; local < b.steps; ++local) {
      CHECK(drawn.insert(b.batch(local)).second);
      CHECK(b.batch(local) < p.batches());
    }
    CHECK(static_cast<std::int64_t>(drawn.size()) * p.step_tokens() == p.tokens(i));
  }
  CHECK_NOTHROW(p.expect_fresh(206 * 8));
  CHECK_THROWS_WITH_AS(p.expect_fresh(206 * 8 - 1),
                       "training protocol: expected 1648 sequences of fresh text, found 1647; name "
                       "more text or scale the protocol down",
                       error);
}

TEST_CASE("pairs see the same tokens in a branch, whoever drew what before") {
  const smelt_test::folder folder;
  std::string text;
  for (int i = 0; i < 4000; ++i) text += "line " + std::to_string(i * 7919 % 4001) + "\n";
  text_corpus corpus;
  corpus.add({"lines", {folder.write("lines.txt", text)}});
  const text_split split = split_text(corpus);
  const training_protocol p = paper_protocol.scaled(0.001, 4, 16);
  training_batches stable(corpus, split, {p.sequences, p.context}, 5);
  training_batches one(corpus, split, {p.sequences, p.context}, 5);
  training_batches two(corpus, split, {p.sequences, p.context}, 5);
  p.expect_fresh(stable.sequences_per_epoch());
  token_batch a(p.step_tokens()), b(p.step_tokens()), s(p.step_tokens());
  const auto tokens = [](const token_batch& batch) {
    return std::vector<std::int32_t>(batch.view().inputs, batch.view().inputs + batch.tokens());
  };
  const training_branch branch = p.branch(2);
  for (std::int64_t step = 0; step < branch.last_step(); ++step) {
    stable.fill(step, s);
    if (step < branch.first_step) continue;
    // One comes straight from a checkpoint; two was at work elsewhere.
    const std::int64_t local = step - branch.first_step;
    one.fill(branch.batch(local), a);
    two.fill(branch.batch(branch.steps - 1 - local), b);
    two.fill(branch.batch(local), b);
    CHECK(tokens(a) == tokens(b));
    CHECK(tokens(a) == tokens(s));  // and the stable run draws them itself, undisturbed
  }
}
