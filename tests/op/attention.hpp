// SPDX-License-Identifier: Apache-2.0
//
// Attention on any backend against its definition; gradients against the double ones of the host
// (and those against central differences, in attention.cpp). Then what tiles could break: head
// sizes, lengths around a tile, packing, strides, NaN next door, accumulation, counted FLOPs.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "attention_case.hpp"

namespace smelt::test {

// Lengths below, at and above the tiles of 32, 64 and 128, odd ones, empty documents (the last ones
// as a captured graph pads them), documents of one token.
inline const std::vector<std::vector<std::int64_t>> attention_batches = {
    {1},
    {7},
    {33},
    {63},
    {64},
    {65},
    {127},
    {128},
    {129},
    {200},
    {130, 5, 67},
    {1, 1, 1, 0, 2, 129, 7, 0, 64, 1},
    {31, 64, 32, 0, 0, 0},
    std::vector<std::int64_t>(70, 1)};

TEST_CASE_TEMPLATE_DEFINE("attention: values are those of the definition", Policy,
                          attention_values) {
  for (const auto& lengths : attention_batches)
    check_values<Policy>({2, 1, 44}, lengths, tolerance<Policy>(1e-5));
  check_values<Policy>({1, 1, 1}, {129, 3}, tolerance<Policy>(1e-5));
  check_values<Policy>({7, 1, 5}, {70, 3}, tolerance<Policy>(1e-5));
}

TEST_CASE_TEMPLATE_DEFINE("attention: scores far apart (a softmax of nearly one key) stay exact",
                          Policy, attention_far_scores) {
  check_values<Policy>({2, 1, 8}, {300, 65}, tolerance<Policy>(1e-4), 30.0);
}

TEST_CASE_TEMPLATE_DEFINE("attention: both passes follow the double path, batch by batch", Policy,
                          attention_gradients) {
  for (const auto& lengths : attention_batches) check_against_double<Policy>({2, 1, 44}, lengths);
  check_against_double<Policy>({2, 1, 96}, {65, 130});
  // More documents than a block has threads to look for one.
  std::vector<std::int64_t> many;
  for (std::int64_t s = 0; s < 300; ++s) many.push_back(s % 7 == 3 ? 0 : s % 3 + s % 2);
  many.push_back(40);
  check_against_double<Policy>({1, 1, 6}, many);
  check_against_double<Policy>({1, 1, 128}, {129, 64, 1});
}

TEST_CASE_TEMPLATE_DEFINE("attention: every head size from 32 to 128, and tiny ones", Policy,
                          attention_head_sizes) {
  for (std::int64_t head_dim = 32; head_dim <= 128; head_dim += 4)
    check_against_double<Policy>({1, 1, head_dim}, {66, 3});
  for (const std::int64_t head_dim : {2, 3, 5, 6, 8, 15, 17, 31, 33, 127})
    check_against_double<Policy>({2, 1, head_dim}, {20, 3});
  // A head of one element has no sum in which the rounding errors of bf16 would average out.
  if (!std::is_same_v<typename Policy::compute, bf16>)
    check_against_double<Policy>({2, 1, 1}, {20, 3});
}

TEST_CASE_TEMPLATE_DEFINE("attention: groups of 1, 2, 3, 4, 7 and 8 query heads", Policy,
                          attention_groups) {
  for (const std::int64_t kv_heads : {8, 4, 2, 1})
    check_against_double<Policy>({8, kv_heads, 36}, {66, 2});
  check_against_double<Policy>({12, 4, 88}, {65});
  check_against_double<Policy>({7, 1, 72}, {40, 1});
}

TEST_CASE_TEMPLATE_DEFINE("attention: a document of one token returns its value, no score gradient",
                          Policy, attention_one_token) {
  attention_case<Policy> c(6, 2, 16, {1, 1, 1});
  c.both();
  const auto out = as_double(c.out.values());
  const auto dq = as_double(c.dq.values());
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t token = i / 96, head = i % 96 / 16;
    CHECK(out[i] == doctest::Approx(c.v_values[token * 32 + head / 3 * 16 + i % 16])
                        .epsilon(tolerance<Policy>(1e-6)));
    CHECK(std::abs(dq[i]) < 1e-5);
  }
  for (const double dk : as_double(c.dk.values())) CHECK(std::abs(dk) < 1e-5);
}

TEST_CASE_TEMPLATE_DEFINE("attention: packed documents equal each document alone", Policy,
                          attention_packed_documents) {
  const std::vector<std::int64_t> lengths{1, 7, 129, 64, 1, 1, 50, 155, 3};
  attention_case<Policy> packed(4, 2, 12, lengths);
  packed.both();
  const auto out = packed.out.values();
  const auto dq = packed.dq.values(), dk = packed.dk.values(), dv = packed.dv.values();
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    CAPTURE(s);
    attention_case<Policy> alone(4, 2, 12, {lengths[s]});
    const auto part = [&](const auto& all, std::int64_t width) {
      return std::vector(all.begin() + packed.offset_values[s] * width,
                         all.begin() + packed.offset_values[s + 1] * width);
    };
    alone.q.set(part(packed.q_values, alone.q_width));
    alone.k.set(part(packed.k_values, alone.kv_width));
    alone.v.set(part(packed.v_values, alone.kv_width));
    alone.dout.set(part(packed.dout_values, alone.q_width));
    alone.both();
    // Bit for bit: the tiles of a document do not depend on where it lies.
    CHECK(bits_of(alone.out.values()) == bits_of(part(out, alone.q_width)));
    CHECK(bits_of(alone.dq.values()) == bits_of(part(dq, alone.q_width)));
    CHECK(bits_of(alone.dk.values()) == bits_of(part(dk, alone.kv_width)));
    CHECK(bits_of(alone.dv.values()) == bits_of(part(dv, alone.kv_width)));
  }
}

TEST_CASE_TEMPLATE_DEFINE("attention: NaN and infinity stay in their document", Policy,
                          attention_nan) {
  using real = typename Policy::real;
  const std::vector<std::int64_t> lengths{3, 40, 129, 1};
  attention_case<Policy> clean(4, 2, 16, lengths);
  clean.both();
  constexpr real nan = std::numeric_limits<real>::quiet_NaN();
  constexpr real infinity = std::numeric_limits<real>::infinity();
  for (const real bad : {nan, infinity, -infinity}) {
    attention_case<Policy> spoilt(4, 2, 16, lengths);
    const auto spoil = [&](std::vector<real> values, tensor<real, Policy>& to) {
      const std::ptrdiff_t width = std::ssize(values) / spoilt.tokens;
      std::fill(values.begin() + 3 * width, values.begin() + 43 * width, bad);
      to.set(values);
    };
    spoil(spoilt.q_values, spoilt.q);
    spoil(spoilt.k_values, spoilt.k);
    spoil(spoilt.v_values, spoilt.v);
    spoil(spoilt.dout_values, spoilt.dout);
    spoilt.both();
    const auto check = [](const auto& found_values, const auto& expected_values,
                          std::size_t width) {
      const auto found = bits_of(found_values), expected = bits_of(expected_values);
      const auto value = as_double(found_values);
      bool equal = true;
      bool poisoned_inside = false;
      for (std::size_t i = 0; i < found.size(); ++i) {
        const bool inside = i / width >= 3 && i / width < 43;
        if (inside)
          poisoned_inside = poisoned_inside || std::isnan(value[i]);
        else
          equal = equal && found[i] == expected[i];
      }
      CHECK(equal);
      CHECK(poisoned_inside);
    };
    check(spoilt.out.values(), clean.out.values(), 64);
    check(spoilt.dq.values(), clean.dq.values(), 64);
    check(spoilt.dk.values(), clean.dk.values(), 32);
    check(spoilt.dv.values(), clean.dv.values(), 32);
  }
}

TEST_CASE_TEMPLATE_DEFINE("attention: views into one qkv matrix give the bits of separate tensors",
                          Policy, attention_views) {
  using real = typename Policy::real;
  using compute = typename Policy::compute;
  attention_case<Policy> c(6, 2, 12, {130, 1, 33});
  c.both();
  const std::int64_t stride = c.q_width + 2 * c.kv_width + 5;  // 5 columns that nobody may write
  const std::int64_t out_stride = c.q_width + 3;
  const auto size = static_cast<std::size_t>(c.tokens * stride);
  std::vector<real> all(size, real(0));
  const auto place = [&](const std::vector<real>& from, std::int64_t width, std::int64_t column) {
    for (std::int64_t i = 0; i < c.tokens * width; ++i)
      all[std::size_t(i / width * stride + column + i % width)] = from[std::size_t(i)];
  };
  place(c.q_values, c.q_width, 0);
  place(c.k_values, c.kv_width, c.q_width);
  place(c.v_values, c.kv_width, c.q_width + c.kv_width);
  const tensor<real, Policy> qkv(all), gradient(std::vector<real>(size, real(42)));
  const tensor<compute, Policy> out(poisoned<compute>(c.tokens * out_stride));
  const tensor<real, Policy> logsumexp(poisoned<real>(6 * c.tokens));
  const auto view = [&](const tensor<real, Policy>& in, std::int64_t column, std::int64_t width) {
    return matrix_view<real>(in.data() + column, c.tokens, width, stride);
  };
  const auto in_view = [&](std::int64_t column, std::int64_t width) {
    return matrix_view<const real>(qkv.data() + column, c.tokens, width, stride);
  };
  const auto q = in_view(0, c.q_width);
  const auto k = in_view(c.q_width, c.kv_width);
  const auto v = in_view(c.q_width + c.kv_width, c.kv_width);
  const matrix_view<compute> wide(out.data(), c.tokens, c.q_width, out_stride);
  const Policy& run = policy<Policy>();
  attention_forward(run, c.shape, c.documents(), q, k, v, wide, logsumexp.data());
  attention_backward(run, c.shape, c.documents(), c.of_q(c.dout), q, k, v,
                     matrix_view<const compute>(wide), logsumexp.data(),
                     view(gradient, 0, c.q_width), view(gradient, c.q_width, c.kv_width),
                     view(gradient, c.q_width + c.kv_width, c.kv_width), into::overwrite);
  // What all of it must be: gradients side by side, 42 beside them; out with NaN beside it.
  all.assign(size, real(42));
  place(c.dq.values(), c.q_width, 0);
  place(c.dk.values(), c.kv_width, c.q_width);
  place(c.dv.values(), c.kv_width, c.q_width + c.kv_width);
  CHECK(bits_of(gradient.values()) == bits_of(all));
  auto expected = poisoned<compute>(c.tokens * out_stride);
  const auto separate = c.out.values();
  for (std::int64_t i = 0; i < c.tokens * c.q_width; ++i)
    expected[std::size_t(i / c.q_width * out_stride + i % c.q_width)] = separate[std::size_t(i)];
  CHECK(bits_of(out.values()) == bits_of(expected));
  CHECK(bits_of(logsumexp.values()) == bits_of(c.logsumexp.values()));
}

TEST_CASE_TEMPLATE_DEFINE("attention: gradients of shared keys and values add up over visits",
                          Policy, attention_modes) {
  using real = typename Policy::real;
  attention_case<Policy> c(4, 2, 6, {150, 1, 20});
  c.both();
  const auto dq = bits_of(c.dq.values());
  const auto dk = c.dk.values(), dv = c.dv.values();
  const auto of_first = random_values<real>(std::ssize(dk), 9);
  c.dk.set(of_first);
  c.dv.set(of_first);
  c.backward(into::accumulate);
  CHECK(bits_of(c.dq.values()) == dq);  // overwritten, not added to
  const auto sum_with = [&](const std::vector<real>& gradient) {
    std::vector<double> sum = as_double(gradient);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(of_first[i]);
    return sum;
  };
  CHECK(relative_error(c.dk.values(), sum_with(dk)) < tolerance<Policy>(1e-6, 1e-6, 1e-14));
  CHECK(relative_error(c.dv.values(), sum_with(dv)) < tolerance<Policy>(1e-6, 1e-6, 1e-14));
}

TEST_CASE_TEMPLATE_DEFINE("attention: a second pass equals the first, whatever is left in scratch",
                          Policy, attention_scratch) {
  using real = typename Policy::real;
  attention_case<Policy> c(4, 2, 16, {200, 3});
  c.both();
  const auto first = results_of(c);
  // A run full of NaN in between leaves NaN in every scratch.
  attention_case<Policy> spoilt(4, 2, 16, {200, 3});
  const std::vector<real> nan(spoilt.q_values.size(), std::numeric_limits<real>::quiet_NaN());
  spoilt.q.set(nan);
  spoilt.dout.set(nan);
  spoilt.both();
  c.both();
  CHECK(results_of(c) == first);
}

TEST_CASE_TEMPLATE_DEFINE("attention: empty segments at the end change nothing", Policy,
                          attention_empty_segments) {
  attention_case<Policy> plain(2, 1, 20, {65, 4});
  attention_case<Policy> padded(2, 1, 20, {65, 4, 0, 0, 0, 0, 0});
  plain.both();
  padded.both();
  CHECK(results_of(padded) == results_of(plain));
}

TEST_CASE_TEMPLATE_DEFINE("attention: counted FLOPs", Policy, attention_flops) {
  // 3 documents: 5 + 1 + 4 tokens = 15 + 1 + 10 = 26 pairs. 8 heads of 4 = query width 32. Fewer
  // key-value heads cut the cache and the projections, never these FLOPs. The host computes scores
  // twice (2 q more), a device scores twice more and their gradients once more (6 q).
  constexpr std::int64_t again = runs_on_host<Policy> ? 2 : 6;
  for (const std::int64_t kv_heads : {8, 2, 1}) {
    attention_case<Policy> c(8, kv_heads, 4, {5, 1, 4});
    flop_counter counter;
    Policy run = policy<Policy>();
    run.count_into(&counter);
    c.forward(run);
    CHECK(counter.attention == 4 * 32 * 26);
    CHECK(counter.recomputed == 0);
    c.backward(into::overwrite, run);
    CHECK(counter.attention == 12 * 32 * 26);
    CHECK(counter.recomputed == again * 32 * 26);
    CHECK(counter.products == 0);
  }
}

TEST_CASE_TEMPLATE_DEFINE("attention: an empty batch is no work", Policy, attention_empty) {
  using real = typename Policy::real;
  using compute = typename Policy::compute;
  attention_case<Policy> nothing(2, 1, 4, {0, 0});
  nothing.both();
  const segments none;
  const matrix_view<const real> q(nullptr, 0, 8), k(nullptr, 0, 4);
  attention_forward(policy<Policy>(), {2, 1, 4}, none, q, k, k, matrix_view<compute>(nullptr, 0, 8),
                    static_cast<real*>(nullptr));
  CHECK(none.tokens() == 0);
}

TEST_CASE_TEMPLATE_DEFINE("attention: views that do not fit are refused with what was expected",
                          Policy, attention_misfits) {
  using real = typename Policy::real;
  attention_case<Policy> c(2, 1, 4, {5});
  const auto call = [&](matrix_view<const real> k) {
    attention_forward(policy<Policy>(), c.shape, c.documents(), c.of_q(c.q), k, c.of_kv(c.v),
                      c.out.view(5, 8), c.logsumexp.data());
  };
  CHECK_THROWS_WITH_AS(call({c.k.data(), 4, 4}), doctest::Contains("k: expected a row-major view"),
                       error);
  CHECK_THROWS_AS(call({c.k.data(), 5, 5}), error);
  CHECK_THROWS_AS(call({c.k.data(), 5, 4, 1, 5}), error);
  CHECK_THROWS_WITH_AS(
      attention_backward(policy<Policy>(), c.shape, c.documents(), c.of_q(c.dout), c.of_q(c.q),
                         c.of_kv(c.k), c.of_kv(c.v), c.out.constant(5, 8), c.logsumexp.data(),
                         c.dq.view(5, 8), c.dk.view(5, 4), c.dv.view(4, 4), into::overwrite),
      doctest::Contains("dv: expected a row-major view"), error);
}

}  // namespace smelt::test
