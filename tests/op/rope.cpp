// SPDX-License-Identifier: Apache-2.0
//
// Rotary embedding against complex multiplication, and the properties it exists for: lengths are
// kept, a score depends on the distance of positions alone, inverse undoes forward.
#include "smelt/op/rope.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <complex>
#include <cstdint>
#include <vector>

#include "gradient.hpp"

using namespace smelt;
using namespace smelt::test;

namespace {
template <class Real>
struct rope_tables {
  std::vector<Real> cosines, sines;
  rope_tables(std::int64_t positions, std::int64_t head_dim, std::int64_t base)
      : cosines(poisoned<Real>(rope_table_size(positions, head_dim))), sines(cosines) {
    rope_table_values(cosines.data(), sines.data(), positions, head_dim, base);
  }
};

template <class Policy>
std::vector<typename Policy::real> rotated(std::vector<typename Policy::real> x, std::int64_t heads,
                                           std::int64_t head_dim,
                                           const std::vector<std::int32_t>& positions,
                                           rope_direction direction, int threads = 1) {
  const rope_tables<typename Policy::real> tables(4096, head_dim, 10000);
  const matrix_view<typename Policy::real> view(x.data(), std::ssize(positions), heads * head_dim);
  rope_rotate(Policy(threads), view, head_dim, positions.data(), tables.cosines.data(),
              tables.sines.data(), direction);
  return x;
}

// The definition as complex numbers: z_i = x_i + i x_{i + d/2}, times exp(i position theta_i).
std::vector<double> turned(const std::vector<double>& x, std::int64_t heads, std::int64_t head_dim,
                           const std::vector<std::int32_t>& positions) {
  std::vector<double> y(x.size());
  const std::size_t half = std::size_t(head_dim) / 2;
  for (std::size_t t = 0; t < positions.size(); ++t)
    for (std::size_t h = 0; h < std::size_t(heads); ++h)
      for (std::size_t i = 0; i < half; ++i) {
        const std::size_t at = (t * std::size_t(heads) + h) * 2 * half + i;
        const double theta = std::exp(-std::log(10000.0) * double(i) / double(half));
        const std::complex<double> z =
            std::complex<double>(x[at], x[at + half]) * std::polar(1.0, positions[t] * theta);
        y[at] = z.real();
        y[at + half] = z.imag();
      }
  return y;
}

const std::vector<std::int32_t> positions{0, 1, 2, 0, 1, 4095, 17, 0, 300, 301, 5};
}  // namespace

TEST_CASE("rope: values are those of complex rotation") {
  for (const std::int64_t head_dim : {2, 4, 44, 64, 72, 88, 112, 128})
    for (const std::int64_t heads : {1, 3, 12}) {
      CAPTURE(head_dim);
      CAPTURE(heads);
      const std::int64_t count = std::ssize(positions) * heads * head_dim;
      const std::vector<double> expected =
          turned(random_values<double>(count, 1), heads, head_dim, positions);
      CHECK(relative_error(rotated<host<double>>(random_values<double>(count, 1), heads, head_dim,
                                                 positions, rope_direction::forward),
                           expected) < 1e-12);
      CHECK(relative_error(rotated<host<>>(random_values<float>(count, 1), heads, head_dim,
                                           positions, rope_direction::forward),
                           expected) < 1e-6);
    }
}

TEST_CASE("rope: one pair by hand") {
  // head size 2, position 1: an angle of 1 radian whatever the base.
  const auto y = rotated<host<double>>({1.0, 0.0}, 1, 2, {1}, rope_direction::forward);
  CHECK(y[0] == doctest::Approx(0.5403023058681398).epsilon(1e-14));
  CHECK(y[1] == doctest::Approx(0.8414709848078965).epsilon(1e-14));
  // head size 4: pairs are (0, 2) and (1, 3); the second turns by 1 / sqrt(10000).
  const auto z = rotated<host<double>>({0.0, 1.0, 0.0, 0.0}, 1, 4, {1}, rope_direction::forward);
  CHECK(z[0] == 0.0);
  CHECK(z[1] == doctest::Approx(0.9999500004166653).epsilon(1e-14));
  CHECK(z[2] == 0.0);
  CHECK(z[3] == doctest::Approx(0.009999833334166664).epsilon(1e-14));
}

TEST_CASE("rope: inverse undoes forward, position 0 changes nothing") {
  const auto x = random_values<double>(std::ssize(positions) * 2 * 44, 2);
  const auto y = rotated<host<double>>(x, 2, 44, positions, rope_direction::forward);
  CHECK(relative_error(rotated<host<double>>(y, 2, 44, positions, rope_direction::inverse), x) <
        1e-14);
  for (std::size_t i = 0; i < 88; ++i) CHECK(y[i] == x[i]);
}

TEST_CASE("rope: a score depends on the distance alone") {
  const auto q = random_values<double>(64, 3);
  const auto k = random_values<double>(64, 4);
  const auto score = [&](std::int32_t at_q, std::int32_t at_k) {
    return dot(rotated<host<double>>(q, 1, 64, {at_q}, rope_direction::forward),
               rotated<host<double>>(k, 1, 64, {at_k}, rope_direction::forward));
  };
  CHECK(score(7, 3) == doctest::Approx(score(1004, 1000)).epsilon(1e-10));
  CHECK(score(7, 3) != doctest::Approx(score(7, 4)).epsilon(1e-6));
}

TEST_CASE("rope: the gradient is the inverse rotation") {
  const std::vector<std::int32_t> at{3, 0, 11};
  auto x = random_values<double>(3 * 2 * 8, 5);
  const auto dy = random_values<double>(3 * 2 * 8, 6);
  const auto loss = [&] {
    return dot(dy, rotated<host<double>>(x, 2, 8, at, rope_direction::forward));
  };
  const auto expected = central_differences(x, loss);
  const auto dx = rotated<host<double>>(dy, 2, 8, at, rope_direction::inverse);
  CHECK(relative_error(dx, expected) < 1e-9);
  const auto narrow =
      rotated<host<>>(random_values<float>(3 * 2 * 8, 6), 2, 8, at, rope_direction::inverse);
  CHECK(relative_error(narrow, dx) < 1e-6);
}

TEST_CASE("rope: base 0 is no rotation") {
  const rope_tables<float> tables(8, 6, 0);
  for (const float cosine : tables.cosines) CHECK(cosine == 1.0F);
  for (const float sine : tables.sines) CHECK(sine == 0.0F);
}

TEST_CASE("rope: a view of wider rows is rotated alone; threads change no bit") {
  std::vector<std::int32_t> many(1000);
  for (std::size_t t = 0; t < many.size(); ++t) many[t] = static_cast<std::int32_t>(t * 7 % 400);
  const auto x = random_values<float>(1000 * 3 * 16, 8);
  const auto one = rotated<host<>>(x, 3, 16, many, rope_direction::forward, 1);
  CHECK(one == rotated<host<>>(x, 3, 16, many, rope_direction::forward, 2));

  std::vector<float> wide(1000 * 60, 42.0F);
  for (std::size_t i = 0; i < x.size(); ++i) wide[i / 48 * 60 + 7 + i % 48] = x[i];
  const rope_tables<float> tables(400, 16, 10000);
  rope_rotate<float>(host<>(2), {wide.data() + 7, 1000, 48, 60}, 16, many.data(),
                     tables.cosines.data(), tables.sines.data(), rope_direction::forward);
  bool same = true;
  for (std::size_t i = 0; i < wide.size(); ++i) {
    const std::size_t column = i % 60;
    const bool inside = column >= 7 && column < 55;
    same = same && wide[i] == (inside ? one[i / 60 * 48 + column - 7] : 42.0F);
  }
  CHECK(same);
}

TEST_CASE("rope: odd head sizes and widths that do not fit are refused") {
  std::vector<float> x(30);
  const std::vector<std::int32_t> at{0};
  const auto call = [&](std::int64_t columns, std::int64_t head_dim) {
    rope_rotate<float>(host<>(1), {x.data(), 1, columns}, head_dim, at.data(), nullptr, nullptr,
                       rope_direction::forward);
  };
  CHECK_THROWS_WITH_AS(call(15, 5), doctest::Contains("even head size"), error);
  CHECK_THROWS_AS(call(10, 4), error);
}
