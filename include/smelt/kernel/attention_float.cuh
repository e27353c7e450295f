// SPDX-License-Identifier: Apache-2.0
//
// Attention in float32, forward and backward, by fused multiply-adds on tiles in shared memory;
// formulas and shapes as in op/attention.hpp, the cut into blocks and the two backward kernels as
// in attention_forward.cuh and attention_backward.cuh.
//
//   block    64 rows of X (queries, or keys), 32 rows of Y at a time
//   thread   (ty, tx) of 16 x 8: rows ty + 16 r (r < 4); of scores columns tx + 8 c (c < 4), of
//            sums columns 4 tx + 32 c .. + 3
//
// The eight threads of a row are neighbours in a warp: they reduce by shuffles, and the weights
// they store for each other need no barrier of the block. A tile's rows are HeadSize + 4 elements
// apart, so that rows next to each other, read as float4, lie in different banks. FLOPs: 4 HeadSize
// a pair forward, 14 backward. Per four columns of a 4 x 4 tile of scores a thread reads 8 float4
// for 64 multiply-adds: bound by arithmetic. Shared memory at head size 128: 76,800 bytes forward,
// 119,808 + 256 backward, of which a multiprocessor of 164 KiB holds two and one.
#pragma once

#include <cmath>
#include <cstdint>

#include "smelt/exec/into.hpp"
#include "smelt/kernel/attention_backward.cuh"
#include "smelt/kernel/attention_rows.cuh"

namespace smelt {
inline namespace cuda_backend {
namespace cuda_detail {

/// Rows of shared tiles are multiples of 16 bytes apart, scores of a tile of 64 x 32 are 4 x 4 a
/// thread.
template <int HeadSize>
struct attention_float_tuning {
  static constexpr int threads = attention_threads;
  static constexpr int lanes = 8;  // threads of a row
  static constexpr int tile = 64;  // rows of X
  static constexpr int step = 32;  // rows of Y at a time
  static constexpr int stride = HeadSize + 4;
  static constexpr int weight_stride = step + 4;
  static constexpr int forward_bytes =
      (tile * stride + 2 * step * stride + tile * weight_stride) * 4;
  static constexpr int backward_bytes =
      (2 * tile * stride + 2 * step * stride + 2 * tile * weight_stride + 2 * step) * 4;
  static constexpr int row_gap = threads / lanes;  // from one row of a thread to its next
  static_assert(HeadSize % 32 == 0, "smelt: eight threads of a row take four columns each");
  static_assert(tile == 4 * row_gap && step == 4 * lanes, "smelt: a thread has 4 x 4 scores");
};

/// Columns of one head, rows apart. Alignment is not known: a row may begin at any float.
struct attention_columns {
  const float* data;
  std::int64_t row_stride;
};
__device__ inline attention_columns attention_head_of(const matrix_view<const float>& matrix,
                                                      int head, int head_dim) {
  return {matrix.data + head * head_dim, matrix.row_stride};
}

// Rows [0, Rows) from token `first` on into a tile; from `valid` on, and past head_dim, zero.
template <int Rows, int HeadSize>
__device__ void attention_load_rows(const attention_columns& from, std::int64_t first, int valid,
                                    int head_dim, float* to) {
  using tuning = attention_float_tuning<HeadSize>;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < Rows * HeadSize; i += tuning::threads) {
    const int row = i / HeadSize;
    const int column = i % HeadSize;
    const bool inside = row < valid && column < head_dim;
    to[row * tuning::stride + column] =
        inside ? from.data[(first + row) * from.row_stride + column] : 0.0F;
  }
}

// sum += a . b, in the order of columns.
__device__ inline void attention_multiply_add(const float4& a, const float4& b, float& sum) {
  sum = fmaf(a.x, b.x, sum);
  sum = fmaf(a.y, b.y, sum);
  sum = fmaf(a.z, b.z, sum);
  sum = fmaf(a.w, b.w, sum);
}

// scores(r, c) = X row r . Y row c, over the columns that hold something: the loop ends with
// head_dim, not with HeadSize, as every column of float costs time.
template <int HeadSize>
__device__ void attention_float_scores(const float* x, const float* y, int head_dim,
                                       float (&scores)[4][4]) {
  using tuning = attention_float_tuning<HeadSize>;
  const float* of_x = x + static_cast<int>(threadIdx.x) / tuning::lanes * tuning::stride;
  const float* of_y = y + static_cast<int>(threadIdx.x) % tuning::lanes * tuning::stride;
#pragma unroll
  for (int r = 0; r < 4; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c) scores[r][c] = 0.0F;
#pragma unroll 2
  for (int column = 0; column < head_dim; column += 4) {
    float4 a[4], b[4];  // 8 loads for 64 multiply-adds
#pragma unroll
    for (int r = 0; r < 4; ++r)
      a[r] = *reinterpret_cast<const float4*>(of_x + r * tuning::row_gap * tuning::stride + column);
#pragma unroll
    for (int c = 0; c < 4; ++c)
      b[c] = *reinterpret_cast<const float4*>(of_y + c * tuning::lanes * tuning::stride + column);
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) attention_multiply_add(a[r], b[c], scores[r][c]);
  }
}

// The thread's weights, where the other threads of its rows find them.
template <int HeadSize>
__device__ void attention_float_share(const float (&weights)[4][4], float* to) {
  using tuning = attention_float_tuning<HeadSize>;
  const int row = static_cast<int>(threadIdx.x) / tuning::lanes;
  const int lane = static_cast<int>(threadIdx.x) % tuning::lanes;
#pragma unroll
  for (int r = 0; r < 4; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c)
      to[(row + r * tuning::row_gap) * tuning::weight_stride + lane + c * tuning::lanes] =
          weights[r][c];
}

// sums(r, column) += weights row r . column of Y. Four keys at a time: one load of weights a row.
template <int HeadSize>
__device__ void attention_float_weighted(const float* weights, const float* y,
                                         float (&sums)[4][HeadSize / 32][4]) {
  using tuning = attention_float_tuning<HeadSize>;
  const float* of_x =
      weights + static_cast<int>(threadIdx.x) / tuning::lanes * tuning::weight_stride;
  const float* of_y = y + static_cast<int>(threadIdx.x) % tuning::lanes * 4;
#pragma unroll 1
  for (int k = 0; k < tuning::step; k += 4) {
    float weight[4][4];
#pragma unroll
    for (int r = 0; r < 4; ++r)
      *reinterpret_cast<float4*>(weight[r]) =
          *reinterpret_cast<const float4*>(of_x + r * tuning::row_gap * tuning::weight_stride + k);
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int c = 0; c < HeadSize / 32; ++c) {
        const float4 value =
            *reinterpret_cast<const float4*>(of_y + (k + i) * tuning::stride + 32 * c);
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          sums[r][c][0] = fmaf(weight[r][i], value.x, sums[r][c][0]);
          sums[r][c][1] = fmaf(weight[r][i], value.y, sums[r][c][1]);
          sums[r][c][2] = fmaf(weight[r][i], value.z, sums[r][c][2]);
          sums[r][c][3] = fmaf(weight[r][i], value.w, sums[r][c][3]);
        }
      }
  }
}

// Rows below `rows` of the sums, into columns of the head. They go through the thread's own rows of
// X: addresses for all of a thread's sums would not fit into registers beside these.
template <int HeadSize>
__device__ void attention_float_store(const float (&sums)[4][HeadSize / 32][4], float* staged,
                                      int rows, int head_dim, into mode, float* to,
                                      std::int64_t row_stride) {
  using tuning = attention_float_tuning<HeadSize>;
  const int first = static_cast<int>(threadIdx.x) / tuning::lanes;
  const int lane = static_cast<int>(threadIdx.x) % tuning::lanes;
  __syncwarp();  // the threads of a row have read X, or what was staged before
#pragma unroll
  for (int r = 0; r < 4; ++r)
#pragma unroll
    for (int c = 0; c < HeadSize / 32; ++c)
      *reinterpret_cast<float4*>(staged + (first + r * tuning::row_gap) * tuning::stride + 32 * c +
                                 4 * lane) = {sums[r][c][0], sums[r][c][1], sums[r][c][2],
                                              sums[r][c][3]};
  __syncwarp();
#pragma unroll 1
  for (int row = first; row < rows; row += tuning::row_gap)
#pragma unroll 1
    for (int column = lane; column < head_dim; column += tuning::lanes) {
      float* const at = to + row * row_stride + column;
      const float value = staged[row * tuning::stride + column];
      *at = mode == into::accumulate ? *at + value : value;
    }
}

// Value of the largest, or the sum, over the eight threads of a row.
template <class Operation>
__device__ float attention_over_row(float value, Operation operation) {
#pragma unroll
  for (int other = 1; other < attention_float_tuning<32>::lanes; other *= 2)
    value = operation(value, __shfl_xor_sync(0xffffffffU, value, other));
  return value;
}

// q, out [N, query width], k, v [N, kv width], logsumexp [query_heads, N]. A block: one query head,
// the tiles of one slot.
template <int HeadSize>
__global__ void __launch_bounds__(attention_float_tuning<HeadSize>::threads, 2)
    attention_forward_float_kernel(attention_problem problem, matrix_view<const float> q,
                                   matrix_view<const float> k, matrix_view<const float> v,
                                   matrix_view<float> out, float* logsumexp) {
  using tuning = attention_float_tuning<HeadSize>;
  extern __shared__ uint4 attention_shared[];  // 16-byte pieces
  __shared__ attention_block_walk::storage walk_storage;
  float* const q_tile = reinterpret_cast<float*>(attention_shared);   // [tile][stride]
  float* const k_tile = q_tile + tuning::tile * tuning::stride;       // [step][stride]
  float* const v_tile = k_tile + tuning::step * tuning::stride;       // [step][stride]
  float* const weight_tile = v_tile + tuning::step * tuning::stride;  // [tile][weight_stride]
  const int row = static_cast<int>(threadIdx.x) / tuning::lanes;
  const int lane = static_cast<int>(threadIdx.x) % tuning::lanes;
  const int head = static_cast<int>(blockIdx.x % static_cast<unsigned>(problem.query_heads));
  const std::int64_t slot = problem.slots - 1 - blockIdx.x / problem.query_heads;
  const attention_columns of_q = attention_head_of(q, head, problem.head_dim);
  const attention_columns of_k = attention_head_of(k, head / problem.group(), problem.head_dim);
  const attention_columns of_v = attention_head_of(v, head / problem.group(), problem.head_dim);

  attention_block_walk walk(walk_storage, problem.documents, slot, tuning::tile);
  for (attention_tile at; walk.next(at);) {
    const int rows = static_cast<int>(at.end - at.begin);
    const int first = static_cast<int>(at.begin - at.segment_begin);
    attention_load_rows<tuning::tile, HeadSize>(of_q, at.begin, rows, problem.head_dim, q_tile);
    float maximum[4], sum[4], output[4][HeadSize / 32][4] = {};
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      maximum[r] = -INFINITY;
      sum[r] = 0.0F;
    }
    for (int key = 0; key < first + rows; key += tuning::step) {
      __syncthreads();  // the keys of the last step have been read
      const std::int64_t token = at.segment_begin + key;
      const int valid = first + rows - key;
      attention_load_rows<tuning::step, HeadSize>(of_k, token, valid, problem.head_dim, k_tile);
      attention_load_rows<tuning::step, HeadSize>(of_v, token, valid, problem.head_dim, v_tile);
      __syncthreads();
      float scores[4][4];  // of queries row + 16 r and keys key + lane + 8 c
      attention_float_scores<HeadSize>(q_tile, k_tile, problem.head_dim, scores);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int visible = first + row + r * tuning::row_gap - key;  // columns up to this one
        // The online softmax: what was summed before is scaled to the new maximum. At first that
        // factor is exp(-infinity) as exponential() has it, 1.6e-38 of a sum of zero.
        float largest = -INFINITY;
#pragma unroll
        for (int c = 0; c < 4; ++c)
          if (lane + c * tuning::lanes <= visible) largest = fmaxf(largest, scores[r][c]);
        largest = attention_over_row(largest, [](float a, float b) { return fmaxf(a, b); });
        const float reference = fmaxf(maximum[r], largest * problem.scale);
        const float decay = exponential(maximum[r] - reference);
        maximum[r] = reference;
        sum[r] *= decay;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const float weight = attention_weight(scores[r][c], problem.scale, reference);
          scores[r][c] = lane + c * tuning::lanes <= visible ? weight : 0.0F;
          sum[r] += scores[r][c];
        }
#pragma unroll
        for (int c = 0; c < HeadSize / 32; ++c)
#pragma unroll
          for (int e = 0; e < 4; ++e) output[r][c][e] *= decay;
      }
      __syncwarp();  // the weights of the last step have been read
      attention_float_share<HeadSize>(scores, weight_tile);
      __syncwarp();
      attention_float_weighted<HeadSize>(weight_tile, v_tile, output);
    }
    // Eight threads hold a row: together its sum, each its columns of the output.
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const float total = attention_over_row(sum[r], row_plus{});
      const int query = row + r * tuning::row_gap;
      if (query >= rows) continue;
      const float inverse = 1.0F / total;
      float* const to = out.row(at.begin + query) + head * problem.head_dim;
#pragma unroll
      for (int c = 0; c < HeadSize / 32; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (32 * c + 4 * lane + e < problem.head_dim)
            to[32 * c + 4 * lane + e] = output[r][c][e] * inverse;
      if (lane == 0) logsumexp[head * problem.tokens + at.begin + query] = maximum[r] + logf(total);
    }
  }
}

/// The operands of the float backward pass, as the caller has them, and rows [query_heads, N].
struct attention_operands {
  matrix_view<const float> q, k, v, dout;
  const attention_row* rows;
};

// One body for both kernels, as in attention_backward.cuh: X are keys, met by the queries at or
// after them of every head of the group, or X are queries, which meet the keys up to them.
template <int HeadSize, bool OfKeys>
__global__ void __launch_bounds__(attention_float_tuning<HeadSize>::threads, 2)
    attention_backward_float_kernel(attention_problem problem, attention_operands operands,
                                    attention_gradients gradients) {
  using tuning = attention_float_tuning<HeadSize>;
  extern __shared__ uint4 attention_shared[];  // 16-byte pieces
  __shared__ attention_block_walk::storage walk_storage;
  float* const x0_tile = reinterpret_cast<float*>(attention_shared);   // [tile][stride]
  float* const x1_tile = x0_tile + tuning::tile * tuning::stride;      // [tile][stride]
  float* const y0_tile = x1_tile + tuning::tile * tuning::stride;      // [step][stride]
  float* const y1_tile = y0_tile + tuning::step * tuning::stride;      // [step][stride]
  float* const weight_tile = y1_tile + tuning::step * tuning::stride;  // [tile][weight_stride]
  float* const gradient_tile = weight_tile + tuning::tile * tuning::weight_stride;
  auto* const met_rows =
      reinterpret_cast<attention_row*>(gradient_tile + tuning::tile * tuning::weight_stride);
  const int row = static_cast<int>(threadIdx.x) / tuning::lanes;
  const int lane = static_cast<int>(threadIdx.x) % tuning::lanes;
  const int heads = OfKeys ? problem.kv_heads : problem.query_heads;
  const int head = static_cast<int>(blockIdx.x % static_cast<unsigned>(heads));
  const std::int64_t place = blockIdx.x / static_cast<unsigned>(heads);
  const std::int64_t slot = OfKeys ? place : problem.slots - 1 - place;
  const int size = problem.head_dim;
  const attention_columns x0 = attention_head_of(OfKeys ? operands.k : operands.q, head, size);
  const attention_columns x1 = attention_head_of(OfKeys ? operands.v : operands.dout, head, size);

  attention_block_walk walk(walk_storage, problem.documents, slot, tuning::tile);
  for (attention_tile at; walk.next(at);) {
    const int rows = static_cast<int>(at.end - at.begin);
    const int first = static_cast<int>(at.begin - at.segment_begin);
    // Positions of Y that are met.
    const int begin = OfKeys ? first : 0;
    const int end = OfKeys ? static_cast<int>(at.segment_end - at.segment_begin) : first + rows;
    attention_load_rows<tuning::tile, HeadSize>(x0, at.begin, rows, size, x0_tile);
    attention_load_rows<tuning::tile, HeadSize>(x1, at.begin, rows, size, x1_tile);
    attention_row own_rows[4] = {};  // where X are queries
    if constexpr (!OfKeys)
#pragma unroll
      for (int r = 0; r < 4; ++r)
        if (row + r * tuning::row_gap < rows)
          own_rows[r] = operands.rows[head * problem.tokens + at.begin + row + r * tuning::row_gap];
    float of_weights[4][HeadSize / 32][4] = {}, of_scores[4][HeadSize / 32][4] = {};
    const int group = OfKeys ? problem.group() : 1;
    for (int member = 0; member < group; ++member) {
      const int met_head = OfKeys ? head * group + member : head / problem.group();
      const attention_columns y0 =
          attention_head_of(OfKeys ? operands.q : operands.k, met_head, size);
      const attention_columns y1 =
          attention_head_of(OfKeys ? operands.dout : operands.v, met_head, size);
      for (int met = begin; met < end; met += tuning::step) {
        __syncthreads();  // the rows of the last step have been read
        const std::int64_t token = at.segment_begin + met;
        attention_load_rows<tuning::step, HeadSize>(y0, token, end - met, size, y0_tile);
        attention_load_rows<tuning::step, HeadSize>(y1, token, end - met, size, y1_tile);
        const int column = static_cast<int>(threadIdx.x);
        if (OfKeys && column < tuning::step)
          met_rows[column] = column < end - met
                                 ? operands.rows[met_head * problem.tokens + token + column]
                                 : attention_row{};
        __syncthreads();
        float scores[4][4], weight_gradients[4][4];  // S or S^T, dP or dP^T
        attention_float_scores<HeadSize>(x0_tile, y0_tile, size, scores);
        attention_float_scores<HeadSize>(x1_tile, y1_tile, size, weight_gradients);
#pragma unroll
        for (int r = 0; r < 4; ++r)
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const int x = first + row + r * tuning::row_gap;
            const int y = met + lane + c * tuning::lanes;
            const attention_row of_query =
                OfKeys ? met_rows[lane + c * tuning::lanes] : own_rows[r];
            const float weight = attention_weight(scores[r][c], problem.scale, of_query.reference);
            const float gradient = attention_score_gradient(weight, weight_gradients[r][c],
                                                            of_query.delta, problem.scale);
            // Chosen, not multiplied: what a masked pair computed may be NaN.
            const bool visible = OfKeys ? x <= y && y < end : y <= x;
            scores[r][c] = visible ? weight : 0.0F;
            weight_gradients[r][c] = visible ? gradient : 0.0F;
          }
        __syncwarp();  // the weights of the last step have been read
        if constexpr (OfKeys) attention_float_share<HeadSize>(scores, weight_tile);
        attention_float_share<HeadSize>(weight_gradients, gradient_tile);
        __syncwarp();
        if constexpr (OfKeys) attention_float_weighted<HeadSize>(weight_tile, y1_tile, of_weights);
        attention_float_weighted<HeadSize>(gradient_tile, y0_tile, of_scores);
      }
    }
    const auto store = [&](const float(&sums)[4][HeadSize / 32][4], const matrix_view<float>& to) {
      attention_float_store<HeadSize>(sums, x0_tile, rows, size, gradients.mode,
                                      to.row(at.begin) + head * size, to.row_stride);
    };
    if constexpr (OfKeys) store(of_weights, gradients.of_weights);
    store(of_scores, gradients.of_scores);
  }
}

}  // namespace cuda_detail
}  // namespace cuda_backend
}  // namespace smelt
