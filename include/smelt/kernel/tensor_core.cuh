// SPDX-License-Identifier: Apache-2.0
//
// Tensor cores by one warp: fragments from shared memory, the bf16 product, asynchronous copies.
//
//   D [16, 8] += A [16, 16] B [16, 8]       A, B bf16, D float, spread over the 32 lanes of a warp
//
// Which lane holds what, with g = lane / 4 and t = lane % 4 (a register of A or B is two bf16, the
// lower half first):
//
//   A   a[0] = A(g, 2t..2t+1)   a[1] = A(g + 8, 2t..)   a[2] = A(g, 2t + 8..)   a[3] = A(g + 8, ..)
//   B   b[0] = B(2t..2t+1, g)   b[1] = B(2t + 8.., g)
//   D   d[0], d[1] = D(g, 2t..2t+1)                     d[2], d[3] = D(g + 8, 2t..2t+1)
//
// So two neighbouring D tiles, packed to bf16, are an A fragment: a product feeds the next one
// without leaving the registers. A fragment comes from shared memory as 8 x 8 matrices, each given
// by the addresses of its eight rows of 16 bytes, aligned to 16: lane l names row l % 8 of matrix
// l / 8, and register i of each lane then holds M_i(g, 2t..2t+1), or M_i(2t..2t+1, g) transposed:
//
//   A stored [16, 16]          rows (l % 16), columns 8 (l / 16)                  plain x4 ->
//   a[0..3] B stored [n, k]            plain: matrices (k 0..7), (k 8..15) -> b[0], b[1] B stored
//   [k, n]            transposed: the same two matrices A stored as its transpose  transposed: rows
//   (l % 8) + 8 (l / 16), columns 8 (l / 8 % 2)
//
// A row stride of an odd number of 16-byte pieces makes all of these free of bank conflicts.
// Limits: compute capability 8.0; every lane of the warp takes part.
#pragma once

#include <cstdint>

#include "smelt/exec/bf16.hpp"

namespace smelt {
inline namespace cuda_backend {

namespace cuda_detail {
// An address as instructions on shared memory want it.
__device__ inline std::uint32_t shared_address(const void* shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}
}  // namespace cuda_detail

/// Two floats rounded to nearest even, `low` in the lower half.
__device__ inline std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

/// d += a b, for one warp.
__device__ inline void mma_16x8x16(float (&d)[4], const std::uint32_t (&a)[4],
                                   const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// Four 8 x 8 matrices of bf16; `row` is the address of the lane's row in shared memory.
__device__ inline void load_matrix_x4(std::uint32_t (&to)[4], const bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(cuda_detail::shared_address(row))
               : "memory");
}

/// Four matrices, each transposed.
__device__ inline void load_matrix_x4_transposed(std::uint32_t (&to)[4], const bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(cuda_detail::shared_address(row))
               : "memory");
}

/// Two matrices; lanes 16 to 31 give addresses that are not used but must be valid.
__device__ inline void load_matrix_x2(std::uint32_t (&to)[2], const bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(cuda_detail::shared_address(row))
               : "memory");
}

/// Two matrices, each transposed; addresses as for load_matrix_x2.
__device__ inline void load_matrix_x2_transposed(std::uint32_t (&to)[2], const bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(cuda_detail::shared_address(row))
               : "memory");
}

/// Begins to copy 16 bytes from global to shared memory, past the registers and the first-level
/// cache. Both are aligned to 16. Only the first `valid_bytes` (0 to 16) are read, the rest becomes
/// zero; where it is 0, `global` must still be an address of some allocation.
__device__ inline void copy_async_16(void* shared, const void* global, int valid_bytes = 16) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(cuda_detail::shared_address(shared)), "l"(__cvta_generic_to_global(global)),
                 "r"(valid_bytes)
               : "memory");
}

/// The same for 8 bytes aligned to 8, through the first-level cache.
__device__ inline void copy_async_8(void* shared, const void* global, int valid_bytes = 8) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
               :
               : "r"(cuda_detail::shared_address(shared)), "l"(__cvta_generic_to_global(global)),
                 "r"(valid_bytes)
               : "memory");
}

/// Closes a group: the copies that this thread has begun since the last one.
__device__ inline void copy_async_commit() {
  asm volatile("cp.async.commit_group;" : : : "memory");
}

/// Waits until at most `Pending` of this thread's groups are under way. What other threads copied
/// is there after a __syncthreads() that follows.
template <int Pending>
__device__ inline void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" : : "n"(Pending) : "memory");
}

}  // namespace cuda_backend
}  // namespace smelt
