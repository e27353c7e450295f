// SPDX-License-Identifier: Apache-2.0
//
// lane_map: to[i] = term(i) over a row, 16 elements at a time, each group stored after all of its
// terms were taken.
//
// Made for rows that may be written in place. A plain loop with to == from is either refused by the
// vectoriser's overlap check at run time or needs a pragma that some compilers reject; a group kept
// in a local array overlaps with nothing.
#pragma once

#include <cstdint>

#include "smelt/exec/host_device.hpp"

namespace smelt {

// On the host `term` may be a host function; nvcc would warn of it at every such use.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
/// term(i) may read to[i] and any element of another row.
template <class Out, class Term>
SMELT_HD inline void lane_map(std::int64_t count, Out* to, Term&& term) {
  constexpr std::int64_t lanes = 16;
  Out lane[lanes];
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (std::int64_t l = 0; l < lanes; ++l) lane[l] = term(i + l);
    for (std::int64_t l = 0; l < lanes; ++l) to[i + l] = lane[l];
  }
  for (; i < count; ++i) to[i] = term(i);
}

}  // namespace smelt
