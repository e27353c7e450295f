// SPDX-License-Identifier: Apache-2.0
//
// bf16: the upper half of a float32 (8 exponent bits, 7 mantissa bits), rounded to nearest even.
//
// An own type, so that a build without CUDA needs no half header. Storage only: arithmetic happens
// in float32. Real<Compute> names the type in which sums, norms and softmax of a Compute run.
// The bits are read by the compiler's builtin: std::bit_cast is not a device function.
#pragma once

#include <cstdint>

#include "smelt/exec/host_device.hpp"

namespace smelt {

struct bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  /// Rounds to nearest even; NaN stays NaN (its quiet bit is set, so that no payload becomes Inf).
  SMELT_HD explicit bf16(float value) {
    const std::uint32_t u = __builtin_bit_cast(std::uint32_t, value);
    const std::uint32_t rounded = (u + 0x7fffU + ((u >> 16) & 1U)) >> 16;
    const bool is_nan = (u & 0x7fffffffU) > 0x7f800000U;
    bits = static_cast<std::uint16_t>(is_nan ? (u >> 16) | 0x0040U : rounded);
  }
  SMELT_HD explicit operator float() const {
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
  }
};

namespace detail {
template <class Compute>
struct real_selector {
  using type = Compute;
};
template <>
struct real_selector<bf16> {
  using type = float;
};
}  // namespace detail

/// The arithmetic type behind a storage type: float for bf16, otherwise itself.
template <class Compute>
using real_of = typename detail::real_selector<Compute>::type;

}  // namespace smelt
