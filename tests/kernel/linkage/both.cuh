// SPDX-License-Identifier: Apache-2.0
//
// What every unit of the linkage test computes. In an anonymous namespace, so that each unit has
// its own; what they share are the library's inline functions and templates.
#pragma once

#include "both.hpp"
#include "op/gradient.hpp"
#include "smelt/exec/cuda/buffer.cuh"
#include "smelt/kernel/dispatch.cuh"
#include "smelt/kernel/residual.cuh"
#include "smelt/kernel/rms_norm.cuh"
#include "support/tensor.hpp"

namespace smelt::test {
namespace {

constexpr std::int64_t rows = 37, width = 44, experts = 5, top_k = 2;

inline std::vector<std::int32_t> some_choices() {
  std::vector<std::int32_t> chosen;
  for (std::int32_t n = 0; n < rows; ++n) {
    chosen.push_back(n * 7 % 5);
    chosen.push_back((n * 7 + 1 + n % 4) % 5);
  }
  return chosen;
}

template <class Policy>
void compute(std::vector<float>& norm, std::vector<std::int64_t>& slots) {
  const tensor<float, Policy> x(random_values<float>(rows * width, 5)),
      gain(random_values<float>(width, 6));
  const tensor<float, Policy> y(poisoned<float>(rows * width)), rstd(poisoned<float>(rows));
  rms_norm_forward(policy<Policy>(), x.constant(rows, width), gain.data(), 1e-5F,
                   y.view(rows, width), rstd.data());
  scaled(policy<Policy>(), y.constant(rows, width), 2.0F, x.view(rows, width));
  norm = x.values();
  const tensor<std::int32_t, Policy> chosen(some_choices());
  const std::vector<std::int64_t> unset(rows * top_k, -1);
  const tensor<std::int64_t, Policy> offsets(std::vector<std::int64_t>(experts + 1, -1)),
      slot_of(unset), token_of(unset);
  const tensor<std::int32_t, Policy> choice_of(std::vector<std::int32_t>(rows * top_k, -1));
  dispatch_forward(policy<Policy>(), chosen.data(),
                   dispatch_plan{rows, experts, top_k, offsets.data(), slot_of.data(),
                                 token_of.data(), choice_of.data()});
  slots = slot_of.values();
}

inline findings both() {
  findings found;
  compute<host<float>>(found.host_norm, found.host_slots);
  compute<cuda<float>>(found.cuda_norm, found.cuda_slots);
  return found;
}

}  // namespace
}  // namespace smelt::test
