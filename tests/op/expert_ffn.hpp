// SPDX-License-Identifier: Apache-2.0
//
// The experts on any backend, against loops over tokens in double (whose gradients the host program
// holds against central differences), and every raggedness: no token, all tokens, one token, counts
// and sizes at, beside and beyond the blocks and tiles of both backends.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "expert_layer.hpp"

namespace smelt::test {

template <class Real>
void check_close(const outcome<Real>& found, const outcome<double>& expected, double bound) {
  CHECK(relative_error(found.out, expected.out) < bound);
  CHECK(relative_error(found.dx, expected.dx) < bound);
  CHECK(relative_error(found.dweights, expected.dweights) < bound);
  CHECK(relative_error(found.dgate_up, expected.dgate_up) < bound);
  CHECK(relative_error(found.ddown, expected.ddown) < bound);
}

struct expert_size {
  std::int64_t tokens;
  expert_ffn_shape shape;  // experts, top_k, hidden, width
  std::int64_t spread;     // experts in use
};
// Case 15: one token; experts without tokens; all on one expert, in one block of the host, in
// several and in more than a wave; counts of a block exactly and one beside it. Case 19: widths of
// 1, below, at and beside 16 and 256.
inline const std::vector<expert_size> expert_sizes = {
    {1, {1, 1, 1, 1}, 1},      {1, {8, 2, 5, 3}, 8},      {37, {9, 3, 17, 16}, 3},
    {50, {4, 4, 16, 15}, 4},   {255, {3, 1, 12, 17}, 1},  {256, {3, 1, 12, 17}, 1},
    {257, {3, 1, 12, 17}, 1},  {600, {5, 2, 11, 9}, 2},   {700, {6, 3, 9, 20}, 3},
    {4500, {4, 2, 5, 4}, 3},   {300, {2, 1, 33, 256}, 2}, {30, {5, 2, 130, 257}, 5},
    {40, {300, 8, 6, 7}, 300}, {90, {515, 8, 4, 3}, 515}, {500, {257, 4, 3, 5}, 257},
};
// The tiles of CUDA, 128 (float: 64) rows and 128 columns (64 of h), 32 (16) of the sum and four of
// those under way: counts at and beside a tile; every size a whole number of tiles; several tiles
// in each direction, in chunks of 16 bytes (sizes of 8 n), with a last chunk cut short for bf16
// alone (44, 12), and element by element; more than a band of 16 row tiles with two columns.
inline const std::vector<expert_size> expert_tile_sizes = {
    {63, {2, 1, 12, 8}, 1},     {64, {2, 1, 8, 12}, 1},     {65, {2, 1, 24, 44}, 1},
    {127, {1, 1, 44, 64}, 1},   {128, {1, 1, 32, 64}, 1},   {129, {1, 1, 44, 65}, 1},
    {128, {2, 2, 256, 128}, 2}, {150, {3, 2, 168, 136}, 3}, {70, {2, 2, 131, 129}, 2},
    {2100, {1, 1, 136, 8}, 1},  {90, {6, 3, 88, 72}, 4},
};

template <class Policy>
void check_sizes(const std::vector<expert_size>& sizes) {
  for (const expert_size& size : sizes) {
    CAPTURE(size.tokens);
    CAPTURE(size.shape.experts);
    CAPTURE(size.shape.hidden);
    CAPTURE(size.shape.width);
    const problem p(size.tokens, size.shape, size.spread, 21);
    layer<Policy> l(p);
    flop_counter counter;
    Policy run = policy<Policy>();
    run.count_into(&counter);
    // 6 H f FLOPs per slot forward, 12 backward.
    const std::int64_t forward =
        2 * 3 * size.shape.hidden * size.shape.width * size.shape.top_k * size.tokens;
    l.forward(run);
    CHECK(counter.model_flops() == forward);
    l.backward(run);
    CHECK(counter.model_flops() == 3 * forward);
    CHECK(counter.recomputed == 0);
    check_close(l.result(), expert_reference(p), tolerance<Policy>(1e-5));
  }
}

TEST_CASE_TEMPLATE_DEFINE(
    "experts: cases 14, 15, 19: the definition's, however ragged, and executed FLOPs", Policy,
    experts_values) {
  check_sizes<Policy>(expert_sizes);
}

TEST_CASE_TEMPLATE_DEFINE("experts: sizes at and beside tiles", Policy, experts_tiles) {
  check_sizes<Policy>(expert_tile_sizes);
}

TEST_CASE_TEMPLATE_DEFINE("experts: case 19: a width above 4096", Policy, experts_wide) {
  check_sizes<Policy>({{20, {2, 1, 24, 4100}, 2}});
}

TEST_CASE_TEMPLATE_DEFINE("experts: case 17: a second backward overwrites and adds", Policy,
                          experts_again) {
  for (const expert_size& size : {expert_size{7, {5, 2, 4, 3}, 4}, expert_size{6, {3, 1, 5, 6}, 1},
                                  expert_size{300, {2, 1, 2, 3}, 1}}) {
    const problem p(size.tokens, size.shape, size.spread, 2);
    layer<Policy> l(p);
    l.forward();
    l.backward();
    const auto first = l.result();
    l.backward();
    auto second = l.result();
    CHECK(second.dx == first.dx);
    CHECK(second.dweights == first.dweights);
    for (auto& value : second.dgate_up) value /= 2;
    for (auto& value : second.ddown) value /= 2;
    check_close(second,
                {as_double(first.out), as_double(first.dx), as_double(first.dweights),
                 as_double(first.dgate_up), as_double(first.ddown)},
                tolerance<Policy>(1e-6, 1e-6, 1e-14));
  }
}

TEST_CASE_TEMPLATE_DEFINE("experts: case 20: gate and up are told apart, by hand", Policy,
                          experts_by_hand) {
  // One token, hidden = width = 1: y = w d silu(g x) u x, with g = 2, u = 3, x = 0.5, d = 4, w =
  // 0.5.
  problem p(1, {1, 1, 1, 1}, 1, 1);
  p.x = {0.5};
  p.weights = {0.5};
  p.gate_up = {2.0, 3.0};
  p.down = {4.0};
  p.dout = {1.0};
  const auto found = compute_experts<Policy>(p);
  const double s = 0.7310585786300049;      // sigmoid(1)
  const double slope = 0.9276705118714868;  // derivative of silu at 1
  const double bound = tolerance<Policy>(1e-5, 1e-2, 1e-7);
  const auto close = [&](auto value, double expected) {
    CHECK(static_cast<double>(value) == doctest::Approx(expected).epsilon(bound));
  };
  close(found.out[0], 3.0 * s);
  close(found.dgate_up[0], 2.0 * slope * 1.5 * 0.5);
  close(found.dgate_up[1], 2.0 * s * 0.5);
  close(found.ddown[0], 0.5 * s * 1.5);
  close(found.dweights[0], 4.0 * s * 1.5);
  close(found.dx[0], 2.0 * (slope * 2.0 * 1.5 + s * 3.0));
  // An overflow stays one: what pads a tile to its size, where Inf * 0 is NaN, is not added.
  p.dout = {std::numeric_limits<double>::infinity()};
  CHECK(compute_experts<Policy>(p).dweights[0] == std::numeric_limits<double>::infinity());
}

TEST_CASE_TEMPLATE_DEFINE(
    "experts: case 16: a token of NaN spoils itself and its expert alone, and "
    "nothing is written past the slots",
    Policy, experts_not_numbers) {
  using compute = typename Policy::compute;
  constexpr std::size_t hidden = 13, width = 10, tokens = 400, behind = 64;
  for (const std::int64_t spread : {5, 1}) {
    problem p(tokens, {5, 1, hidden, width}, spread, 3);
    const auto clean = compute_experts<Policy>(p);
    constexpr std::size_t bad = 123;
    for (std::size_t j = 0; j < hidden; ++j)
      p.x[bad * hidden + j] = std::numeric_limits<double>::quiet_NaN();
    layer<Policy> l(p, behind);
    // Room behind the last slot, with a mark in it.
    const auto mark = [](tensor<compute, Policy>& memory) {
      auto values = memory.values();
      std::fill(values.end() - behind, values.end(), static_cast<compute>(77.0F));
      memory.set(values);
    };
    mark(l.y_slots);
    mark(l.dx_slots);
    mark(l.saved);
    l.forward();
    l.backward();
    const auto found = l.result();
    bool right = true;
    for (std::size_t i = 0; i < found.out.size(); ++i) {
      right = right && std::isnan(found.out[i]) == (i / hidden == bad);
      if (i / hidden != bad)
        right = right && found.out[i] == clean.out[i] && found.dx[i] == clean.dx[i];
    }
    for (std::size_t n = 0; n < tokens; ++n)
      right = right && (n == bad || found.dweights[n] == clean.dweights[n]);
    const auto spoiled = static_cast<std::size_t>(p.chosen[bad]);
    for (std::size_t i = 0; i < found.ddown.size(); ++i)
      right = right && (i / (hidden * width) == spoiled || found.ddown[i] == clean.ddown[i]);
    for (std::size_t i = 0; i < found.dgate_up.size(); ++i)
      right =
          right && (i / (2 * hidden * width) == spoiled || found.dgate_up[i] == clean.dgate_up[i]);
    CHECK(right);
    const auto marks = [](const tensor<compute, Policy>& memory) {
      const auto values = as_double(memory.values());
      return std::count(values.end() - behind, values.end(), 77.0);
    };
    CHECK(marks(l.y_slots) == behind);
    CHECK(marks(l.dx_slots) == behind);
    CHECK(marks(l.saved) == behind);
  }
}

TEST_CASE_TEMPLATE_DEFINE(
    "experts: case 15: an expert without tokens keeps its gradient to the "
    "bit; no tokens are no work",
    Policy, experts_without_tokens) {
  using real = typename Policy::real;
  const problem p(30, {4, 2, 8, 8}, 2, 6);
  layer<Policy> l(p);
  l.dgate_up.set(std::vector<real>(4 * 2 * 8 * 8, real(3)));
  l.ddown.set(std::vector<real>(4 * 8 * 8, real(3)));
  l.forward();
  l.backward();
  const auto check = [](const std::vector<real>& gradient) {
    const auto middle = gradient.begin() + static_cast<std::ptrdiff_t>(gradient.size() / 2);
    CHECK(std::count(middle, gradient.end(), real(3)) == middle - gradient.begin());
    CHECK(std::count(gradient.begin(), middle, real(3)) == 0);
  };
  check(l.dgate_up.values());
  check(l.ddown.values());

  const problem nothing(0, {4, 2, 8, 8}, 4, 6);
  flop_counter counter;
  Policy run = policy<Policy>();
  run.count_into(&counter);
  const auto none = compute_experts<Policy>(nothing, run);
  CHECK(counter.model_flops() == 0);
  CHECK(none.out.empty());
  CHECK(std::count(none.ddown.begin(), none.ddown.end(), real(0)) == 4 * 8 * 8);
  CHECK(std::count(none.dgate_up.begin(), none.dgate_up.end(), real(0)) == 4 * 2 * 8 * 8);
}

// Rows `stride` apart, the first one `begin` elements in; what lies between is NaN.
template <class T>
std::vector<T> spread_rows(const std::vector<T>& rows, std::int64_t columns, std::int64_t stride,
                           std::int64_t begin) {
  const auto count = static_cast<std::int64_t>(rows.size()) / columns;
  auto wide = poisoned<T>(count * stride);
  for (std::int64_t i = 0; i < count; ++i)
    std::copy_n(rows.begin() + i * columns, columns, wide.begin() + i * stride + begin);
  return wide;
}

TEST_CASE_TEMPLATE_DEFINE("experts: rows further apart than wide", Policy, experts_strides) {
  using compute = typename Policy::compute;
  using real = typename Policy::real;
  // Rows that begin beside 16 bytes, and rows at multiples of them that are cut off inside.
  for (const std::int64_t begin : {0, 1}) {
    constexpr std::int64_t hidden = 20, stride = 32;
    const problem p(150, {3, 2, hidden, 16}, 3, 8);
    layer<Policy> l(p);
    l.forward();
    l.backward();
    const std::int64_t slots = l.slots();
    const tensor<compute, Policy> x(spread_rows(l.x.values(), hidden, stride, begin));
    const tensor<real, Policy> dout(spread_rows(l.dout.values(), hidden, stride, begin));
    const tensor<compute, Policy> y(poisoned<compute>(slots * stride)), dx(y.values());
    layer<Policy> wide(p);
    const auto& run = policy<Policy>();
    const matrix_view<const compute> x_view(x.data() + begin, p.tokens, hidden, stride);
    expert_ffn_forward(run, p.shape, x_view, l.plan(), l.weights.data(), l.gate_up.data(),
                       l.down.data(), wide.saved.data(),
                       matrix_view<compute>(y.data() + begin, slots, hidden, stride));
    expert_ffn_backward(run, p.shape, x_view, l.plan(), l.weights.data(), l.gate_up.data(),
                        l.down.data(), wide.saved.data(),
                        matrix_view<const real>(dout.data() + begin, p.tokens, hidden, stride),
                        wide.dgate_up.data(), wide.ddown.data(), wide.dweights.data(),
                        matrix_view<compute>(dx.data() + begin, slots, hidden, stride));
    // The same bits, and what lies between the rows is still NaN.
    const auto same = [&](const tensor<compute, Policy>& rows, const tensor<compute, Policy>& in) {
      const auto expected = as_double(spread_rows(rows.values(), hidden, stride, begin));
      const auto found = as_double(in.values());
      for (std::size_t i = 0; i < found.size(); ++i)
        if (!(found[i] == expected[i] || (std::isnan(found[i]) && std::isnan(expected[i]))))
          return false;
      return true;
    };
    CHECK(same(l.y_slots, y));
    CHECK(same(l.dx_slots, dx));
    CHECK(wide.dweights.values() == l.dweights.values());
    CHECK(wide.dgate_up.values() == l.dgate_up.values());
    CHECK(wide.ddown.values() == l.ddown.values());
  }
}

}  // namespace smelt::test
