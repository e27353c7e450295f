// SPDX-License-Identifier: Apache-2.0
//
// Products against the definition in double: every pair of transposes, odd shapes, strided views,
// both modes, every element type; and nothing that a number of threads could change.
#include "smelt/exec/matmul.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <vector>

#include "../op/gradient.hpp"

using namespace smelt;
using namespace smelt::test;

namespace {
struct product_case {
  std::int64_t m, n, k;
  bool transpose_a, transpose_b;
  into mode;
};

// A view of `rows` x `columns` in memory that is wider by 3 than it must be: strides are honoured
// or the result is wrong.
template <class T>
matrix_view<T> view_in(std::vector<T>& memory, std::int64_t rows, std::int64_t columns,
                       bool flipped) {
  if (!flipped) return {memory.data(), rows, columns, columns + 3};
  return transposed(matrix_view<T>(memory.data(), columns, rows, rows + 3));
}

template <class Compute>
double product_error(const product_case& shape, int threads) {
  using real = real_of<Compute>;
  auto a = random_values<Compute>((shape.m + 3) * (shape.k + 3), 1);
  auto b = random_values<Compute>((shape.k + 3) * (shape.n + 3), 2);
  auto c = random_values<real>(shape.m * shape.n, 3);
  std::vector<double> expected(c.begin(), c.end());
  const auto left = view_in(a, shape.m, shape.k, shape.transpose_a);
  const auto right = view_in(b, shape.k, shape.n, shape.transpose_b);
  for (std::int64_t i = 0; i < shape.m; ++i)
    for (std::int64_t j = 0; j < shape.n; ++j) {
      double sum = shape.mode == into::accumulate
                       ? expected[static_cast<std::size_t>(i * shape.n + j)]
                       : 0.0;
      for (std::int64_t l = 0; l < shape.k; ++l)
        sum += static_cast<double>(static_cast<real>(left(i, l))) *
               static_cast<double>(static_cast<real>(right(l, j)));
      expected[static_cast<std::size_t>(i * shape.n + j)] = sum;
    }
  if (shape.mode == into::overwrite) c = poisoned<real>(shape.m * shape.n);
  product(host<Compute>(threads), left, right, matrix_view<real>(c.data(), shape.m, shape.n),
          shape.mode);
  return relative_error(c, expected);
}
}  // namespace

TEST_CASE("products equal their definition") {
  constexpr std::array<std::array<std::int64_t, 3>, 6> shapes{
      {{1, 1, 1}, {7, 5, 3}, {33, 65, 17}, {64, 64, 64}, {130, 12, 300}, {300, 257, 40}}};
  for (const auto& shape : shapes)
    for (const bool ta : {false, true})
      for (const bool tb : {false, true})
        for (const into mode : {into::overwrite, into::accumulate}) {
          const std::int64_t m = shape[0], n = shape[1], k = shape[2];
          CAPTURE(m);
          CAPTURE(n);
          CAPTURE(k);
          CAPTURE(ta);
          CAPTURE(tb);
          CHECK(product_error<double>({m, n, k, ta, tb, mode}, 1) < 1e-14);
          CHECK(product_error<float>({m, n, k, ta, tb, mode}, 2) < 1e-6);
          CHECK(product_error<bf16>({m, n, k, ta, tb, mode}, 2) < 1e-6);  // sums are float32
        }
}

TEST_CASE("a product over nothing is zero, and adds nothing") {
  std::vector<float> c(6, 5.0F);
  const matrix_view<const float> a(nullptr, 2, 0), b(nullptr, 0, 3);
  product(host<>(1), a, b, matrix_view<float>(c.data(), 2, 3), into::accumulate);
  CHECK(c == std::vector<float>(6, 5.0F));
  product(host<>(1), a, b, matrix_view<float>(c.data(), 2, 3), into::overwrite);
  CHECK(c == std::vector<float>(6, 0.0F));
}

TEST_CASE("threads do not change a bit of a product") {
  for (const std::int64_t m : {5, 100, 1000}) {
    const auto a = random_values<float>(m * 70, 1);
    const auto b = random_values<float>(70 * 90, 2);
    std::vector<std::vector<float>> results;
    for (const int threads : {1, 2, 3}) {
      results.push_back(poisoned<float>(m * 90));
      product(host<>(threads), matrix_view<const float>(a.data(), m, 70),
              matrix_view<const float>(b.data(), 70, 90),
              matrix_view<float>(results.back().data(), m, 90));
    }
    CHECK(results[0] == results[1]);
    CHECK(results[0] == results[2]);
  }
}

TEST_CASE("a product counts two FLOPs per multiply-add") {
  flop_counter counter;
  host<> run(1);
  run.count_into(&counter);
  std::vector<float> a(6), b(12), c(8);
  product(run, matrix_view<float>(a.data(), 2, 3), matrix_view<float>(b.data(), 3, 4),
          matrix_view<float>(c.data(), 2, 4));
  CHECK(counter.model_flops() == 2 * 2 * 3 * 4);
  CHECK(counter.recomputed == 0);
}

TEST_CASE("bf16 rounds to nearest even and keeps NaN and infinity") {
  const auto round_trip = [](float value) { return static_cast<float>(bf16(value)); };
  CHECK(round_trip(1.0F) == 1.0F);
  CHECK(round_trip(1.00390625F) == 1.0F);       // halfway: to the even mantissa below
  CHECK(round_trip(1.01171875F) == 1.015625F);  // halfway: to the even mantissa above
  CHECK(round_trip(-3.389e38F) == -3.3895314e38F);
  CHECK(std::isinf(round_trip(3.4e38F)));
  CHECK(std::isinf(round_trip(std::numeric_limits<float>::infinity())));
  CHECK(std::isnan(round_trip(std::numeric_limits<float>::quiet_NaN())));
  CHECK(std::isnan(round_trip(std::bit_cast<float>(0x7f800001U))));  // a payload in the low bits
}

TEST_CASE("a negative number of threads is refused in words") {
  CHECK_THROWS_WITH_AS(host<>(-1), "host{threads}: expected 0 (all) or more threads, found -1",
                       error);
}
