// SPDX-License-Identifier: Apache-2.0
//
// Dispatch and combine on CUDA; the plan is bit for bit that of op/dispatch.hpp.
//
//   count    a block per chunk of assignments: counts[bin, chunk], int32
//   scan     a block per bin: starts[bin, chunk], where a chunk begins within the bin, and totals
//   place    a block per chunk again. It scans the bins' totals for itself, which is cheaper than a
//            launch. Each warp has a consecutive part of the chunk and walks it in order, 32
//            assignments at a time; lanes of one expert find each other by a match, and rank
//            themselves by lane. So slots of an expert ascend by token and choice.
//   combine  a thread per 16 bytes of slots (8 bf16 or 4 floats; single elements where alignment or
//            width forbid it), top_k ascending: a gather, no atomics.
//
// Bins are the experts and one more for indices that name none. Those get the slots past
// offsets[experts], in order, which belong to no expert: nothing is written out of bounds, and
// offsets[experts] < N top_k tells it. (The host throws; a device cannot. Such rows of y are read
// by combine as they are.)
//
// Bytes per assignment: count 4, place 4 + 8 (slot_of) + 8 + 4 (token_of, choice_of) = 28, and
// 24 (E + 1) / 2048 for the tables: 34 at 512 experts, in 3 launches. A device radix sort of pairs
// (expert, index) moves 4 (indices) + 4 (histogram) + 16 a pass, then 4 + 20 for the plan: 48 up to
// 256 experts, 64 up to 65,536, in 5 launches or more. Hence the counting sort.
//
// Bytes of combine: N top_k H slot elements and 8 N top_k, once; 4 N H out (8 where added): bound
// by memory.
//
// Registers (sm_90): 48 where a chunk is placed, and 23 KB of shared memory at 512 experts: 40
// warps on a multiprocessor; 32 in combine: 64.
//
// Limits: 40 (E + 1) bytes of shared memory where a chunk is placed: 4000 experts at compute
// capability 8.0, 5700 at 9.0; beyond, the launch is refused in words.
#pragma once

#include <cub/block/block_scan.cuh>

#include <cstdint>

#include "smelt/exec/cuda/buffer.cuh"
#include "smelt/exec/cuda/launch.cuh"
#include "smelt/op/dispatch.hpp"

namespace smelt {
inline namespace cuda_backend {

namespace cuda_detail {

struct dispatch_tuning {
  static constexpr int warps = 8;     // of a block
  static constexpr int chunk = 2048;  // assignments of a block
  static constexpr int combine_threads = 256;
  static constexpr int combine_bytes = 16;  // one load
};
static_assert(dispatch_tuning::chunk % (32 * dispatch_tuning::warps) == 0,
              "smelt: the warps of a block have equal parts of a chunk, in steps of 32");

// The last bin, `experts`, is that of indices that name no expert.
__device__ inline int expert_bin(std::int32_t index, int experts) {
  return index >= 0 && index < experts ? index : experts;
}

// bins[0, experts] in shared memory = how often chosen[begin, end) names each. For a whole block.
__device__ inline void count_experts(const std::int32_t* chosen, std::int64_t begin,
                                     std::int64_t end, int experts, std::int32_t* bins) {
  for (int e = static_cast<int>(threadIdx.x); e <= experts; e += static_cast<int>(blockDim.x))
    bins[e] = 0;
  __syncthreads();
  // Integers: the order of these additions changes nothing.
  for (std::int64_t i = begin + threadIdx.x; i < end; i += blockDim.x)
    atomicAdd(&bins[expert_bin(chosen[i], experts)], 1);
  __syncthreads();
}

// counts [bins, chunks]; Count is int32.
template <class Count>
__global__ void dispatch_count_kernel(const std::int32_t* chosen, std::int64_t assignments,
                                      int experts, Count* counts) {
  extern __shared__ std::int64_t dispatch_shared[];
  std::int32_t* bins = reinterpret_cast<std::int32_t*>(dispatch_shared);  // [experts + 1]
  const std::int64_t begin = std::int64_t{blockIdx.x} * dispatch_tuning::chunk;
  const std::int64_t end = min(begin + dispatch_tuning::chunk, assignments);
  count_experts(chosen, begin, end, experts, bins);
  for (int e = static_cast<int>(threadIdx.x); e <= experts; e += static_cast<int>(blockDim.x))
    counts[std::int64_t{e} * gridDim.x + blockIdx.x] = bins[e];
}

using dispatch_block_scan = cub::BlockScan<std::int64_t, 32 * dispatch_tuning::warps>;

// store(i, load(0) + ... + load(i - 1)) for i in [0, count); returns the sum of all. For a whole
// block, in 64 bits from any integer.
template <class Load, class Store>
__device__ std::int64_t exclusive_scan(typename dispatch_block_scan::TempStorage& shared,
                                       std::int64_t count, Load&& load, Store&& store) {
  std::int64_t carry = 0;
  for (std::int64_t first = 0; first < count; first += blockDim.x) {
    const std::int64_t i = first + threadIdx.x;
    std::int64_t before = 0, all = 0;
    dispatch_block_scan(shared).ExclusiveSum(i < count ? load(i) : 0, before, all);
    if (i < count) store(i, carry + before);
    carry += all;
    __syncthreads();  // the next round writes to the same shared memory
  }
  return carry;
}

// counts [bins, chunks] -> starts [bins, chunks] within the bin, totals [bins]; block b has bin b.
template <class Count, class Start>
__global__ void __launch_bounds__(32 * dispatch_tuning::warps)
    dispatch_scan_kernel(const Count* counts, std::int64_t chunks, Start* starts, Start* totals) {
  __shared__ typename dispatch_block_scan::TempStorage shared;
  const Count* of_bin = counts + std::int64_t{blockIdx.x} * chunks;
  Start* to = starts + std::int64_t{blockIdx.x} * chunks;
  const Start total = exclusive_scan(
      shared, chunks, [&](std::int64_t c) { return Start{of_bin[c]}; },
      [&](std::int64_t c, std::int64_t start) { to[c] = start; });
  if (threadIdx.x == 0) totals[blockIdx.x] = total;
}

// starts [bins, chunks], totals [bins] -> the plan; block 0 also writes the offsets.
template <class Start>
__global__ void __launch_bounds__(32 * dispatch_tuning::warps)
    dispatch_place_kernel(const std::int32_t* chosen, const Start* starts, const Start* totals,
                          dispatch_plan plan) {
  constexpr int warps = dispatch_tuning::warps;
  constexpr int part = dispatch_tuning::chunk / warps;
  extern __shared__ std::int64_t dispatch_shared[];
  __shared__ typename dispatch_block_scan::TempStorage shared;
  const int experts = static_cast<int>(plan.experts);
  const int bins = experts + 1;
  std::int64_t* first_slot = dispatch_shared;  // [bins]: of this chunk
  // [warps, bins]: first the counts of each warp's part, then where the warp's next slot is, from
  // first_slot on.
  std::int32_t* next = reinterpret_cast<std::int32_t*>(dispatch_shared + bins);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  std::int32_t* mine = next + thread / 32 * bins;

  for (int i = thread; i < warps * bins; i += 32 * warps) next[i] = 0;
  __syncthreads();
  const std::int64_t chunk_begin = std::int64_t{blockIdx.x} * dispatch_tuning::chunk;
  const std::int64_t begin = chunk_begin + thread / 32 * part;
  const std::int64_t end = min(begin + part, plan.slots());
  for (std::int64_t i = begin + lane; i < end; i += 32)
    atomicAdd(&mine[expert_bin(chosen[i], experts)], 1);
  // The start of the last bin is the end of the last expert. The scan's barriers also part the
  // counting above from the reading below.
  exclusive_scan(
      shared, bins, [&](std::int64_t e) { return totals[e]; },
      [&](std::int64_t e, std::int64_t offset) {
        first_slot[e] = offset + starts[e * gridDim.x + blockIdx.x];
        if (blockIdx.x == 0) plan.offsets[e] = offset;
      });
  for (int e = thread; e < bins; e += 32 * warps) {
    std::int32_t sum = 0;
    for (int w = 0; w < warps; ++w) {
      const std::int32_t count = next[w * bins + e];
      next[w * bins + e] = sum;
      sum += count;
    }
  }
  __syncthreads();

  // Division in 32 bits: by token and choice of the chunk's first assignment.
  const std::int64_t chunk_token = chunk_begin / plan.top_k;
  const auto top_k = static_cast<std::uint32_t>(plan.top_k);
  const auto chunk_choice = static_cast<std::uint32_t>(chunk_begin - chunk_token * plan.top_k);
  for (std::int64_t step = begin; step < end; step += 32) {
    const std::int64_t i = step + lane;
    const bool inside = i < end;
    // Lanes past the end keep each other company under a bin that nobody has.
    const int bin = inside ? expert_bin(chosen[i], experts) : -1;
    const std::uint32_t peers = __match_any_sync(0xffffffffU, bin);
    const std::uint32_t before = peers & ((1U << lane) - 1U);
    const std::int32_t place = inside ? mine[bin] : 0;
    __syncwarp();  // all have read before the first of the peers writes
    if (inside && before == 0) mine[bin] = place + __popc(peers);
    __syncwarp();
    if (!inside) continue;
    const std::int64_t slot = first_slot[bin] + place + __popc(before);
    const std::uint32_t from_first = chunk_choice + static_cast<std::uint32_t>(i - chunk_begin);
    plan.slot_of[i] = slot;
    plan.token_of[slot] = chunk_token + from_first / top_k;
    plan.choice_of[slot] = static_cast<std::int32_t>(from_first % top_k);
  }
}

// Count elements moved as one.
template <class T, int Count>
struct alignas(Count == 1 ? alignof(T) : dispatch_tuning::combine_bytes) row_piece {
  T element[Count];
};

// Thread i has piece i % (H / Count) of token i / (H / Count).
template <class Slot, int Count>
__global__ void __launch_bounds__(dispatch_tuning::combine_threads)
    combine_kernel(matrix_view<const Slot> y, const std::int64_t* slot_of, std::int64_t top_k,
                   float scale, into mode, matrix_view<float> out) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t pieces = out.columns / Count;
  const std::int64_t n = i / pieces;
  if (n >= out.rows) return;
  const std::int64_t column = (i - n * pieces) * Count;
  const std::int64_t* slots = slot_of + n * top_k;
  float sum[Count] = {};
#pragma unroll 4
  for (std::int64_t k = 0; k < top_k; ++k) {
    const auto piece = *reinterpret_cast<const row_piece<Slot, Count>*>(y.row(slots[k]) + column);
    for (int j = 0; j < Count; ++j) sum[j] += static_cast<float>(piece.element[j]);
  }
  auto* to = reinterpret_cast<row_piece<float, Count>*>(out.row(n) + column);
  row_piece<float, Count> result;
  if (mode == into::accumulate) {
    result = *to;
    for (int j = 0; j < Count; ++j) result.element[j] += scale * sum[j];
  } else {
    for (int j = 0; j < Count; ++j) result.element[j] = scale * sum[j];
  }
  *to = result;
}

// What travels to experts on other ranks. Thread i has element i of [slots, H]: neighbours read
// neighbours. Bytes: each row once in and once out, and 8 of index a thread, from the cache.
template <class From, class To>
__global__ void __launch_bounds__(dispatch_tuning::combine_threads)
    rows_to_slots_kernel(matrix_view<const From> from, dispatch_plan plan, matrix_view<To> to) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t slot = i / to.columns;
  if (slot >= to.rows) return;
  const std::int64_t column = i - slot * to.columns;
  to.row(slot)[column] = static_cast<To>(from.row(plan.token_of[slot])[column]);
}

// A thread per slot: weights in slot order, or back.
template <bool ToSlots, class Real>
__global__ void __launch_bounds__(dispatch_tuning::combine_threads)
    weights_of_slots_kernel(const Real* from, dispatch_plan plan, Real* to) {
  const std::int64_t slot = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (slot >= plan.slots()) return;
  if constexpr (ToSlots)
    to[slot] = from[plan.assignment(slot)];
  else
    to[plan.assignment(slot)] = from[slot];
}

// A thread per slot; Index is int64.
template <class Index>
__global__ void __launch_bounds__(dispatch_tuning::combine_threads)
    identity_dispatch_kernel(dispatch_plan plan) {
  const Index slot = Index{blockIdx.x} * blockDim.x + threadIdx.x;
  if (slot >= plan.slots()) return;
  plan.slot_of[slot] = plan.token_of[slot] = slot;
  plan.choice_of[slot] = 0;
}

// Whether every row can be moved in pieces of `count` elements, each aligned to 16 bytes.
template <class T>
bool in_pieces(const matrix_view<T>& view, int count) {
  constexpr std::int64_t bytes = dispatch_tuning::combine_bytes;
  return view.columns % count == 0 &&
         view.row_stride * static_cast<std::int64_t>(sizeof(T)) % bytes == 0 &&
         reinterpret_cast<std::uintptr_t>(view.data) % std::uintptr_t{bytes} == 0;
}

struct dispatch_counts;
struct dispatch_starts;

}  // namespace cuda_detail

/// As the host's: chosen [tokens, top_k] -> plan. The plan's sizes are read, its arrays (device
/// memory) are written. An index that names no expert gets a slot past offsets[experts].
template <class Compute>
void dispatch_forward(const cuda<Compute>& run, const std::int32_t* chosen,
                      const dispatch_plan& plan) {
  using tuning = cuda_detail::dispatch_tuning;
  if (plan.slots() == 0) {
    clear(run, plan.offsets, plan.experts + 1);
    return;
  }
  constexpr int threads = 32 * tuning::warps;
  const int experts = static_cast<int>(plan.experts);
  const int bins = experts + 1;
  const std::int64_t chunks = blocks_for(plan.slots(), tuning::chunk);
  auto* counts = device_scratch<std::int32_t, cuda_detail::dispatch_counts>(run, bins * chunks);
  auto* starts =
      device_scratch<std::int64_t, cuda_detail::dispatch_starts>(run, bins * chunks + bins);
  std::int64_t* totals = starts + bins * chunks;
  const auto start = [&](const char* name, std::int64_t blocks, int shared_bytes, auto kernel,
                         const auto&... arguments) {
    launch(run, {name, {plan.tokens, plan.experts, plan.top_k}}, {blocks, threads, shared_bytes},
           kernel, arguments...);
  };
  constexpr int bytes_of_count = static_cast<int>(sizeof(std::int32_t));
  constexpr int bytes_of_bin =
      static_cast<int>(sizeof(std::int64_t)) + tuning::warps * bytes_of_count;
  start("dispatch_forward: count", chunks, bins * bytes_of_count,
        cuda_detail::dispatch_count_kernel<std::int32_t>, chosen, plan.slots(), experts, counts);
  start("dispatch_forward: scan", bins, 0,
        cuda_detail::dispatch_scan_kernel<std::int32_t, std::int64_t>, counts, chunks, starts,
        totals);
  start("dispatch_forward: place", chunks, bins * bytes_of_bin,
        cuda_detail::dispatch_place_kernel<std::int64_t>, chosen, starts, totals, plan);
}

/// As the host's: out [N, H] (+)= scale * sum over a token's slots of y_slots [N top_k, H], float
/// or bf16; sums are float.
template <class Compute, class Slot>
void combine_forward(const cuda<Compute>& run, matrix_view<const Slot> y_slots,
                     const std::int64_t* slot_of, std::int64_t top_k, float scale, into mode,
                     matrix_view<float> out) {
  using tuning = cuda_detail::dispatch_tuning;
  if (out.size() == 0) return;
  const auto start = [&](auto kernel, int count) {
    launch(run, {"combine_forward", {out.rows, top_k, out.columns}},
           {blocks_for(out.size() / count, tuning::combine_threads), tuning::combine_threads},
           kernel, y_slots, slot_of, top_k, scale, mode, out);
  };
  constexpr int count = tuning::combine_bytes / static_cast<int>(sizeof(Slot));
  if (cuda_detail::in_pieces(y_slots, count) && cuda_detail::in_pieces(out, count))
    start(cuda_detail::combine_kernel<Slot, count>, count);
  else
    start(cuda_detail::combine_kernel<Slot, 1>, 1);
}

/// As the host's: to[slot] = from[token_of[slot]].
template <class Compute, class From, class To>
void rows_to_slots(const cuda<Compute>& run, matrix_view<const From> from,
                   const dispatch_plan& plan, matrix_view<To> to) {
  constexpr int threads = cuda_detail::dispatch_tuning::combine_threads;
  if (to.size() == 0) return;
  launch(run, {"rows_to_slots", {to.rows, to.columns}}, {blocks_for(to.size(), threads), threads},
         cuda_detail::rows_to_slots_kernel<From, To>, from, plan, to);
}

/// As the host's: by_slot[slot] = weights[assignment(slot)].
template <class Compute>
void weights_to_slots(const cuda<Compute>& run, const float* weights, const dispatch_plan& plan,
                      float* by_slot) {
  constexpr int threads = cuda_detail::dispatch_tuning::combine_threads;
  if (plan.slots() == 0) return;
  launch(run, {"weights_to_slots", {plan.slots()}}, {blocks_for(plan.slots(), threads), threads},
         cuda_detail::weights_of_slots_kernel<true, float>, weights, plan, by_slot);
}

/// As the host's: weights[assignment(slot)] = by_slot[slot].
template <class Compute>
void weights_from_slots(const cuda<Compute>& run, const float* by_slot, const dispatch_plan& plan,
                        float* weights) {
  constexpr int threads = cuda_detail::dispatch_tuning::combine_threads;
  if (plan.slots() == 0) return;
  launch(run, {"weights_from_slots", {plan.slots()}}, {blocks_for(plan.slots(), threads), threads},
         cuda_detail::weights_of_slots_kernel<false, float>, by_slot, plan, weights);
}

/// As the host's: slot i is token i.
template <class Compute>
void identity_dispatch(const cuda<Compute>& run, const dispatch_plan& plan) {
  constexpr int threads = cuda_detail::dispatch_tuning::combine_threads;
  if (plan.slots() == 0) return;
  launch(run, {"identity_dispatch", {plan.slots()}}, {blocks_for(plan.slots(), threads), threads},
         cuda_detail::identity_dispatch_kernel<std::int64_t>, plan);
}

}  // namespace cuda_backend
}  // namespace smelt
