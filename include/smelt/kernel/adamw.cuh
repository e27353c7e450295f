// SPDX-License-Identifier: Apache-2.0
//
// AdamW and the sum of squares it is clipped by, on CUDA; formulas and the arithmetic of a
// parameter are those of op/adamw.hpp.
//
//   adamw_update     one pass, four parameters a thread where every array is aligned to 16 bytes.
//                    Reads weight, gradient and both moments, writes all but the gradient: 28 bytes
//                    a parameter, 30 with the bf16 copy; about 30 FLOPs: bound by memory. State:
//                    8 bytes a parameter (moments) beside 4 of master weight and 2 of copy.
//   sum_of_squares   4 bytes an element, 9 FLOPs: bound by memory.
//
// Nothing of a step is known to the host: clip factor, rates and whether the step is finite are
// read from device memory by every thread, once.
//
// Accuracy of the sum (u = 2^-24, n elements summed by one thread): squares are rounded once, u;
// sums keep what their roundings lost, so that all of them together add u + (n u)^2; terms are not
// negative, so nothing cancels. The grid grows to 2^20 threads: 10^8 elements make n = 96 and an
// error below 1.3e-7, 4 * 10^9 make n = 3815 and 1.8e-7. Squares beyond 3.4e38 are Inf or NaN in
// the sum, which is no finite step; those below 1.2e-38 are lost.
#pragma once

#include <cub/block/block_reduce.cuh>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "smelt/exec/cuda/launch.cuh"
#include "smelt/op/adamw.hpp"

namespace smelt {
inline namespace cuda_backend {

namespace cuda_detail {

struct adamw_tuning {
  static constexpr int threads = 256;
  static constexpr int vector = 4;  // parameters a thread updates at once
};

struct sum_of_squares_tuning {
  static constexpr int threads = 256;
  static constexpr int unroll = 8;                   // loads in flight of a thread
  static constexpr std::int64_t most_blocks = 4096;  // depends on no device, so neither do the bits
};
static_assert(adamw_tuning::vector == 4, "smelt: the vector types are float4 and ushort4");

// A sum in two parts: what the type can hold, and what the roundings on the way lost.
template <class Real>
struct compensated {
  Real sum;
  Real lost;
};

// a + b without loss but for the sums of what was lost.
struct compensated_plus {
  template <class Real>
  __device__ compensated<Real> operator()(const compensated<Real>& a,
                                          const compensated<Real>& b) const {
    const Real sum = a.sum + b.sum;
    const Real of_b = sum - a.sum;
    const Real lost = (a.sum - (sum - of_b)) + (b.sum - of_b);
    return {sum, lost + (a.lost + b.lost)};
  }
};

// Block b sums values[b * chunk, ...) into parts[b].
template <int Threads, class Real>
__global__ void __launch_bounds__(Threads)
    squares_of_chunks_kernel(const Real* values, std::int64_t count, std::int64_t chunk,
                             compensated<Real>* parts) {
  using block = cub::BlockReduce<compensated<Real>, Threads>;
  __shared__ typename block::TempStorage shared;
  const std::int64_t begin = std::int64_t{blockIdx.x} * chunk;
  const std::int64_t end = begin + chunk < count ? begin + chunk : count;
  compensated<Real> sum{0, 0};
#pragma unroll(sum_of_squares_tuning::unroll)
  for (std::int64_t i = begin + threadIdx.x; i < end; i += Threads)
    // Rounded by itself: contracted into the sum it would not be what `lost` is taken from.
    sum = compensated_plus{}(sum, {__fmul_rn(values[i], values[i]), 0});
  sum = block(shared).Reduce(sum, compensated_plus{});
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// One block: *total (+)= the sum over parts [count].
template <int Threads, class Real>
__global__ void __launch_bounds__(Threads)
    sum_of_parts_kernel(const compensated<Real>* parts, std::int64_t count, into mode,
                        Real* total) {
  using block = cub::BlockReduce<compensated<Real>, Threads>;
  __shared__ typename block::TempStorage shared;
  compensated<Real> sum{0, 0};
  for (std::int64_t i = threadIdx.x; i < count; i += Threads)
    sum = compensated_plus{}(sum, parts[i]);
  sum = block(shared).Reduce(sum, compensated_plus{});
  if (threadIdx.x == 0) *total = sum.sum + sum.lost + (mode == into::accumulate ? *total : Real(0));
}

// One thread: whether the step may change weights.
template <class Real>
__global__ void judge_step_kernel(const adamw_rates<Real>* rates, const Real* squares,
                                  const Real* loss_sum, Real* verdict) {
  *verdict = step_verdict(*rates, *squares, *loss_sum);
}

// Parameters [Width * thread, ...); Width is 4 where all arrays are aligned to four elements.
template <int Threads, int Width, class Compute, class Real>
__global__ void __launch_bounds__(Threads)
    adamw_update_kernel(adamw_coefficients<Real> c, Real clip_norm, const adamw_rates<Real>* rates,
                        const Real* squares, const Real* verdict, std::int64_t count, Real* weights,
                        const Real* gradients, Real* first, Real* second, Compute* copy) {
  constexpr bool has_copy = !std::is_same_v<Compute, Real>;
  const Real squares_here = *squares;
  if (!step_is_finite(squares_here, *verdict)) return;
  c.begin_step(*rates, squares_here, clip_norm);
  const std::int64_t begin = (std::int64_t{blockIdx.x} * Threads + threadIdx.x) * Width;
  if constexpr (Width == 4) {
    if (begin + Width <= count) {
      auto& w = *reinterpret_cast<float4*>(weights + begin);
      auto& m = *reinterpret_cast<float4*>(first + begin);
      auto& v = *reinterpret_cast<float4*>(second + begin);
      const float4 g = *reinterpret_cast<const float4*>(gradients + begin);
      float4 weight = w, moment1 = m, moment2 = v;
      weight.x = adamw_element(weight.x, g.x, moment1.x, moment2.x, c);
      weight.y = adamw_element(weight.y, g.y, moment1.y, moment2.y, c);
      weight.z = adamw_element(weight.z, g.z, moment1.z, moment2.z, c);
      weight.w = adamw_element(weight.w, g.w, moment1.w, moment2.w, c);
      w = weight;
      m = moment1;
      v = moment2;
      if constexpr (has_copy)
        *reinterpret_cast<ushort4*>(copy + begin) =
            make_ushort4(Compute(weight.x).bits, Compute(weight.y).bits, Compute(weight.z).bits,
                         Compute(weight.w).bits);
      return;
    }
  }
  for (std::int64_t i = begin; i < begin + Width && i < count; ++i) {
    const Real weight = adamw_element(weights[i], gradients[i], first[i], second[i], c);
    weights[i] = weight;
    if constexpr (has_copy) copy[i] = static_cast<Compute>(weight);
  }
}

// Whether `pointer` may be read as vectors of four.
template <class T>
bool is_aligned_to_four(const T* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % (4 * sizeof(T)) == 0;
}

struct sum_of_squares_parts;

}  // namespace cuda_detail

/// As the host's: *squares (+)= sum of squares of `count` elements, in float with compensation, in
/// an order that depends on `count` alone.
template <class Compute>
void sum_of_squares(const cuda<Compute>& run, const float* values, std::int64_t count,
                    float* squares, into mode = into::overwrite) {
  using tuning = cuda_detail::sum_of_squares_tuning;
  if (count == 0) {
    if (mode == into::overwrite) clear(run, squares, 1);
    return;
  }
  const std::int64_t wanted = blocks_for(count, std::int64_t{tuning::threads} * tuning::unroll);
  const std::int64_t chunk = blocks_for(count, std::min(wanted, tuning::most_blocks));
  const std::int64_t blocks = blocks_for(count, chunk);
  auto* parts = device_scratch<cuda_detail::compensated<float>, cuda_detail::sum_of_squares_parts>(
      run, blocks);
  launch(run, {"sum_of_squares", {count}}, {blocks, tuning::threads},
         cuda_detail::squares_of_chunks_kernel<tuning::threads, float>, values, count, chunk,
         parts);
  launch(run, {"sum_of_squares: parts", {blocks}}, {1, tuning::threads},
         cuda_detail::sum_of_parts_kernel<tuning::threads, float>, parts, blocks, mode, squares);
}

/// As the host's: *verdict = 0 where the step may change weights, infinity where not.
template <class Compute>
void judge_step(const cuda<Compute>& run, const adamw_rates<float>* rates, const float* squares,
                const float* loss_sum, float* verdict) {
  launch(run, {"judge_step", {1}}, {1, 1}, cuda_detail::judge_step_kernel<float>, rates, squares,
         loss_sum, verdict);
}

/// As the host's: updates `count` weights and moments, and the bf16 copy where products run in
/// bf16; does nothing unless both sums are finite. All pointers are device memory.
template <class Compute>
void adamw_update(const cuda<Compute>& run, const adamw_setting& setting,
                  const adamw_rates<float>* rates, const float* squares, const float* verdict,
                  std::int64_t count, float* weights, const float* gradients, float* first,
                  float* second, Compute* copy) {
  using tuning = cuda_detail::adamw_tuning;
  using cuda_detail::is_aligned_to_four;
  const bool aligned = is_aligned_to_four(weights) && is_aligned_to_four(gradients) &&
                       is_aligned_to_four(first) && is_aligned_to_four(second) &&
                       (std::is_same_v<Compute, float> || is_aligned_to_four(copy));
  const auto start = [&](auto kernel, std::int64_t width) {
    launch(run, {"adamw_update", {count}},
           {blocks_for(count, tuning::threads * width), tuning::threads}, kernel,
           adamw_coefficients<float>(setting), static_cast<float>(setting.clip_norm), rates,
           squares, verdict, count, weights, gradients, first, second, copy);
  };
  if (aligned)
    start(cuda_detail::adamw_update_kernel<tuning::threads, tuning::vector, Compute, float>,
          tuning::vector);
  else
    start(cuda_detail::adamw_update_kernel<tuning::threads, 1, Compute, float>, 1);
}

}  // namespace cuda_backend
}  // namespace smelt
