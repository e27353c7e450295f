// SPDX-License-Identifier: Apache-2.0
//
// Matrix products by OpenBLAS: float32 only. Included by matmul.hpp, never alone in use.
#pragma once

#include <cblas.h>

#include <cstdint>

#include "smelt/exec/bf16.hpp"
#include "smelt/exec/parallel.hpp"

namespace smelt {
inline namespace host_backend {
namespace host_detail::matmul_library {

inline constexpr const char* name = "OpenBLAS";

inline bool has_bf16() {
  return false;
}

// The library's own threads would compete with ours and make sums depend on their number. Its
// OpenMP build answers by setting OpenMP's number too, which the scope puts back.
inline void keep_to_one_thread() {
  static const bool done = [] {
    const one_thread_scope alone;
    openblas_set_num_threads(1);
    return true;
  }();
  static_cast<void>(done);
}

inline void multiply_float(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n,
                           std::int64_t k, const float* a, std::int64_t lda, const float* b,
                           std::int64_t ldb, float* c, std::int64_t ldc, bool add) {
  keep_to_one_thread();
  const one_thread_scope alone;
  cblas_sgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans,
              transpose_b ? CblasTrans : CblasNoTrans, static_cast<blasint>(m),
              static_cast<blasint>(n), static_cast<blasint>(k), 1.0F, a, static_cast<blasint>(lda),
              b, static_cast<blasint>(ldb), add ? 1.0F : 0.0F, c, static_cast<blasint>(ldc));
}

inline void multiply_bf16(bool, bool, std::int64_t, std::int64_t, std::int64_t, const bf16*,
                          std::int64_t, const bf16*, std::int64_t, float*, std::int64_t, bool) {}

}  // namespace host_detail::matmul_library
}  // namespace host_backend
}  // namespace smelt
