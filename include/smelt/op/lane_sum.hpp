// SPDX-License-Identifier: Apache-2.0
//
// lane_sum: a sum over a row in 16 interleaved partial sums, added up in a fixed order.
//
//   lane[l] = sum of term(i) over i with i mod 16 = l,   result = ((l0 + l8) + (l4 + l12)) + ...
//
// A compiler may not reorder a float sum, so a plain loop stays scalar; lanes written out become
// one vector register, and the result is the same at every optimisation level and vector width.
#pragma once

#include <cstdint>

#include "smelt/exec/host_device.hpp"

namespace smelt {

// On the host `term` may be a host function; nvcc would warn of it at every such use.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
template <class Real, class Term>
SMELT_HD inline Real lane_sum(std::int64_t count, Term&& term) {
  constexpr std::int64_t lanes = 16;
  Real lane[lanes] = {};
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    for (std::int64_t l = 0; l < lanes; ++l) lane[l] += term(i + l);
  for (std::int64_t l = 0; i + l < count; ++l) lane[l] += term(i + l);
  for (std::int64_t half = lanes / 2; half > 0; half /= 2)
    for (std::int64_t l = 0; l < half; ++l) lane[l] += lane[l + half];
  return lane[0];
}

}  // namespace smelt
