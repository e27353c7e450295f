// SPDX-License-Identifier: Apache-2.0
//
// What every op test needs: seeded inputs, poisoned outputs, norm-wise errors, and gradients by
// central differences in double:
//
//   dL/dx_i  =  (L(x + h e_i) - L(x - h e_i)) / 2h,     L = sum(w * op(x)) for a fixed random w
//
// Central differences know nothing of the backward formula, so they are its oracle.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace smelt::test {

/// Seeded values in [-scale, scale].
template <class T>
std::vector<T> random_values(std::int64_t count, std::uint32_t seed, double scale = 1.0) {
  std::mt19937 generator(seed);
  std::vector<T> values(static_cast<std::size_t>(count));
  for (T& value : values) {
    const double unit = static_cast<double>(generator()) / 4294967295.0;
    value = static_cast<T>(static_cast<float>(scale * (2.0 * unit - 1.0)));
  }
  return values;
}

/// Memory that an op must overwrite: a value left in it spoils every comparison.
template <class T>
std::vector<T> poisoned(std::int64_t count) {
  return std::vector<T>(static_cast<std::size_t>(count),
                        static_cast<T>(std::numeric_limits<float>::quiet_NaN()));
}

/// |a - b| / |b| in the 2-norm, with b the reference; NaN compares as NaN, which fails every bound.
template <class A, class B>
double relative_error(const std::vector<A>& a, const std::vector<B>& b) {
  double difference = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double left = static_cast<double>(a.at(i));
    const double right = static_cast<double>(b[i]);
    difference += (left - right) * (left - right);
    norm += right * right;
  }
  return std::sqrt(difference) / std::max(std::sqrt(norm), 1e-30);
}

/// Gradient of loss() with respect to every element of x by central differences. loss() reads x.
template <class Loss>
std::vector<double> central_differences(std::vector<double>& x, Loss&& loss, double h = 1e-5) {
  std::vector<double> gradient(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double kept = x[i];
    x[i] = kept + h;
    const double above = loss();
    x[i] = kept - h;
    const double below = loss();
    x[i] = kept;
    gradient[i] = (above - below) / (2.0 * h);
  }
  return gradient;
}

template <class A, class B>
double dot(const std::vector<A>& a, const std::vector<B>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i)
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

}  // namespace smelt::test
