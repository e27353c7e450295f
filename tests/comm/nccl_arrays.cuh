// SPDX-License-Identifier: Apache-2.0
//
// Data of ranks, what their sum must be, and arrays in the memory of a policy, for the suite of the
// NCCL engine.
//
// Whole numbers below 2^24 in sum: a loop over the ranks gives the bits whatever order NCCL adds
// in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "smelt/exec/buffer.hpp"
#include "smelt/exec/cuda/buffer.cuh"

namespace smelt::test::nccl_suite {

template <class T>
std::int64_t bytes_of(std::int64_t count) {
  return count * static_cast<std::int64_t>(sizeof(T));
}

// Data of a rank; what differs from step to step is `seed`.
template <class T>
std::vector<T> data_of(std::int64_t rank, std::int64_t count, std::int64_t seed = 0) {
  std::vector<T> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    values[static_cast<std::size_t>(i)] =
        static_cast<T>((i * 7919 + rank * 104'729 + seed * 31) % 200'003 - 100'000);
  return values;
}
template <class T>
std::vector<T> sum_of_ranks(std::int64_t ranks, std::int64_t count, std::int64_t seed = 0) {
  std::vector<T> sum = data_of<T>(0, count, seed);
  for (std::int64_t rank = 1; rank < ranks; ++rank) {
    const std::vector<T> data = data_of<T>(rank, count, seed);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += data[i];
  }
  return sum;
}
// Bytes that differ from rank to rank, for types without arithmetic as well.
template <class T>
std::vector<T> pattern(std::int64_t rank, std::int64_t count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  auto* bytes = reinterpret_cast<unsigned char*>(values.data());
  for (std::int64_t i = 0; i < bytes_of<T>(count); ++i)
    bytes[i] = static_cast<unsigned char>(i * 31 + rank * 101 + i / 251);
  return values;
}
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// An array in a policy's memory.
template <class Policy, class T>
struct array {
  array(const Policy& run_, const std::vector<T>& values)
      : run(run_),
        count(static_cast<std::int64_t>(values.size())),
        memory(allocate(run, bytes_of<T>(count), "a test")) {
    upload(run, values.data(), count, data());
  }
  T* data() const { return reinterpret_cast<T*>(memory.data()); }
  std::vector<T> values() const {
    std::vector<T> found(static_cast<std::size_t>(count));
    download(run, static_cast<const T*>(data()), count, found.data());
    return found;
  }
  const Policy& run;
  std::int64_t count;
  buffer_of<Policy> memory;
};

}  // namespace smelt::test::nccl_suite
