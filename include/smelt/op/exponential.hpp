// SPDX-License-Identifier: Apache-2.0
//
// exponential(x): exp without a branch or a call, so that a loop over it becomes vector code.
//
//   x = n ln 2 + r,  |r| <= ln 2 / 2,   exp(x) = 2^n p(r),   p of degree 7 (Taylor, Horner)
//
// In float the relative error is below 2e-7; x is clamped to [-87, 88], so that the result neither
// overflows nor becomes subnormal (exp(-87) = 1.6e-38: nothing beside a sum of softmax). NaN stays
// NaN. In double it is std::exp, which the reference path needs exactly.
#pragma once

#include <cmath>
#include <cstdint>

#include "smelt/exec/host_device.hpp"

namespace smelt {

SMELT_HD inline double exponential(double x) {
  return std::exp(x);
}

SMELT_HD inline float exponential(float x) {
  constexpr float log2_e = 1.44269504088896341F;
  constexpr float ln2_high = 0.693359375F;  // few bits, so that n * ln2_high is exact
  constexpr float ln2_low = -2.12194440e-4F;
  constexpr float shifter = 12582912.0F;  // 1.5 * 2^23: adding it rounds to the nearest integer
  // The clamp selects by bit masks: from a conditional expression g++ makes branches, and then
  // computes everything below once for each. NaN fails both comparisons and stays what it is.
  const std::uint32_t below = 0U - static_cast<std::uint32_t>(x < -87.0F);
  const std::uint32_t above = 0U - static_cast<std::uint32_t>(x > 88.0F);
  const float bounded =
      __builtin_bit_cast(float, (__builtin_bit_cast(std::uint32_t, x) & ~(below | above)) |
                                    (__builtin_bit_cast(std::uint32_t, -87.0F) & below) |
                                    (__builtin_bit_cast(std::uint32_t, 88.0F) & above));
  const float shifted = bounded * log2_e + shifter;
  const float n = shifted - shifter;
  const float r = (bounded - n * ln2_high) - n * ln2_low;
  float p = 1.0F / 5040.0F;
  p = p * r + 1.0F / 720.0F;
  p = p * r + 1.0F / 120.0F;
  p = p * r + 1.0F / 24.0F;
  p = p * r + 1.0F / 6.0F;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  // The low bits of `shifted` hold n; moved to the exponent field they are the factor 2^n.
  const std::uint32_t scale = (__builtin_bit_cast(std::uint32_t, shifted) << 23) + 0x3f800000U;
  return p * __builtin_bit_cast(float, scale);
}

}  // namespace smelt
