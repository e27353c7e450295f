// SPDX-License-Identifier: Apache-2.0
//
// Dense matrix products on CUDA:  C = A B  or  C += A B,  A [m, k], B [k, n], C [m, n], by cuBLAS.
//
// Which operand is transposed, its views say, as on the host (exec/matmul.hpp). float32 products
// are true float32 (no TF32); bf16 operands run on tensor cores with float32 sums and result.
// cuBLAS is column-major: it is asked for C^T = B^T A^T, which is the same memory. One stream and a
// workspace of ours make it repeatable bit for bit and legal inside a graph.
#pragma once

#include <cublas_v2.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "smelt/exec/bf16.hpp"
#include "smelt/exec/cuda/buffer.cuh"
#include "smelt/exec/into.hpp"
#include "smelt/exec/matrix.hpp"

namespace smelt {
inline namespace cuda_backend {
namespace cuda_detail {

// A view as a BLAS sees it: memory rows apart by `leading`, to be read across or down.
struct blas_operand {
  cublasOperation_t operation;
  int leading;
};

inline int blas_size(std::int64_t size) {
  if (size > std::numeric_limits<int>::max())
    throw error("product: a size or stride of " + std::to_string(size) +
                " is more than cuBLAS takes, 2^31 - 1; cut the batch");
  return static_cast<int>(size);
}

template <class T>
blas_operand operand_of_view(const matrix_view<T>& view) {
  const bool transposed = view.column_stride != 1;
  const std::int64_t leading =
      std::max<std::int64_t>({transposed ? view.column_stride : view.row_stride,
                              transposed ? view.rows : view.columns, 1});
  return {transposed ? CUBLAS_OP_T : CUBLAS_OP_N, blas_size(leading)};
}

template <class T>
inline constexpr cudaDataType_t blas_type = std::is_same_v<T, bf16> ? CUDA_R_16BF : CUDA_R_32F;

}  // namespace cuda_detail

/// C = A B or C += A B on the policy's stream; counts 2 m n k. A and B are of one type, float or
/// bf16; C is float with columns side by side.
template <class Compute, class A, class B>
void product(const cuda<Compute>& run, matrix_view<A> a, matrix_view<B> b, matrix_view<float> c,
             into mode = into::overwrite) {
  using element = std::remove_const_t<A>;
  static_assert(std::is_same_v<element, std::remove_const_t<B>>,
                "smelt: product: both operands are of one type");
  run.count_product(c.rows, c.columns, a.columns);
  if (c.rows == 0 || c.columns == 0) return;
  if (a.columns == 0) {  // the sum over nothing
    if (mode == into::overwrite)
      cuda_detail::check(cudaMemset2DAsync(c.data, static_cast<std::size_t>(c.row_stride) * 4, 0,
                                           static_cast<std::size_t>(c.columns) * 4,
                                           static_cast<std::size_t>(c.rows), run.stream()),
                         "product over no columns");
    return;
  }
  const float one = 1.0F;
  const float beta = mode == into::accumulate ? 1.0F : 0.0F;
  const cuda_detail::blas_operand left = cuda_detail::operand_of_view(a);
  const cuda_detail::blas_operand right = cuda_detail::operand_of_view(b);
  const cublasStatus_t status = cublasGemmEx(
      run.context().cublas(), right.operation, left.operation, cuda_detail::blas_size(c.columns),
      cuda_detail::blas_size(c.rows), cuda_detail::blas_size(a.columns), &one, b.data,
      cuda_detail::blas_type<element>, right.leading, a.data, cuda_detail::blas_type<element>,
      left.leading, &beta, c.data, CUDA_R_32F, cuda_detail::blas_size(c.row_stride),
      CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  cuda_detail::check(status, "product [" + std::to_string(c.rows) + ", " +
                                 std::to_string(c.columns) + ", " + std::to_string(a.columns) +
                                 "]");
}

}  // namespace cuda_backend
}  // namespace smelt
