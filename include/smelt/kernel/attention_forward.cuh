// SPDX-License-Identifier: Apache-2.0
//
// Attention forward on bf16 tensor cores; formulas and shapes as in op/attention.hpp.
//
//   block   one query head, the tiles of one slot (attention_tile.hpp) one after the other
//   warp    16 row_tiles queries of the tile; their Q fragments stay in registers
//   step    64 keys of the segment: S = Q K^T, online softmax in registers, O += P V
//
// K and V of the next step are copied while this one is multiplied (two buffers). Q is staged in
// the second buffer before its first use, which leaves 69,632 bytes of shared memory at head size
// 128; with 205 to 255 registers a thread two blocks share a multiprocessor of 164 KiB. Steps that
// no query of a warp may see are passed over; the grid begins with the last slots, which see most
// keys.
//
// FLOPs: 4 HeadSize a pair, whole 64-key steps along the diagonal. K and V are read once per tile
// of queries, from the second-level cache for all but the first head of a group: 4 HeadSize bytes a
// key against 4 HeadSize query_tile FLOPs, 64 or 128 FLOPs a byte. A fragment of K or V in shared
// memory serves 16 row_tiles queries, 16 or 32 FLOPs a byte, where a multiprocessor of compute
// capability 8.0 balances at 16: bound by the products.
#pragma once

#include <cmath>
#include <cstdint>

#include "smelt/kernel/attention_products.cuh"
#include "smelt/kernel/attention_rows.cuh"

namespace smelt {
inline namespace cuda_backend {
namespace cuda_detail {

template <int HeadSize>
struct attention_forward_tuning {
  static constexpr int row_tiles = HeadSize <= 64 ? 2 : 1;  // 16 queries each, of a warp
  static constexpr int query_tile = attention_threads / 32 * 16 * row_tiles;
  static constexpr int key_tile = 64;
  static constexpr int tile_elements = key_tile * attention_stride<HeadSize>;
  static constexpr int shared_bytes = 2 * 2 * tile_elements * 2;  // two buffers of K and V
  static_assert(HeadSize % 16 == 0, "smelt: the products take 16 columns at a time");
  static_assert(query_tile <= 2 * key_tile, "smelt: Q is staged in one buffer of K and V");
};

/// The online softmax of a warp: per row its largest score so far (not scaled), its thread's share
/// of the sum of weights, and the output before division by the sum.
template <int HeadSize>
struct attention_forward_state {
  static constexpr int row_tiles = attention_forward_tuning<HeadSize>::row_tiles;
  float maximum[row_tiles][2];
  float sum[row_tiles][2];
  float output[row_tiles][HeadSize / 8][4];
};

// Scores become weights against the new maximum, and what was summed before is scaled to it.
// `query` is the position of the thread's first row, `key` that of its first column; factor = scale
// log2 e, as the weights are powers of two.
template <int HeadSize, int RowTiles, int Tiles>
__device__ void attention_forward_softmax(float (&scores)[RowTiles][Tiles][4], int query, int key,
                                          bool diagonal, float factor,
                                          attention_forward_state<HeadSize>& state) {
#pragma unroll
  for (int m = 0; m < RowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int position = query + 16 * m + 8 * half;
      const float before = state.maximum[m][half];
      float maximum = before;
#pragma unroll
      for (int n = 0; n < Tiles; ++n)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          if (diagonal && key + 8 * n + e % 2 > position) scores[m][n][e] = -INFINITY;
          maximum = fmaxf(maximum, scores[m][n][e]);
        }
      // The four threads of a row.
      maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffU, maximum, 1));
      maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffU, maximum, 2));
      const float reference = maximum * factor;
      const float decay = attention_exp2(before * factor - reference);  // 0 at first: -infinity
      float sum = state.sum[m][half] * decay;
#pragma unroll
      for (int n = 0; n < Tiles; ++n)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          scores[m][n][e] = attention_exp2(scores[m][n][e] * factor - reference);
          sum += scores[m][n][e];
        }
      state.maximum[m][half] = maximum;
      state.sum[m][half] = sum;
#pragma unroll
      for (int c = 0; c < HeadSize / 8; ++c) {
        state.output[m][c][2 * half] *= decay;
        state.output[m][c][2 * half + 1] *= decay;
      }
    }
}

// Output over the sum of weights, and the log-sum-exp, for rows below `rows`; `row` is the thread's
// first one. Loops are short and whole, so that the state never leaves the registers.
template <int HeadSize>
__device__ void attention_forward_store(attention_forward_state<HeadSize>& state, int row, int rows,
                                        int head_dim, float scale, bf16* out,
                                        std::int64_t row_stride, float* logsumexp) {
  const int pair = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int m = 0; m < state.row_tiles; ++m) {
    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = state.sum[m][half];
      sum += __shfl_xor_sync(0xffffffffU, sum, 1);
      sum += __shfl_xor_sync(0xffffffffU, sum, 2);
      inverse[half] = 1.0F / sum;
      const int query = row + 16 * m + 8 * half;
      if (query < rows && pair == 0) logsumexp[query] = state.maximum[m][half] * scale + logf(sum);
    }
#pragma unroll
    for (int c = 0; c < HeadSize / 8; ++c)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int query = row + 16 * m + 8 * half;
        const int column = 8 * c + pair;
        const std::uint32_t both = pack_bf16(state.output[m][c][2 * half] * inverse[half],
                                             state.output[m][c][2 * half + 1] * inverse[half]);
        bf16* const to = out + query * row_stride + column;
        if (query < rows && column < head_dim) to[0].bits = static_cast<std::uint16_t>(both);
        if (query < rows && column + 1 < head_dim)
          to[1].bits = static_cast<std::uint16_t>(both >> 16);
      }
  }
}

// q [query_heads, N, HeadSize], k, v [kv_heads, N, HeadSize] packed; out [N, query width].
template <int HeadSize>
__global__ void __launch_bounds__(attention_threads, 2)
    attention_forward_kernel(attention_problem problem, const bf16* q, const bf16* k, const bf16* v,
                             matrix_view<bf16> out, float* logsumexp) {
  using tuning = attention_forward_tuning<HeadSize>;
  constexpr int row_tiles = tuning::row_tiles;
  constexpr int tiles = tuning::key_tile / 8;
  extern __shared__ uint4 attention_shared[];  // 16-byte pieces
  __shared__ attention_block_walk::storage walk_storage;
  bf16* const buffers = reinterpret_cast<bf16*>(attention_shared);  // [2][K, V][key_tile][stride]
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int own = static_cast<int>(threadIdx.x) / 32 * 16 * row_tiles;  // the warp's first query
  const int head = static_cast<int>(blockIdx.x % static_cast<unsigned>(problem.query_heads));
  const std::int64_t slot = problem.slots - 1 - blockIdx.x / problem.query_heads;
  const std::int64_t of_queries = head * problem.tokens;
  const std::int64_t of_keys = head / problem.group() * problem.tokens;
  const float factor = problem.scale * attention_log2_e;

  attention_block_walk walk(walk_storage, problem.documents, slot, tuning::query_tile);
  for (attention_tile at; walk.next(at);) {
    const int rows = static_cast<int>(at.end - at.begin);
    const int first = static_cast<int>(at.begin - at.segment_begin);  // position of query 0
    const int keys = first + rows;
    const bf16* const k_rows = k + (of_keys + at.segment_begin) * HeadSize;
    const bf16* const v_rows = v + (of_keys + at.segment_begin) * HeadSize;
    const auto copy_keys = [&](int key, bf16* to) {
      const std::int64_t from = std::int64_t{key} * HeadSize;
      attention_copy_tile<tuning::key_tile, HeadSize>(k_rows + from, keys - key, to);
      attention_copy_tile<tuning::key_tile, HeadSize>(v_rows + from, keys - key,
                                                      to + tuning::tile_elements);
    };
    bf16* const staged = buffers + 2 * tuning::tile_elements;
    attention_copy_tile<tuning::query_tile, HeadSize>(q + (of_queries + at.begin) * HeadSize, rows,
                                                      staged);
    copy_async_commit();
    copy_keys(0, buffers);
    copy_async_commit();
    copy_async_wait<1>();
    __syncthreads();
    std::uint32_t queries[row_tiles][HeadSize / 16][4];
#pragma unroll
    for (int m = 0; m < row_tiles; ++m)
#pragma unroll
      for (int step = 0; step < HeadSize / 16; ++step)
        attention_left<HeadSize>(staged + (own + 16 * m) * attention_stride<HeadSize>, step,
                                 queries[m][step]);
    __syncthreads();  // before the second buffer is filled with keys

    attention_forward_state<HeadSize> state;
#pragma unroll
    for (int m = 0; m < row_tiles; ++m) {
      state.maximum[m][0] = state.maximum[m][1] = -INFINITY;
      state.sum[m][0] = state.sum[m][1] = 0.0F;
#pragma unroll
      for (int c = 0; c < HeadSize / 8; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e) state.output[m][c][e] = 0.0F;
    }
    for (int key = 0, buffer = 0; key < keys; key += tuning::key_tile, buffer ^= 1) {
      if (key + tuning::key_tile < keys)
        copy_keys(key + tuning::key_tile, buffers + (buffer ^ 1) * 2 * tuning::tile_elements);
      copy_async_commit();  // empty at the end: the count of groups stays the same
      copy_async_wait<1>();
      __syncthreads();
      if (own < rows && key < first + own + 16 * row_tiles) {
        const bf16* const k_tile = buffers + buffer * 2 * tuning::tile_elements;
        float scores[row_tiles][tiles][4] = {};
        attention_scores<HeadSize, HeadSize / 16>(
            [&](int m, int step, std::uint32_t(&a)[4]) {
#pragma unroll
              for (int e = 0; e < 4; ++e) a[e] = queries[m][step][e];
            },
            k_tile, scores);
        attention_forward_softmax<HeadSize>(scores, first + own + lane / 4, key + lane % 4 * 2,
                                            key + tuning::key_tile > first + own, factor, state);
        attention_weighted<HeadSize>(scores, k_tile + tuning::tile_elements, state.output);
      }
      __syncthreads();  // before this buffer is filled again
    }

    attention_forward_store<HeadSize>(state, own + lane / 4, rows, problem.head_dim, problem.scale,
                                      out.row(at.begin) + head * problem.head_dim, out.row_stride,
                                      logsumexp + of_queries + at.begin);
  }
}

}  // namespace cuda_detail
}  // namespace cuda_backend
}  // namespace smelt
