// SPDX-License-Identifier: Apache-2.0
//
// Attention backward on bf16 tensor cores; formulas and shapes as in op/attention.hpp.
//
// Two kernels of one body, X the rows that a block owns and Y those that it meets:
//
//   of keys      X = K, V   Y = Q, dO    P^T, dS^T    dV += P^T dO,   dK += dS^T Q
//   of queries   X = Q, dO  Y = K, V     P, dS        dQ += dS K
//
//   block   64 rows of X: the tiles of one slot, of one key-value head (with all query heads of its
//           group, one after the other) or of one query head
//   warp    16 of them; sums of the gradients stay in registers until all of Y has been met
//   step    32 or 64 rows of Y, copied while the step before is multiplied (two buffers):
//           S = X0 Y0^T, dP = X1 Y1^T, P = 2^(S scale log2 e - L log2 e), dS = P (dP - D)
//
// Nobody adds to what another block adds to, so there are no atomics and the bits repeat. The price
// is that S and dP are computed twice: 14 HeadSize FLOPs a pair, where 8 are the gradient's.
//
// Shared memory (69,632 bytes at head size 128, and 512 for L and D of two steps) and registers
// (230 a thread of keys, 155 of queries) let two blocks share a multiprocessor of 164 KiB. A
// fragment of Y serves 16 rows of X and the fragments of X are read again each step: 13 FLOPs a
// byte of shared memory where X are keys, a little below the 16 at which a multiprocessor of
// compute capability 8.0 balances. From the second-level cache come 4 HeadSize bytes a row of Y for
// 64 rows of X.
#pragma once

#include <cstdint>

#include "smelt/exec/into.hpp"
#include "smelt/kernel/attention_products.cuh"
#include "smelt/kernel/attention_rows.cuh"

namespace smelt {
inline namespace cuda_backend {
namespace cuda_detail {

template <int HeadSize>
struct attention_backward_tuning {
  static constexpr int tile = attention_threads / 32 * 16;  // rows of X of a block
  static constexpr int step = HeadSize <= 64 ? 64 : 32;     // rows of Y at a time
  static constexpr int unroll = 2;  // of the scores' loop over columns: more costs registers
  static constexpr int own_elements = tile * attention_stride<HeadSize>;
  static constexpr int met_elements = step * attention_stride<HeadSize>;
  static constexpr int tiles_bytes = (2 * own_elements + 2 * 2 * met_elements) * 2;
  static constexpr int shared_bytes =
      tiles_bytes + 2 * step * static_cast<int>(sizeof(attention_row));
  static_assert(HeadSize % 16 == 0, "smelt: the products take 16 columns at a time");
  static_assert(tile % step == 0, "smelt: steps along the diagonal begin where a tile does");
};

/// The packed operands of the backward pass: [heads, N, HeadSize], and rows [query_heads, N].
struct attention_packed {
  const bf16 *q, *k, *v, *dout;
  const attention_row* rows;
};

/// Gradients of the rows that a block owns: of keys dv and dk, of queries dq as the second.
struct attention_gradients {
  matrix_view<float> of_weights;  // dv
  matrix_view<float> of_scores;   // dk or dq
  into mode;
};

// Scores become P and gradients of P become dS, in place. A row and a column of the tile are
// positions in the segment; `rows` holds L and D of the queries, two for the rows of a thread where
// these are the queries, otherwise in shared memory by column.
template <int HeadSize, bool OfKeys, int Tiles>
__device__ void attention_backward_weights(float (&scores)[Tiles][4], float (&gradients)[Tiles][4],
                                           int row, int column, bool diagonal, int queries,
                                           float factor, const attention_row* rows) {
#pragma unroll
  for (int n = 0; n < Tiles; ++n) {
    attention_row two[2];
    if constexpr (OfKeys) {  // those of columns 2t and 2t + 1: one load of 16 bytes
      const float4 both = *reinterpret_cast<const float4*>(rows + 8 * n);
      two[0] = {both.x, both.y};
      two[1] = {both.z, both.w};
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const attention_row of_query = OfKeys ? two[e % 2] : rows[e / 2];
      const int x = row + e / 2 * 8;
      const int y = column + 8 * n + e % 2;
      const int query = OfKeys ? y : x;
      const int key = OfKeys ? x : y;
      float weight = attention_exp2(scores[n][e] * factor - of_query.reference);
      float gradient = weight * (gradients[n][e] - of_query.delta);
      // Chosen, not multiplied: what a masked pair computed may be NaN.
      if (diagonal && (key > query || query >= queries)) weight = gradient = 0.0F;
      scores[n][e] = weight;
      gradients[n][e] = gradient;
    }
  }
}

// Rows [0, valid) of the warp's sums times factor, into columns of the head. They go through the
// warp's 16 rows of `staged`, since whole rows are then read and written side by side.
template <int HeadSize>
__device__ void attention_store_gradient(const float (&sums)[1][HeadSize / 8][4], float* staged,
                                         int valid, int head_dim, float factor, into mode,
                                         float* to, std::int64_t row_stride) {
  constexpr int stride = attention_stride<HeadSize>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  __syncwarp();  // what was staged before has been read
#pragma unroll
  for (int c = 0; c < HeadSize / 8; ++c)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      *reinterpret_cast<float2*>(staged + (lane / 4 + 8 * half) * stride + 8 * c + lane % 4 * 2) = {
          sums[0][c][2 * half] * factor, sums[0][c][2 * half + 1] * factor};
  __syncwarp();
  for (int row = 0; row < 16 && row < valid; ++row)
    for (int column = lane; column < head_dim; column += 32) {
      float* const at = to + row * row_stride + column;
      const float value = staged[row * stride + column];
      *at = mode == into::accumulate ? *at + value : value;
    }
}

template <int HeadSize, bool OfKeys>
__global__ void __launch_bounds__(attention_threads, 2)
    attention_backward_kernel(attention_problem problem, attention_packed packed,
                              attention_gradients gradients) {
  using tuning = attention_backward_tuning<HeadSize>;
  constexpr int tiles = tuning::step / 8;
  extern __shared__ uint4 attention_shared[];  // 16-byte pieces
  __shared__ attention_block_walk::storage walk_storage;
  bf16* const own_tiles = reinterpret_cast<bf16*>(attention_shared);  // [X0, X1][tile][stride]
  bf16* const met_tiles = own_tiles + 2 * tuning::own_elements;       // [2][Y0, Y1][step][stride]
  auto* const met_rows = reinterpret_cast<attention_row*>(
      reinterpret_cast<std::byte*>(attention_shared) + tuning::tiles_bytes);  // [2][step]
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int own = static_cast<int>(threadIdx.x) / 32 * 16;  // the warp's first row of X
  const int heads = OfKeys ? problem.kv_heads : problem.query_heads;
  const int head = static_cast<int>(blockIdx.x % static_cast<unsigned>(heads));
  // The heaviest first: early keys are met by most queries, late queries meet most keys.
  const std::int64_t place = blockIdx.x / static_cast<unsigned>(heads);
  const std::int64_t slot = OfKeys ? place : problem.slots - 1 - place;
  const std::int64_t of_own = head * problem.tokens;
  const float factor = problem.scale * attention_log2_e;
  const bf16* const x0 = OfKeys ? packed.k : packed.q;
  const bf16* const x1 = OfKeys ? packed.v : packed.dout;
  const bf16* const y0 = OfKeys ? packed.q : packed.k;
  const bf16* const y1 = OfKeys ? packed.dout : packed.v;

  attention_block_walk walk(walk_storage, problem.documents, slot, tuning::tile);
  for (attention_tile at; walk.next(at);) {
    const int rows = static_cast<int>(at.end - at.begin);
    const int first = static_cast<int>(at.begin - at.segment_begin);  // position of row 0 of X
    // Positions of Y that are met, and how often: once for each query head of the group.
    const int begin = OfKeys ? first : 0;
    const int end = OfKeys ? static_cast<int>(at.segment_end - at.segment_begin) : first + rows;
    const int members = OfKeys ? problem.group() : 1;
    const auto copy_met = [&](int member, int position, int buffer) {
      const int met_head = OfKeys ? head * members + member : head / problem.group();
      const std::int64_t from = met_head * problem.tokens + at.segment_begin + position;
      bf16* const to = met_tiles + buffer * 2 * tuning::met_elements;
      attention_copy_tile<tuning::step, HeadSize>(y0 + from * HeadSize, end - position, to);
      attention_copy_tile<tuning::step, HeadSize>(y1 + from * HeadSize, end - position,
                                                  to + tuning::met_elements);
      const int row = static_cast<int>(threadIdx.x);
      if (OfKeys && row < tuning::step) {
        const bool inside = row < end - position;
        copy_async_8(met_rows + buffer * tuning::step + row,
                     packed.rows + from + (inside ? row : 0), inside ? 8 : 0);
      }
    };
    const std::int64_t own_from = (of_own + at.begin) * HeadSize;
    attention_copy_tile<tuning::tile, HeadSize>(x0 + own_from, rows, own_tiles);
    attention_copy_tile<tuning::tile, HeadSize>(x1 + own_from, rows,
                                                own_tiles + tuning::own_elements);
    copy_met(0, begin, 0);
    copy_async_commit();
    attention_row own_rows[2] = {};  // where X are queries: of rows g and g + 8
    if constexpr (!OfKeys)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = own + lane / 4 + 8 * half;
        if (row < rows) own_rows[half] = packed.rows[of_own + at.begin + row];
      }

    float of_weights[1][HeadSize / 8][4] = {};  // unused, and no register, where X are queries
    float of_scores[1][HeadSize / 8][4] = {};
    // `met` is the position of row 0 of Y.
    for (int member = 0, met = begin, buffer = 0; member < members; buffer ^= 1) {
      const bool last = met + tuning::step >= end;
      const int next_member = member + (last ? 1 : 0);
      const int next = last ? begin : met + tuning::step;
      if (next_member < members) copy_met(next_member, next, buffer ^ 1);
      copy_async_commit();  // empty at the end: the count of groups stays the same
      copy_async_wait<1>();
      __syncthreads();
      // Rows of the warp that see, or are seen by, any row of the step.
      const bool seen =
          own < rows && (OfKeys ? met + tuning::step > first + own : met < first + own + 16);
      if (seen) {
        const bf16* const y = met_tiles + buffer * 2 * tuning::met_elements;
        float scores[1][tiles][4] = {}, weight_gradients[1][tiles][4] = {};
        const auto own_fragment = [&](int which) {
          const bf16* const x = own_tiles + which * tuning::own_elements;
          return [=](int, int column, std::uint32_t(&a)[4]) {
            attention_left<HeadSize>(x + own * attention_stride<HeadSize>, column, a);
          };
        };
        attention_scores<HeadSize, tuning::unroll>(own_fragment(0), y, scores);
        attention_scores<HeadSize, tuning::unroll>(own_fragment(1), y + tuning::met_elements,
                                                   weight_gradients);
        const bool diagonal = OfKeys ? met < first + own + 16 || met + tuning::step > end
                                     : met + tuning::step > first + own;
        attention_backward_weights<HeadSize, OfKeys>(
            scores[0], weight_gradients[0], first + own + lane / 4, met + lane % 4 * 2, diagonal,
            end, factor, OfKeys ? met_rows + buffer * tuning::step + lane % 4 * 2 : own_rows);
        if constexpr (OfKeys)
          attention_weighted<HeadSize>(scores, y + tuning::met_elements, of_weights);
        attention_weighted<HeadSize>(weight_gradients, y, of_scores);
      }
      __syncthreads();  // before this buffer is filled again
      member = next_member;
      met = next;
    }

    const auto store = [&](const float(&sums)[1][HeadSize / 8][4], float times,
                           const matrix_view<float>& to) {
      // In place of X: floats of one tile take as much as bf16 of two.
      attention_store_gradient<HeadSize>(
          sums, reinterpret_cast<float*>(own_tiles) + own * attention_stride<HeadSize>, rows - own,
          problem.head_dim, times, gradients.mode,
          to.data + (at.begin + own) * to.row_stride + head * problem.head_dim, to.row_stride);
    };
    if constexpr (OfKeys) store(of_weights, 1.0F, gradients.of_weights);
    store(of_scores, problem.scale, gradients.of_scores);
  }
}

}  // namespace cuda_detail
}  // namespace cuda_backend
}  // namespace smelt
