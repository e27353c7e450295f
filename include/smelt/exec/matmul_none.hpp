// SPDX-License-Identifier: Apache-2.0
//
// Matrix products without a library: none but the double reference. Included by matmul.hpp where
// neither SMELT_MATMUL_ONEDNN nor SMELT_MATMUL_OPENBLAS is defined, so that a program which runs on
// CUDA alone needs no host library; one that does run float products on the host is refused with
// the remedy. A plain loop in their place would be fifty times slower without a word.
#pragma once

#include <cstdint>

#include "smelt/exec/bf16.hpp"

namespace smelt {
inline namespace host_backend {
namespace host_detail::matmul_library {

inline constexpr const char* name = "none";

inline bool has_bf16() {
  return false;
}

template <class T>
inline constexpr bool is_there = false;

// Templates, so that only a call is an error.
template <class... Arguments>
void multiply_float(bool, bool, Arguments...) {
  static_assert(is_there<void(Arguments...)>,
                "smelt: no matrix product library for the host; link smelt::host, or define "
                "SMELT_MATMUL_ONEDNN (and link dnnl) or SMELT_MATMUL_OPENBLAS (and link openblas)");
}

template <class... Arguments>
void multiply_bf16(bool, bool, Arguments...) {
  multiply_float(false, false);
}

}  // namespace host_detail::matmul_library
}  // namespace host_backend
}  // namespace smelt
