// SPDX-License-Identifier: Apache-2.0
//
// What a test needs to run on every backend: a policy of a type, and memory of that policy filled
// from and read back into std::vector.
//
// A suite (tests/op/<noun>.hpp) is written once over Policy with TEST_CASE_TEMPLATE_DEFINE; the
// program of each backend names the policies with TEST_CASE_TEMPLATE_INVOKE.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "smelt/exec/buffer.hpp"
#include "smelt/exec/matrix.hpp"

namespace smelt::test {

/// The policy that a suite runs with. CUDA's is made once: a context costs more than a test.
template <class Policy>
const Policy& policy() {
  static const Policy run = [] {
    if constexpr (std::is_constructible_v<Policy, int>)
      return Policy(2);
    else
      return Policy();
  }();
  return run;
}

/// How far a backend may be from double, norm-wise, for its element type.
template <class Policy>
constexpr double tolerance(double of_float, double of_bf16 = 1e-2, double of_double = 1e-12) {
  if (std::is_same_v<typename Policy::compute, bf16>) return of_bf16;
  return std::is_same_v<typename Policy::compute, double> ? of_double : of_float;
}

/// Elements in the memory of a policy.
template <class T, class Policy>
class tensor {
 public:
  explicit tensor(const std::vector<T>& values)
      : count_(static_cast<std::int64_t>(values.size())),
        memory_(allocate(policy<Policy>(), count_ * static_cast<std::int64_t>(sizeof(T)))) {
    upload(policy<Policy>(), values.data(), count_, data());
  }
  T* data() const { return reinterpret_cast<T*>(memory_.data()); }
  std::int64_t count() const { return count_; }
  matrix_view<T> view(std::int64_t rows, std::int64_t columns) const {
    return {data(), rows, columns};
  }
  matrix_view<const T> constant(std::int64_t rows, std::int64_t columns) const {
    return {data(), rows, columns};
  }
  void set(const std::vector<T>& values) {
    upload(policy<Policy>(), values.data(), count_, data());
  }
  std::vector<T> values() const {
    std::vector<T> values(static_cast<std::size_t>(count_));
    download(policy<Policy>(), data(), count_, values.data());
    return values;
  }

 private:
  std::int64_t count_;
  buffer_of<Policy> memory_;
};

/// Values of any element type as double.
template <class T>
std::vector<double> as_double(const std::vector<T>& values) {
  std::vector<double> wide;
  wide.reserve(values.size());
  for (const T& value : values) wide.push_back(static_cast<double>(static_cast<real_of<T>>(value)));
  return wide;
}

}  // namespace smelt::test
