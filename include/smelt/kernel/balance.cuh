// SPDX-License-Identifier: Apache-2.0
//
// The router's auxiliary losses on CUDA; formulas and shapes are those of op/balance.hpp.
//
//   columns   a block per chunk of tokens and 32 experts: sums of probabilities [chunks, E]. Warp w
//             adds the rows w, w + 8, ...; then the eight warps' sums in order.
//   tokens    a block per chunk: how often each expert is chosen [chunks, E], sum of logsumexp^2
//   groups    a block per group and 32 experts: adds up its chunks in the same way, writes
//             dprobabilities, adds to expert_counts (integers), and keeps the part of the loss
//   sums      one block adds up the parts
//   count     count_experts: a block per 2048 assignments counts in shared memory and adds its
//             counts, which are integers, to those of the others
//
// Chunks never cross a group. Every float sum has a fixed order, and at most 48 + G / 2048
// additions follow one another: a relative error below 5e-6 at 65,536 tokens in one group. What is
// the same for all tokens of a call is computed in double on the host and passed as float.
//
// Bytes: 4 N E for the probabilities, once; 4 N top_k + 4 N; tables 16 E per chunk of 256 tokens,
// less than 2 % of it: bound by memory. Groups of a few tokens make as many chunks and more tables.
// Limits: 4 (E + 1) bytes of shared memory.
#pragma once

#include <algorithm>
#include <cstdint>

#include "smelt/exec/cuda/launch.cuh"
#include "smelt/kernel/dispatch.cuh"
#include "smelt/kernel/row_reduce.cuh"
#include "smelt/op/balance.hpp"

namespace smelt {
inline namespace cuda_backend {

namespace cuda_detail {

struct balance_tuning {
  static constexpr std::int64_t chunk_tokens = 256;
  static constexpr std::int64_t chunk_assignments = 2048;  // where nothing but counts is wanted
  static constexpr int columns = 32;  // experts of a block: one a lane, so that a warp reads a row
};
static_assert(balance_tuning::columns == 32, "smelt: a lane has one column");

// How the tokens are cut: groups, each into group_chunks chunks, some perhaps empty.
struct balance_cut {
  std::int64_t tokens, experts, group_tokens, groups, chunk_tokens, group_chunks, tiles;

  balance_cut(std::int64_t tokens_, std::int64_t experts_, const balance_setting& setting)
      : tokens(tokens_),
        experts(experts_),
        // A group may be said to be longer than there are tokens.
        group_tokens(std::min(setting.group_tokens, tokens_)),
        groups(blocks_for(tokens, group_tokens)),
        chunk_tokens(std::min(group_tokens, balance_tuning::chunk_tokens)),
        group_chunks(blocks_for(group_tokens, chunk_tokens)),
        tiles(blocks_for(experts, balance_tuning::columns)) {}

  __device__ std::int64_t begin(std::int64_t chunk) const {
    return chunk / group_chunks * group_tokens + chunk % group_chunks * chunk_tokens;
  }
  __device__ std::int64_t end(std::int64_t chunk) const {
    const std::int64_t group_end = (chunk / group_chunks + 1) * group_tokens;
    return min(min(begin(chunk) + chunk_tokens, group_end), tokens);
  }
  __device__ std::int64_t group_size(std::int64_t group) const {
    return min(group_tokens, tokens - group * group_tokens);
  }
};

// Sum of a column's values over the warps of a block, in order; for the lanes of warp 0.
template <class Sum>
__device__ Sum add_warps(Sum value, Sum (&shared)[row_block_threads]) {
  shared[threadIdx.x] = value;
  __syncthreads();
  Sum sum = 0;
  for (unsigned t = threadIdx.x % 32; t < row_block_threads; t += 32) sum += shared[t];
  return sum;
}

// sums [chunks, E]. Block: chunk * tiles + tile; thread: row of eight, column of 32. A chunk past
// the end of a short group is empty and writes zeros, so that the groups need not know of it.
template <class Real>
__global__ void __launch_bounds__(row_block_threads)
    balance_columns_kernel(matrix_view<const Real> probabilities, balance_cut cut, Real* sums) {
  __shared__ Real shared[row_block_threads];
  const std::int64_t chunk = blockIdx.x / cut.tiles;
  const std::int64_t e = blockIdx.x % cut.tiles * 32 + threadIdx.x % 32;
  const std::int64_t end = cut.end(chunk);
  Real sum = 0;
  if (e < cut.experts)
    for (std::int64_t n = cut.begin(chunk) + threadIdx.x / 32; n < end; n += row_block_threads / 32)
      sum += probabilities.row(n)[e];
  sum = add_warps(sum, shared);
  if (threadIdx.x < 32 && e < cut.experts) sums[chunk * cut.experts + e] = sum;
}

// counts [chunks, E], squares [chunks]. The counts are those of the record and of the fractions;
// the plan of dispatch has them for the whole batch only, not by group.
template <class Real>
__global__ void __launch_bounds__(row_block_threads)
    balance_tokens_kernel(const std::int32_t* chosen, const Real* logsumexp, std::int64_t top_k,
                          balance_cut cut, std::int32_t* counts, Real* squares) {
  extern __shared__ std::int64_t balance_shared[];
  __shared__ typename row_reduce<row_block_threads>::storage shared;
  std::int32_t* bins = reinterpret_cast<std::int32_t*>(balance_shared);  // [E + 1]
  const std::int64_t begin = cut.begin(blockIdx.x);
  const std::int64_t end = cut.end(blockIdx.x);
  count_experts(chosen, begin * top_k, end * top_k, static_cast<int>(cut.experts), bins);
  for (std::int64_t e = threadIdx.x; e < cut.experts; e += row_block_threads)
    counts[blockIdx.x * cut.experts + e] = bins[e];
  Real square = 0;
  for (std::int64_t n = begin + threadIdx.x; n < end; n += row_block_threads)
    square += logsumexp[n] * logsumexp[n];
  square = row_reduce<row_block_threads>(shared).sum(square);
  if (threadIdx.x == 0) squares[blockIdx.x] = square;
}

// counts [E], zero before, summed over all blocks.
template <class Count>
__global__ void __launch_bounds__(row_block_threads)
    count_experts_kernel(const std::int32_t* chosen, std::int64_t assignments, int experts,
                         Count* counts) {
  extern __shared__ std::int64_t balance_shared[];
  std::int32_t* bins = reinterpret_cast<std::int32_t*>(balance_shared);  // [E + 1]
  const std::int64_t begin = blockIdx.x * balance_tuning::chunk_assignments;
  const std::int64_t end = min(begin + balance_tuning::chunk_assignments, assignments);
  count_experts(chosen, begin, end, experts, bins);
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += row_block_threads)
    if (bins[e] != 0) atomicAdd(&counts[e], static_cast<Count>(bins[e]));
}

// losses [groups, tiles]. gradient_scale is share c_b E / (top_k total), loss_scale E / (top_k
// total); both are divided by the group's tokens where these are known: here. Those and the counts
// are group_counts_tokens and group_counts [E] where these are given.
template <class Real>
__global__ void __launch_bounds__(row_block_threads)
    balance_groups_kernel(const Real* sums, const std::int32_t* counts, balance_cut cut,
                          const std::int64_t* group_counts, std::int64_t group_counts_tokens,
                          Real gradient_scale, Real loss_scale, Real* dprobabilities,
                          unsigned long long* expert_counts, Real* losses) {
  __shared__ Real shared_sums[row_block_threads];
  __shared__ unsigned long long shared_counts[row_block_threads];
  __shared__ typename row_reduce<32>::storage shared;
  const std::int64_t group = blockIdx.x / cut.tiles;
  const std::int64_t e = blockIdx.x % cut.tiles * 32 + threadIdx.x % 32;
  Real sum = 0;
  unsigned long long count = 0;
  if (e < cut.experts)
    for (std::int64_t c = threadIdx.x / 32; c < cut.group_chunks; c += row_block_threads / 32) {
      const std::int64_t at = (group * cut.group_chunks + c) * cut.experts + e;
      sum += sums[at];
      count += static_cast<unsigned long long>(counts[at]);
    }
  sum = add_warps(sum, shared_sums);
  count = add_warps(count, shared_counts);
  if (threadIdx.x >= 32) return;  // only warp 0 has the whole sums
  const bool on_ranks = group_counts != nullptr;
  const Real assignments =
      on_ranks && e < cut.experts ? static_cast<Real>(group_counts[e]) : static_cast<Real>(count);
  const Real per_token =
      assignments / static_cast<Real>(on_ranks ? group_counts_tokens : cut.group_size(group));
  // fraction and mean are both per token of the group; one of the two divisions cancels with the
  // group's weight, its tokens over total_tokens.
  if (e < cut.experts) {
    dprobabilities[group * cut.experts + e] = gradient_scale * per_token;
    atomicAdd(&expert_counts[e], count);  // other groups add to it too
  }
  const Real loss = row_reduce<32>(shared).sum(loss_scale * per_token * sum);
  if (threadIdx.x == 0) losses[blockIdx.x] = loss;
}

// One block: what the visit adds to the step's sums, in an order that the tokens do not change.
template <class Real>
__global__ void __launch_bounds__(row_block_threads)
    balance_sums_kernel(const Real* losses, std::int64_t loss_count, const Real* squares,
                        std::int64_t square_count, Real share, Real z_scale,
                        balance_sums<Real>* sums) {
  __shared__ typename row_reduce<row_block_threads>::storage shared;
  row_reduce<row_block_threads> reduce(shared);
  Real loss = 0;
  for (std::int64_t i = threadIdx.x; i < loss_count; i += row_block_threads) loss += losses[i];
  loss = reduce.sum(loss);
  Real square = 0;
  for (std::int64_t i = threadIdx.x; i < square_count; i += row_block_threads) square += squares[i];
  square = reduce.sum(square);
  if (threadIdx.x != 0) return;
  sums->load_balance += share * loss;
  sums->router_z += z_scale * square;
}

struct balance_column_sums;
struct balance_counts;
struct balance_parts;

}  // namespace cuda_detail

/// As the host's: counts [E], overwritten, of chosen [tokens, top_k], on the device; an index that
/// names no expert is not counted.
template <class Compute>
void count_experts(const cuda<Compute>& run, const std::int32_t* chosen, std::int64_t tokens,
                   std::int64_t top_k, std::int64_t experts, std::int64_t* counts) {
  const std::int64_t assignments = tokens * top_k;
  clear(run, counts, experts);
  launch(
      run, {"count_experts", {tokens, experts, top_k}},
      {blocks_for(assignments, cuda_detail::balance_tuning::chunk_assignments), row_block_threads,
       static_cast<int>(experts + 1) * static_cast<int>(sizeof(std::int32_t))},
      cuda_detail::count_experts_kernel<unsigned long long>, chosen, assignments,
      static_cast<int>(experts), reinterpret_cast<unsigned long long*>(counts));
}

/// As the host's, all pointers on the device: dprobabilities [groups, E] overwritten, expert_counts
/// [E] and sums added to. Indices that name no expert are not counted.
template <class Compute>
void balance_forward(const cuda<Compute>& run, matrix_view<const float> probabilities,
                     const std::int32_t* chosen, const float* logsumexp, std::int64_t top_k,
                     const balance_setting& setting, float* dprobabilities,
                     std::int64_t* expert_counts, balance_sums<float>* sums) {
  setting.check_group_counts(probabilities.rows);
  if (probabilities.rows == 0) return;
  const std::int64_t experts = probabilities.columns;
  const cuda_detail::balance_cut cut(probabilities.rows, experts, setting);
  const std::int64_t chunks = cut.groups * cut.group_chunks;
  const std::int64_t losses = cut.groups * cut.tiles;
  // Some tables per chunk; all of them are rewritten by every call.
  float* column_sums =
      device_scratch<float, cuda_detail::balance_column_sums>(run, chunks * experts);
  auto* counts = device_scratch<std::int32_t, cuda_detail::balance_counts>(run, chunks * experts);
  float* parts = device_scratch<float, cuda_detail::balance_parts>(run, losses + chunks);
  const auto start = [&](const char* name, std::int64_t blocks, int shared_bytes, auto kernel,
                         const auto&... arguments) {
    launch(run, {name, {cut.tokens, experts, top_k, cut.groups}},
           {blocks, row_block_threads, shared_bytes}, kernel, arguments...);
  };
  start("balance_forward: columns", chunks * cut.tiles, 0,
        cuda_detail::balance_columns_kernel<float>, probabilities, cut, column_sums);
  start("balance_forward: tokens", chunks,
        static_cast<int>(experts + 1) * static_cast<int>(sizeof(std::int32_t)),
        cuda_detail::balance_tokens_kernel<float>, chosen, logsumexp, top_k, cut, counts,
        parts + losses);
  const double total = static_cast<double>(setting.total_tokens);
  const double loss_scale = static_cast<double>(experts) / (static_cast<double>(top_k) * total);
  start("balance_forward: groups", losses, 0, cuda_detail::balance_groups_kernel<float>,
        column_sums, counts, cut, setting.group_counts, setting.group_counts_tokens,
        static_cast<float>(setting.share * setting.balance_coefficient * loss_scale),
        static_cast<float>(loss_scale), dprobabilities,
        reinterpret_cast<unsigned long long*>(expert_counts), parts);
  start("balance_forward: sums", 1, 0, cuda_detail::balance_sums_kernel<float>, parts, losses,
        parts + losses, chunks, static_cast<float>(setting.share),
        static_cast<float>(setting.share / total), sums);
}

}  // namespace cuda_backend
}  // namespace smelt
