// SPDX-License-Identifier: Apache-2.0
//
// row_reduce: a reduction over one row by the threads that share it, handed to all of them.
//
//   RowThreads 32    a warp per row, for rows of a head's size: cub::WarpReduce
//   RowThreads 256   a block per row, for rows of hidden's size: cub::BlockReduce
//
// Each thread first folds its own elements (column = lane, lane + RowThreads, ...), then the tree
// of CUB: the order is fixed, so the bits are.
#pragma once

#include <cub/block/block_reduce.cuh>
#include <cub/warp/warp_reduce.cuh>

#include <cstdint>
#include <type_traits>

namespace smelt {
inline namespace cuda_backend {

/// Threads of a block in every kernel that works row by row.
inline constexpr int row_block_threads = 256;

/// Threads that share a row of this width.
constexpr int row_threads(std::int64_t width) {
  return width <= 256 ? 32 : row_block_threads;
}

struct row_plus {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

/// The larger one; NaN is passed over, as in row_maximum.hpp.
struct row_larger {
  __device__ float operator()(float a, float b) const { return a < b ? b : a; }
};

template <int RowThreads>
class row_reduce {
  static constexpr bool whole_block = RowThreads == row_block_threads;
  using block = cub::BlockReduce<float, row_block_threads>;
  using warp = cub::WarpReduce<float>;
  static_assert(whole_block || RowThreads == 32, "smelt: a row belongs to a warp or to a block");

 public:
  static constexpr int rows_per_block = row_block_threads / RowThreads;

  struct storage {
    typename block::TempStorage of_block;
    typename warp::TempStorage of_warps[row_block_threads / 32];
    float result;
  };

  __device__ explicit row_reduce(storage& shared) : shared_(shared) {}

  /// This thread's place among those of its row.
  static __device__ int lane() { return static_cast<int>(threadIdx.x) % RowThreads; }
  /// The row among those of the block.
  static __device__ int row() { return static_cast<int>(threadIdx.x) / RowThreads; }

  /// Reduction of every thread's `value` over the row; all threads of the block must call it.
  template <class Operation>
  __device__ float operator()(float value, Operation operation) {
    if constexpr (whole_block) {
      const float total = block(shared_.of_block).Reduce(value, operation);
      if (threadIdx.x == 0) shared_.result = total;
      __syncthreads();
      const float result = shared_.result;
      __syncthreads();  // before the next reduction writes there
      return result;
    } else {
      const float total = warp(shared_.of_warps[row()]).Reduce(value, operation);
      return __shfl_sync(0xffffffffU, total, 0);
    }
  }
  __device__ float sum(float value) { return (*this)(value, row_plus{}); }

 private:
  storage& shared_;
};

}  // namespace cuda_backend
}  // namespace smelt
