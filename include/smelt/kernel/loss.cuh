// SPDX-License-Identifier: Apache-2.0
//
// Output head and cross-entropy on CUDA, chunked over the vocabulary; formulas, shapes and how
// FLOPs are counted are those of op/loss.hpp.
//
//   first walk    per chunk of c <= head_chunk entries: logits by product(), then a block per token
//                 extends the row's (maximum, sum of exponentials) and picks the target's logit
//   loss          a thread per token, a block per 256, one block over the sums of all: an order
//                 that is fixed. maximum - target first: both may be huge, their difference is
//                 exact
//   second walk   logits again where there are several chunks, then dlogits in Compute, a block per
//                 token, and the two products of the gradient
//
// FLOPs: 6 N H V by cuBLAS and 2 N H V more for several chunks. Bytes beside the products: N V
// logits of 4 are read twice and dlogits of 2 or 4 written once, about 6 and 9 FLOPs each: bound by
// memory, and below the products as soon as H is more than a few hundred. A row of a chunk is held
// in registers, so it is read once a walk. Limits: chunks of at most head_chunk entries.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "smelt/exec/cuda/launch.cuh"
#include "smelt/exec/cuda/matmul.cuh"
#include "smelt/kernel/row_reduce.cuh"
#include "smelt/op/loss.hpp"

namespace smelt {
inline namespace cuda_backend {

namespace cuda_detail {

struct head_loss_tuning {
  static constexpr int logits_per_thread = head_chunk / row_block_threads;
  // A data member, since a device function may not call numeric_limits.
  static constexpr float lowest = -std::numeric_limits<float>::infinity();
};
static_assert(head_chunk % row_block_threads == 0,
              "smelt: head_chunk is a multiple of the block, so that a row fits its registers");

// logits [N, c] of entries [first, first + c) of the vocabulary; a block per token extends maximum
// [N] and sum [N], which it begins where first is 0.
template <class Real>
__global__ void __launch_bounds__(row_block_threads)
    head_extend_kernel(matrix_view<const Real> logits, std::int64_t first,
                       const std::int32_t* targets, Real* maximum, Real* sum, Real* target_logit) {
  using rows = row_reduce<row_block_threads>;
  __shared__ typename rows::storage shared;
  rows reduce(shared);
  constexpr Real lowest = head_loss_tuning::lowest;
  constexpr int per_thread = head_loss_tuning::logits_per_thread;
  const std::int64_t n = blockIdx.x;
  const std::int64_t target = targets[n];
  if (target < 0) {  // does not count; what is left here is what the host leaves
    if (first == 0 && threadIdx.x == 0) {
      maximum[n] = lowest;
      sum[n] = 0;
    }
    return;
  }
  const Real* row = logits.row(n);
  // The chunk's row, one element in 256 to a thread; what the row lacks can be no maximum.
  Real logit[per_thread];
  Real top = lowest;
  for (int i = 0; i < per_thread; ++i) {
    const std::int64_t j = i * row_block_threads + reduce.lane();
    logit[i] = j < logits.columns ? row[j] : lowest;
    top = row_larger{}(top, logit[i]);
  }
  const Real before = first == 0 ? lowest : maximum[n];
  top = row_larger{}(before, reduce(top, row_larger{}));
  // As an online softmax: what was summed under the old maximum is moved to the new one.
  Real added = 0;
  for (int i = 0; i < per_thread; ++i)
    if (i * row_block_threads + reduce.lane() < logits.columns)
      added += exponential(logit[i] - top);
  added = reduce.sum(added);
  if (threadIdx.x != 0) return;
  sum[n] = (first == 0 ? Real(0) : sum[n] * exponential(before - top)) + added;
  maximum[n] = top;
  const std::int64_t hit = target - first;
  if (hit >= 0 && hit < logits.columns) target_logit[n] = row[hit];
}

// parts[block] = loss of the block's tokens.
template <class Real>
__global__ void __launch_bounds__(row_block_threads)
    head_loss_parts_kernel(const std::int32_t* targets, const Real* maximum, const Real* sum,
                           const Real* target_logit, std::int64_t tokens, Real* parts) {
  __shared__ typename row_reduce<row_block_threads>::storage shared;
  row_reduce<row_block_threads> reduce(shared);
  const std::int64_t n = std::int64_t{blockIdx.x} * row_block_threads + threadIdx.x;
  const bool counts = n < tokens && targets[n] >= 0;
  const Real loss = counts ? (maximum[n] - target_logit[n]) + std::log(sum[n]) : Real(0);
  const Real total = reduce.sum(loss);
  if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

// One block: *loss_sum += the sum over parts [count].
template <class Real>
__global__ void __launch_bounds__(row_block_threads)
    head_loss_total_kernel(const Real* parts, std::int64_t count, Real* loss_sum) {
  __shared__ typename row_reduce<row_block_threads>::storage shared;
  row_reduce<row_block_threads> reduce(shared);
  Real part = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += row_block_threads) part += parts[i];
  const Real total = reduce.sum(part);
  if (threadIdx.x == 0) *loss_sum += total;
}

// dlogits [N, c], which may be the memory of logits: a thread writes what it alone has read.
template <class Compute, class Real>
__global__ void __launch_bounds__(row_block_threads)
    head_gradient_kernel(matrix_view<const Real> logits, std::int64_t first,
                         const std::int32_t* targets, const Real* scale, const Real* maximum,
                         const Real* sum, matrix_view<Compute> dlogits) {
  const std::int64_t n = blockIdx.x;
  const std::int64_t target = targets[n];
  const Real* row = logits.row(n);
  Compute* out = dlogits.row(n);
  // Zeros and not what stands there: the products after it read every row.
  if (target < 0) {
    for (std::int64_t j = threadIdx.x; j < logits.columns; j += row_block_threads)
      out[j] = static_cast<Compute>(Real(0));
    return;
  }
  const Real top = maximum[n];
  const Real factor = *scale / sum[n];
  const std::int64_t hit = target - first;
#pragma unroll 4
  for (std::int64_t j = threadIdx.x; j < logits.columns; j += row_block_threads)
    out[j] = static_cast<Compute>(head_gradient(row[j], top, factor, j == hit ? *scale : Real(0)));
}

// Tags of scratch memory.
struct head_loss_parts;

}  // namespace cuda_detail

/// As the host's: cross-entropy (nats) summed over the positions that count, added to *loss_sum.
/// With a gradient dx [N, H] is overwritten and dweights [V, H] added to, both for the sum times
/// *scale; a null scale means no gradient. All pointers are device memory.
template <class Compute>
void head_loss(const cuda<Compute>& run, matrix_view<const Compute> x,
               matrix_view<const Compute> weights, const std::int32_t* targets, const float* scale,
               const head_workspace<Compute>& work, matrix_view<float> dx,
               matrix_view<float> dweights, float* loss_sum) {
  const std::int64_t tokens = x.rows;
  const std::int64_t vocabulary = weights.rows;
  const std::int64_t chunk = std::min(vocabulary, head_chunk);
  if (tokens == 0) return;  // no loss, and nothing to add to any gradient

  const auto logits_of = [&](std::int64_t first, std::int64_t last) {
    const matrix_view<float> logits(work.logits, tokens, last - first);
    product(run, x, transposed(weights.rows_between(first, last)), logits);
    return logits;
  };
  for (std::int64_t first = 0; first < vocabulary; first += chunk) {
    const matrix_view<float> logits = logits_of(first, std::min(vocabulary, first + chunk));
    launch(run, {"head_loss", {tokens, logits.columns}}, {tokens, row_block_threads},
           cuda_detail::head_extend_kernel<float>, logits, first, targets, work.maximum, work.sum,
           work.target_logit);
  }
  // The first walk is over: the three numbers of every row are those of the whole vocabulary.
  const std::int64_t blocks = blocks_for(tokens, row_block_threads);
  float* parts = device_scratch<float, cuda_detail::head_loss_parts>(run, blocks);
  launch(run, {"head_loss: parts", {tokens}}, {blocks, row_block_threads},
         cuda_detail::head_loss_parts_kernel<float>, targets, work.maximum, work.sum,
         work.target_logit, tokens, parts);
  launch(run, {"head_loss: total", {blocks}}, {1, row_block_threads},
         cuda_detail::head_loss_total_kernel<float>, parts, blocks, loss_sum);
  if (scale == nullptr) return;

  for (std::int64_t first = 0; first < vocabulary; first += chunk) {
    const std::int64_t last = std::min(vocabulary, first + chunk);
    matrix_view<float> logits(work.logits, tokens, last - first);
    if (vocabulary > chunk) {
      logits = logits_of(first, last);
      // logits_of counted model FLOPs once more; they belong to the recomputed ones.
      run.recount_product(tokens, last - first, x.columns);
    }
    const matrix_view<Compute> dlogits(work.dlogits, tokens, last - first);
    launch(run, {"head_loss: dlogits", {tokens, last - first}}, {tokens, row_block_threads},
           cuda_detail::head_gradient_kernel<Compute, float>, logits, first, targets, scale,
           work.maximum, work.sum, dlogits);
    product(run, dlogits, weights.rows_between(first, last), dx,
            first == 0 ? into::overwrite : into::accumulate);
    product(run, transposed(dlogits), x, dweights.rows_between(first, last), into::accumulate);
  }
}

}  // namespace cuda_backend
}  // namespace smelt
