// SPDX-License-Identifier: Apache-2.0
//
// row_maximum: the largest element of a row, in 32 interleaved partial maxima (see lane_sum.hpp for
// why lanes). A maximum folds by compare and select, two steps an element where a sum takes one:
// hence twice the independent lanes.
#pragma once

#include <cstdint>
#include <limits>

#include "smelt/exec/host_device.hpp"

namespace smelt {

/// What no element of a row lies below. A constant: in device code its expression is not one.
template <class Real>
inline constexpr Real below_rows = -std::numeric_limits<Real>::infinity();

/// Largest of row[0, count); -infinity for an empty row. NaN is passed over, never returned: a
/// softmax meets it again when it takes the exponential.
template <class Real>
SMELT_HD inline Real row_maximum(const Real* row, std::int64_t count) {
  constexpr std::int64_t lanes = 32;
  Real lane[lanes];
  for (std::int64_t l = 0; l < lanes; ++l) lane[l] = below_rows<Real>;
  std::int64_t j = 0;
  for (; j + lanes <= count; j += lanes)
    for (std::int64_t l = 0; l < lanes; ++l) lane[l] = lane[l] < row[j + l] ? row[j + l] : lane[l];
  for (std::int64_t half = lanes / 2; half > 0; half /= 2)
    for (std::int64_t l = 0; l < half; ++l)
      lane[l] = lane[l] < lane[l + half] ? lane[l + half] : lane[l];
  Real largest = lane[0];
  for (; j < count; ++j) largest = largest < row[j] ? row[j] : largest;
  return largest;
}

}  // namespace smelt
