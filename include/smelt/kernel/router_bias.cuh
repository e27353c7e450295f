// SPDX-License-Identifier: Apache-2.0
//
// The update of a router's bias on CUDA; formula and arithmetic are those of op/router_bias.hpp, to
// the last bit.
//
//   update   one block: sums the counts in 64 bits, then each thread moves its experts' bias. The
//            step's loss is read from device memory by every thread, once.
//
// Bytes: 8 E for the counts and again from cache, 8 E for the bias: a few KiB, so the launch is
// what it costs.
#pragma once

#include <cub/block/block_reduce.cuh>

#include <cstdint>

#include "smelt/exec/cuda/launch.cuh"
#include "smelt/op/router_bias.hpp"

namespace smelt {
inline namespace cuda_backend {

namespace cuda_detail {

struct router_bias_tuning {
  static constexpr int threads = 256;
};

template <int Threads, class Real>
__global__ void __launch_bounds__(Threads)
    router_bias_kernel(const std::int64_t* counts, std::int64_t experts, Real rate,
                       const Real* loss_sum, Real* bias) {
  using block = cub::BlockReduce<std::int64_t, Threads>;
  __shared__ typename block::TempStorage shared;
  __shared__ std::int64_t total;
  if (!step_is_finite(*loss_sum, *loss_sum)) return;  // the whole block
  std::int64_t sum = 0;
  for (std::int64_t e = threadIdx.x; e < experts; e += Threads) sum += counts[e];
  // Integers: the order of these additions changes nothing.
  sum = block(shared).Sum(sum);
  if (threadIdx.x == 0) total = sum;
  __syncthreads();
  for (std::int64_t e = threadIdx.x; e < experts; e += Threads)
    bias[e] = router_bias_element(bias[e], counts[e], total, experts, rate);
}

}  // namespace cuda_detail

/// As the host's: moves bias [E] by `rate` towards balance of counts [E]; nothing where *loss_sum
/// is not finite or no token was counted. All pointers are device memory.
template <class Compute>
void update_router_bias(const cuda<Compute>& run, const std::int64_t* counts, std::int64_t experts,
                        double rate, const float* loss_sum, float* bias) {
  constexpr int threads = cuda_detail::router_bias_tuning::threads;
  launch(run, {"update_router_bias", {experts}}, {1, threads},
         cuda_detail::router_bias_kernel<threads, float>, counts, experts, static_cast<float>(rate),
         loss_sum, bias);
}

}  // namespace cuda_backend
}  // namespace smelt
