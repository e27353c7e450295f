// SPDX-License-Identifier: Apache-2.0
//
// The router's choice on CUDA; formulas and shapes are those of op/route.hpp.
//
//   forward    a warp per token. Lane l has the experts l, l + 32, ...: in registers up to 512 of
//              them, beyond that in the row itself, so no number of experts is too many.
//              Softmax: two warp reductions. The choice: top_k rounds, each one warp maximum over
//              keys (probability, expert) that lie below the key chosen before. Under a bias the
//              choice comes first, by keys (logit + bias, expert), and the logits are read again
//              for the softmax, which so has the same bits with a bias as without.
//   backward   a warp per token: two or three sums by the warp, then the row.
//
// Keys are distinct and totally ordered (the larger probability, then the lower expert; NaN below
// all), so the chosen ones are distinct whatever the row holds, and no lane keeps a list of those
// that are gone. The order is that of top_k_of_row on the same probabilities; these differ from the
// host's in the last bits, since sums run in another order and products are fused with additions.
//
// Bytes: forward 8 an element (N E), and 8 more from cache under a bias; backward 8, and 4 more
// from cache under a balancing loss.
// Instructions of the choice: top_k rounds of about 7 an element of a lane and 30 for a reduction,
// for top_k 8 about 1.75 E + 240 a token. On 132 multiprocessors at 1.7 GHz and 3.35 TB/s that is
// 0.44 E + 60 clocks beside 0.54 E for the bytes: of the same size, so neither bound is far.
//
// Registers (sm_90): 32 up to 128 experts, 57 up to 320, 94 up to 512, so 64, 32 and 16 warps on a
// multiprocessor; the last with 16 loads of 128 bytes each under way, 32 KiB, where 25 bytes per ns
// and 700 ns of latency ask for 18. Under a bias 32, 56 and 72: 64, 32 and 24 warps.
//
// Limits: E < 2^31; top_k rounds, so a top_k of hundreds is slow, though right.
#pragma once

#include <cub/warp/warp_reduce.cuh>

#include <cstdint>
#include <type_traits>

#include "smelt/exec/cuda/launch.cuh"
#include "smelt/kernel/row_reduce.cuh"
#include "smelt/op/route.hpp"

namespace smelt {
inline namespace cuda_backend {

namespace cuda_detail {

struct route_tuning {
  // Experts of one lane that are kept in registers; each is a kernel of its own.
  static constexpr int few_items = 4;    // up to 128 experts
  static constexpr int some_items = 10;  // up to 320
  static constexpr int most_items = 16;  // up to 512

  // Blocks of a multiprocessor that a kernel's registers must leave room for. Under a bias ptxas
  // would aim too high and spill; without one it needs no word.
  static constexpr int least_blocks(int items, bool biased) {
    return !biased ? 0 : items == most_items ? 2 : items == some_items ? 4 : 8;
  }
};

// One lane's experts of a row; Items 0 leaves them in memory. Index is what a body's expert is:
// with 64 bits addresses are one register and constants, which counts where a row is read more than
// once.
template <int Items, class Index>
struct lane_row {
  static_assert(Items >= 0 && Items <= 32, "smelt: a lane's experts would not fit its registers");
  float* row;
  int experts;
  float kept[Items > 0 ? Items : 1];

  // body(expert, value) for each of them, ascending.
  template <class Body>
  __device__ void each(Body&& body) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if constexpr (Items > 0) {
#pragma unroll
      for (int j = 0; j < Items; ++j)
        if (lane + 32 * j < experts) body(Index{lane} + 32 * j, kept[j]);
    } else {
      for (int e = lane; e < experts; e += 32) body(Index{e}, row[e]);
    }
  }
};

// Orders (probability, expert) as top_k_of_row does. The bits of a float that is not negative order
// as it does; NaN comes below them. Never 0, which stands for no key.
SMELT_HD inline std::uint64_t choice_key(float probability, int expert) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, probability);
  const std::uint32_t rank = probability >= 0.0F ? bits + 1U : 0U;
  return std::uint64_t{rank} << 32 | ~static_cast<std::uint32_t>(expert);
}
SMELT_HD inline int expert_of_key(std::uint64_t key) {
  return static_cast<int>(~static_cast<std::uint32_t>(key));
}

// The upper half of a key for scores of any sign: -0 ties with 0, and NaN with -Inf, as they do in
// top_k_of_row. Never 0.
SMELT_HD inline std::uint32_t score_rank(float score) {
  const float number = score == score ? score + 0.0F : below_every_number<float>;
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, number);
  const std::uint32_t sign = std::uint32_t{1} << 31;
  return bits < sign ? bits | sign : ~bits;
}
SMELT_HD inline std::uint64_t score_key(std::uint32_t rank, int expert) {
  return std::uint64_t{rank} << 32 | ~static_cast<std::uint32_t>(expert);
}

struct larger_key {
  __device__ std::uint64_t operator()(std::uint64_t a, std::uint64_t b) const {
    return a < b ? b : a;
  }
};

// A whole warp leaves together where its token is past the end: no barrier of the block follows.
// bias [E] is read where Biased.
template <int Items, bool Biased>
__global__ void __launch_bounds__(row_block_threads, route_tuning::least_blocks(Items, Biased))
    route_forward_kernel(matrix_view<const float> logits, std::int64_t top_k, bool renormalize,
                         matrix_view<float> probabilities, std::int32_t* chosen, float* weights,
                         float* logsumexp, const float* bias) {
  using key_reduce = cub::WarpReduce<std::uint64_t>;
  __shared__ typename row_reduce<32>::storage shared;
  __shared__ typename key_reduce::TempStorage shared_keys[row_reduce<32>::rows_per_block];
  row_reduce<32> reduce(shared);
  const int lane = reduce.lane();
  const std::int64_t n = std::int64_t{blockIdx.x} * reduce.rows_per_block + reduce.row();
  if (n >= logits.rows) return;
  const float* from = logits.row(n);
  float* row = probabilities.row(n);
  lane_row<Items, std::conditional_t<Biased, std::int64_t, int>> mine{
      row, static_cast<int>(logits.columns), {}};
  std::int32_t* choices = chosen + n * top_k;
  float* of_choices = weights + n * top_k;

  // Round k: the largest key below the last one. Lane k % 32 takes it.
  const auto choose = [&](auto&& key_of, auto&& take) {
    std::uint64_t last = ~std::uint64_t{0};
    for (std::int64_t k = 0; k < top_k; ++k) {
      std::uint64_t best = 0;
      mine.each([&](auto e, float& kept) {
        const std::uint64_t key = key_of(e, kept);
        best = key < last && key > best ? key : best;
      });
      best = key_reduce(shared_keys[reduce.row()]).Reduce(best, larger_key{});
      last = __shfl_sync(0xffffffffU, best, 0);
      if (lane == k % 32) take(k, expert_of_key(last));
    }
  };
  if constexpr (Biased) {
    const auto rank_of = [&](auto e) { return score_rank(from[e] + bias[e]); };
    // Kept are the ranks, so that a round only compares; where nothing is kept, the row may be the
    // logits' memory, and is not yet read.
    if constexpr (Items > 0)
      mine.each([&](auto e, float& kept) { kept = __uint_as_float(rank_of(e)); });
    choose(
        [&](auto e, float& kept) {
          return score_key(Items > 0 ? __float_as_uint(kept) : rank_of(e), static_cast<int>(e));
        },
        [&](std::int64_t k, int expert) { choices[k] = expert; });
  }

  // Softmax. In place is allowed: a lane writes only what it alone reads.
  float largest = below_every_number<float>;
  mine.each([&](auto e, float& p) {
    p = from[e];
    largest = row_larger{}(largest, p);
  });
  largest = reduce(largest, row_larger{});
  float sum = 0.0F;
  mine.each([&](auto, float& p) {
    p = exponential(p - largest);
    sum += p;
  });
  sum = reduce.sum(sum);
  const float scale = 1.0F / sum;
  mine.each([&](auto e, float& p) {
    p *= scale;
    if (Items > 0) row[e] = p;
  });
  if (lane == 0) logsumexp[n] = largest + logf(sum);
  __syncwarp();  // from here on a lane reads what others wrote to the row

  float chosen_sum = 0.0F;
  const auto weigh = [&](std::int64_t k, int expert) {
    of_choices[k] = row[expert];
    chosen_sum += of_choices[k];
  };
  if constexpr (Biased) {
    for (std::int64_t k = lane; k < top_k; k += 32) weigh(k, choices[k]);
  } else {
    choose([](auto e, float& p) { return choice_key(p, static_cast<int>(e)); },
           [&](std::int64_t k, int expert) {
             choices[k] = expert;
             weigh(k, expert);
           });
  }
  if (!renormalize) return;
  const float share = 1.0F / reduce.sum(chosen_sum);
  for (std::int64_t k = lane; k < top_k; k += 32) of_choices[k] *= share;
}

// The kernel for so many experts: as many of a lane's in registers as it has, or none.
template <bool Biased>
auto route_forward_kernel_for(std::int64_t experts) {
  using tuning = route_tuning;
  if (experts <= 32 * tuning::few_items) return route_forward_kernel<tuning::few_items, Biased>;
  if (experts <= 32 * tuning::some_items) return route_forward_kernel<tuning::some_items, Biased>;
  if (experts <= 32 * tuning::most_items) return route_forward_kernel<tuning::most_items, Biased>;
  return route_forward_kernel<0, Biased>;
}

// A template, as every kernel of a header is: a plain one would be defined in each file anew.
template <class Real>
__global__ void __launch_bounds__(row_block_threads)
    route_backward_kernel(matrix_view<const Real> probabilities, const std::int32_t* chosen,
                          const Real* weights, std::int64_t top_k, bool renormalize,
                          const Real* dweights, router_gradient<Real> auxiliary,
                          matrix_view<Real> dlogits) {
  __shared__ typename row_reduce<32>::storage shared;
  row_reduce<32> reduce(shared);
  const std::int64_t n = std::int64_t{blockIdx.x} * reduce.rows_per_block + reduce.row();
  if (n >= probabilities.rows) return;  // the whole warp
  const std::int64_t experts = probabilities.columns;
  const Real* p = probabilities.row(n);
  const std::int32_t* choices = chosen + n * top_k;
  const Real* dw = dweights + n * top_k;
  const Real* dbalance = auxiliary.dprobabilities;
  if (dbalance != nullptr) dbalance += n / auxiliary.group_tokens * experts;
  const Real z = auxiliary.z_factor == Real(0)
                     ? Real(0)
                     : Real(2) * auxiliary.z_factor * auxiliary.logsumexp[n];

  Real mean = 0;
  Real scale = 1;
  if (renormalize) {
    Real sum = 0;
    for (std::int64_t k = reduce.lane(); k < top_k; k += 32) {
      mean += dw[k] * weights[n * top_k + k];
      sum += p[choices[k]];
    }
    mean = reduce.sum(mean);
    scale = Real(1) / reduce.sum(sum);
  }
  Real inner = 0;  // sum_i p_i dp_i
  for (std::int64_t k = reduce.lane(); k < top_k; k += 32)
    inner += p[choices[k]] * route_choice_gradient(dw[k], mean, scale);
  if (dbalance != nullptr)
    for (std::int64_t e = reduce.lane(); e < experts; e += 32) inner += p[e] * dbalance[e];
  inner = reduce.sum(inner);

  Real* to = dlogits.row(n);
  for (std::int64_t e = reduce.lane(); e < experts; e += 32)
    to[e] = route_logit_gradient(p[e], dbalance == nullptr ? Real(0) : dbalance[e], inner, z);
  __syncwarp();  // a choice is added by another lane than wrote its element
  for (std::int64_t k = reduce.lane(); k < top_k; k += 32)
    to[choices[k]] += p[choices[k]] * route_choice_gradient(dw[k], mean, scale);
}

}  // namespace cuda_detail

/// As the host's: logits [N, E] -> probabilities [N, E] (may be the same memory), chosen and
/// weights [N, top_k], logsumexp [N]; choice_bias [E] or null. Precondition: 1 <= top_k <= E <
/// 2^31.
template <class Compute>
void route_forward(const cuda<Compute>& run, matrix_view<const float> logits, std::int64_t top_k,
                   bool renormalize, matrix_view<float> probabilities, std::int32_t* chosen,
                   float* weights, float* logsumexp, const float* choice_bias = nullptr) {
  const auto kernel = choice_bias == nullptr
                          ? cuda_detail::route_forward_kernel_for<false>(logits.columns)
                          : cuda_detail::route_forward_kernel_for<true>(logits.columns);
  launch(run, {"route_forward", {logits.rows, logits.columns, top_k}},
         {blocks_for(logits.rows, row_reduce<32>::rows_per_block), row_block_threads}, kernel,
         logits, top_k, renormalize, probabilities, chosen, weights, logsumexp, choice_bias);
}

/// As the host's: dweights [N, top_k] and the auxiliary losses' share -> dlogits [N, E],
/// overwritten. dlogits must not be the memory of probabilities; a token's choices must be
/// distinct.
template <class Compute>
void route_backward(const cuda<Compute>& run, matrix_view<const float> probabilities,
                    const std::int32_t* chosen, const float* weights, std::int64_t top_k,
                    bool renormalize, const float* dweights,
                    const router_gradient<float>& auxiliary, matrix_view<float> dlogits) {
  launch(run, {"route_backward", {probabilities.rows, probabilities.columns, top_k}},
         {blocks_for(probabilities.rows, row_reduce<32>::rows_per_block), row_block_threads},
         cuda_detail::route_backward_kernel<float>, probabilities, chosen, weights, top_k,
         renormalize, dweights, auxiliary, dlogits);
}

}  // namespace cuda_backend
}  // namespace smelt
