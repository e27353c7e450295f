// SPDX-License-Identifier: Apache-2.0
//
// What every attention kernel is given, and the two passes over rows that come before the products:
//
//   pack   q, k, v [N, heads * head_dim] float, rows apart  ->  bf16 [heads, N, HeadSize]:
//          aligned rows for 16-byte copies, columns past head_dim zero. HeadSize is head_dim
//          rounded up to one of the few sizes that kernels are compiled for.
//   rows   per query and head D = sum of dout out and the log-sum-exp side by side: all that the
//          backward products need of a row. In bf16 also dout, packed as above.
//
// D is summed over dout as the products will see it (rounded): for a document of one token dP - D
// is then exactly zero, as it should be.
//
// Bytes an element: pack 4 in, 2 HeadSize / head_dim out; rows 6 or 8 in, 2 out in bf16. Bound by
// memory, and little beside the products, which grow with the length of a document.
// Limits: head_dim at most 128, a document at most 2^31 - 1 tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <type_traits>

#include "smelt/arch/attention.hpp"
#include "smelt/error.hpp"
#include "smelt/exec/cuda/launch.cuh"
#include "smelt/exec/matrix.hpp"
#include "smelt/kernel/row_reduce.cuh"
#include "smelt/kernel/tensor_core.cuh"
#include "smelt/op/attention_tile.hpp"
#include "smelt/op/segments.hpp"

namespace smelt {
inline namespace cuda_backend {
namespace cuda_detail {

/// Shape and documents of one call, as kernels take them.
struct attention_problem {
  segments documents;  // offsets in device memory
  std::int64_t tokens;
  std::int64_t slots;  // of the kernel's own tile, see attention_tile.hpp
  int query_heads, kv_heads, head_dim;
  float scale;

  SMELT_HD int group() const { return query_heads / kv_heads; }
};

/// Log-sum-exp (in bf16 kernels times log2 e) and D of one query of one head.
struct alignas(8) attention_row {
  float reference;
  float delta;
};

/// log2 e: the bf16 kernels work with powers of two, which the hardware has an instruction for.
inline constexpr float attention_log2_e = 1.44269504088896341F;

/// Calls body(std::integral_constant<int, HeadSize>) with the smallest size that holds head_dim.
template <class Body>
void with_head_size(const char* where, std::int64_t head_dim, Body&& body) {
  if (head_dim <= 32)
    body(std::integral_constant<int, 32>{});
  else if (head_dim <= 64)
    body(std::integral_constant<int, 64>{});
  else if (head_dim <= 96)
    body(std::integral_constant<int, 96>{});
  else if (head_dim <= 128)
    body(std::integral_constant<int, 128>{});
  else
    throw error(std::string(where) + ": head size " + std::to_string(head_dim) +
                ", expected at most 128 on CUDA; use more heads of a smaller size, or run on the "
                "CPU with the policy host{}");
}

/// Threads of a block of the kernels that multiply: four warps.
inline constexpr int attention_threads = 128;

/// attention_tile_walk::segment_of by a whole block: every thread looks at one offset, so that two
/// rounds find one segment of 16,000, where a search by halves waits for memory 14 times.
__device__ inline std::int64_t attention_segment_of(const segments& documents, std::int64_t token) {
  // Offsets before `low` are at or before the token, those from `end` on are after it.
  std::int64_t low = 0, end = documents.count + 1;
  while (low < end) {
    const std::int64_t chunk = (end - low + attention_threads - 1) / attention_threads;
    const std::int64_t last = low + (threadIdx.x + 1) * chunk - 1;  // of the thread's chunk
    const bool before = last < end && documents.offsets[last] <= token;
    low += __syncthreads_count(before) * chunk;
    end = low + chunk - 1 < end ? low + chunk - 1 : end;
  }
  return low - 1;
}

/// The tiles of a slot for a whole block. The walk is kept in shared memory by one thread: its
/// counters would cost every thread registers that the products need.
class attention_block_walk {
 public:
  struct storage {
    alignas(attention_tile_walk) std::byte walk[sizeof(attention_tile_walk)];
    alignas(attention_tile) std::byte tile[sizeof(attention_tile)];
    bool found;
  };

  __device__ attention_block_walk(storage& shared, const segments& documents, std::int64_t slot,
                                  std::int64_t tile)
      : shared_(shared) {
    const std::int64_t segment = attention_segment_of(documents, slot * tile);
    if (threadIdx.x == 0) ::new (shared_.walk) attention_tile_walk(documents, slot, tile, segment);
  }
  /// All threads must call it; what they did with the last tile is done when it returns.
  __device__ bool next(attention_tile& tile) {
    auto* at = reinterpret_cast<attention_tile*>(shared_.tile);
    __syncthreads();
    if (threadIdx.x == 0) {
      attention_tile found;
      shared_.found = reinterpret_cast<attention_tile_walk*>(shared_.walk)->next(found);
      *at = found;
    }
    __syncthreads();
    tile = *at;
    return shared_.found;
  }

 private:
  storage& shared_;
};

/// A matrix to pack: rows of `heads` heads, and where they go.
struct attention_pack_job {
  matrix_view<const float> from;
  int heads;
  bf16* to;
};

// One block per token, a thread per two columns.
template <int HeadSize>
__device__ void attention_pack_row(const attention_pack_job& job, int head_dim,
                                   std::int64_t token) {
  constexpr int pairs = HeadSize / 2;
  const float* row = job.from.row(token);
  for (int i = static_cast<int>(threadIdx.x); i < job.heads * pairs; i += row_block_threads) {
    const int head = i / pairs;
    const int column = i % pairs * 2;
    const float* from = row + head * head_dim;
    const float low = column < head_dim ? from[column] : 0.0F;
    const float high = column + 1 < head_dim ? from[column + 1] : 0.0F;
    bf16* to = job.to + (head * job.from.rows + token) * HeadSize + column;
    *reinterpret_cast<std::uint32_t*>(to) = pack_bf16(low, high);
  }
}

template <int HeadSize>
__global__ void __launch_bounds__(row_block_threads)
    attention_pack_kernel(attention_pack_job q, attention_pack_job k, attention_pack_job v,
                          int head_dim) {
  attention_pack_row<HeadSize>(q, head_dim, blockIdx.x);
  attention_pack_row<HeadSize>(k, head_dim, blockIdx.x);
  attention_pack_row<HeadSize>(v, head_dim, blockIdx.x);
}

// A warp per query and head, a lane per two columns. rows [heads, N], packed [heads, N, head_size].
template <class Compute>
__global__ void __launch_bounds__(row_block_threads)
    attention_rows_kernel(matrix_view<const float> dout, matrix_view<const Compute> out,
                          const float* logsumexp, int heads, int head_dim, int head_size,
                          attention_row* rows, bf16* packed) {
  constexpr bool narrow = std::is_same_v<Compute, bf16>;
  __shared__ typename row_reduce<32>::storage shared;
  row_reduce<32> reduce(shared);
  const std::int64_t item =
      std::int64_t{blockIdx.x} * row_reduce<32>::rows_per_block + row_reduce<32>::row();
  if (item >= dout.rows * heads) return;  // whole warps
  const std::int64_t token = item / heads;
  const std::int64_t head = item % heads;
  const std::int64_t at = head * dout.rows + token;
  const float* gradient = dout.row(token) + head * head_dim;
  const Compute* value = out.row(token) + head * head_dim;
  float sum = 0.0F;
  for (int column = 2 * row_reduce<32>::lane(); column < head_size; column += 64) {
    float low = column < head_dim ? gradient[column] : 0.0F;
    float high = column + 1 < head_dim ? gradient[column + 1] : 0.0F;
    if constexpr (narrow) {
      const std::uint32_t both = pack_bf16(low, high);
      *reinterpret_cast<std::uint32_t*>(packed + at * head_size + column) = both;
      low = __uint_as_float(both << 16);
      high = __uint_as_float(both & 0xffff0000U);
    }
    if (column < head_dim) sum += low * static_cast<float>(value[column]);
    if (column + 1 < head_dim) sum += high * static_cast<float>(value[column + 1]);
  }
  sum = reduce.sum(sum);
  if (row_reduce<32>::lane() == 0)
    rows[at] = {logsumexp[at] * (narrow ? attention_log2_e : 1.0F), sum};
}

}  // namespace cuda_detail
}  // namespace cuda_backend
}  // namespace smelt
