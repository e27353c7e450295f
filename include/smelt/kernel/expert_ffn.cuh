// SPDX-License-Identifier: Apache-2.0
//
// The experts on CUDA; formulas, shapes and meaning are those of op/expert_ffn.hpp.
//
// Six grouped products (grouped_product.cuh), whose ragged sizes are read on the device; with s a
// slot of expert e and n = token_of[s]:
//
//   forward   [g, u][s]   = x[n] gate_up[e]^T        epilogue: g, u kept; weighted[s] = w silu(g) u
//             y[s]        = weighted[s] down[e]^T
//   backward  dwh[s]      = dout[n] down[e]          epilogue: [dg, du][s], weighted[s] again, and
//                                                    <dwh, h> in parts of 64 columns (float: 128)
//             dx[s]       = [dg, du][s] gate_up[e]
//             ddown[e]   += sum_s dout[n]^T weighted[s]
//             dgate_up[e] += sum_s [dg, du][s]^T x[n]
//
// x and dout are gathered where they are loaded. A block of the first product has matching columns
// of g and u in the same thread, so that h needs no exchange. Under bf16 dout is rounded once, to
// scratch, and sums are float32 until they are stored. The parts of dweights are added up in order
// by a thread per slot. Scratch of a step: N H (bf16 only) + S (f + 2 f) elements of the compute
// type, and S f / 16 bytes of parts; S = N top_k slots.
//
// Work and bytes for N 32768, H 4096, f 1024, 128 experts, top-8, bf16; every operand counted once
// per expert that reads it, x and dout thus eight times (2.15 GB; 0.27 GB where a cache keeps
// them):
//
//   product        FLOPs      bytes                                          FLOPs a byte
//   gate and up    4.40e12     5.91e9  x, gate_up -> saved, weighted         745
//   down           2.20e12     3.76e9  weighted, down -> y                   585
//   h              2.20e12     5.92e9  dout, down, saved -> dg du, weighted  371
//   dx             4.40e12     5.37e9  dg du, gate_up -> dx                  819
//   ddown          2.20e12     6.98e9  dout, weighted -> ddown (read, too)   315
//   dgate_up       4.40e12    11.81e9  dg du, x -> dgate_up (read, too)      372
//   dout rounded   0           0.81e9
//
// All products are bound by the tensor cores: 312 TFLOP/s beside 2.0 TB/s (sm_80) are 153 FLOPs a
// byte, 989 beside 3.35 (sm_90) 295. A tile of 128 x 128 reads a byte of the second-level cache for
// 64 FLOPs. With 2048 slots an expert half a tile of rows is padding: 3 % of the work.
//
// Resources of the bf16 kernels (ptxas of CUDA 13.0, no spills): 128 threads, 240 to 245 registers,
// 75,264 bytes of shared memory: 64 KiB of panels and the scheduler's table. Two blocks, 8 warps, a
// multiprocessor: on sm_80 by shared memory (2 of 164 KiB) and by registers, on sm_90 by registers
// (shared memory would hold 3 of 228 KiB). The float kernels: 128 threads, 156 to 242 registers,
// 58,880 bytes; two blocks on sm_80, two or three on sm_90.
//
// Limits: 1024 experts (grouped_tuning::most_groups); any number of tokens, any hidden and width.
// Sizes that are multiples of 8 (float: 4) are copied asynchronously, others element by element.
// Slots past offsets[experts] belong to no expert: their rows are neither read nor written, and
// their dweights are 0.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "smelt/exec/cuda/launch.cuh"
#include "smelt/kernel/grouped_epilogue.cuh"
#include "smelt/kernel/grouped_product.cuh"
#include "smelt/op/expert_ffn.hpp"

namespace smelt {
inline namespace cuda_backend {

namespace cuda_detail {

struct expert_ffn_tuning {
  static constexpr int threads = 256;
  static constexpr int elements = 8;  // that one thread converts: 32 bytes in, 16 out
};

struct expert_weighted;
struct expert_dgate_up;
struct expert_dout;
struct expert_parts;

// Rows of scratch begin at multiples of 16 bytes, so that they are always copied in chunks.
template <class Compute>
constexpr std::int64_t chunked_columns(std::int64_t columns) {
  constexpr std::int64_t chunk = chunk_bytes / static_cast<std::int64_t>(sizeof(Compute));
  return (columns + chunk - 1) / chunk * chunk;
}

// to [rows, columns] = from, rounded.
template <class To>
__global__ void __launch_bounds__(expert_ffn_tuning::threads)
    convert_rows_kernel(matrix_view<const float> from, matrix_view<To> to) {
  constexpr int each = expert_ffn_tuning::elements;
  const std::int64_t pieces = (from.columns + each - 1) / each;  // of a row
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= from.rows * pieces) return;
  const std::int64_t column = i % pieces * each;
  const std::int64_t left = from.columns - column;
  const bool aligned =
      reinterpret_cast<std::uintptr_t>(from.data) % 16 == 0 && from.row_stride % 4 == 0;
  const float* here = from.row(i / pieces) + column;
  float low[each / 2], high[each / 2];
  load_run(here, low, left, aligned);
  load_run(here + each / 2, high, left - each / 2, aligned);
  float values[each];
  for (int j = 0; j < each; ++j) values[j] = j < each / 2 ? low[j] : high[j - each / 2];
  // The rows written are scratch: padded to whole pieces.
  store_run(to.row(i / pieces) + column, values, each, true);
}

// dweights of a slot's (token, choice) = its parts, added up in the order of the columns; 0 for a
// slot of no expert, whose parts nobody wrote.
template <class Real>
__global__ void __launch_bounds__(expert_ffn_tuning::threads)
    add_weight_parts_kernel(const Real* parts, std::int64_t count, dispatch_plan plan,
                            Real* dweights) {
  const std::int64_t slot = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (slot >= plan.slots()) return;
  const bool has_expert = slot < plan.offsets[plan.experts];
  Real sum = 0;
  for (std::int64_t part = 0; has_expert && part < count; ++part)
    sum += parts[part * plan.slots() + slot];
  dweights[plan.assignment(slot)] = sum;
}

// The gradient of the layer's output in the compute type: as it is, or rounded once into scratch
// instead of once for each of top_k experts and two products.
template <class Compute>
matrix_view<const Compute> rounded(const cuda<Compute>& run, matrix_view<const float> dout) {
  if constexpr (std::is_same_v<Compute, float>) {
    return dout;
  } else {
    const std::int64_t stride = chunked_columns<Compute>(dout.columns);
    const matrix_view<Compute> to(device_scratch<Compute, expert_dout>(run, dout.rows * stride),
                                  dout.rows, dout.columns, stride);
    const std::int64_t pieces = dout.rows * blocks_for(dout.columns, expert_ffn_tuning::elements);
    launch(run, {"expert_ffn_backward: dout", {dout.rows, dout.columns}},
           {blocks_for(pieces, expert_ffn_tuning::threads), expert_ffn_tuning::threads},
           convert_rows_kernel<Compute>, dout, to);
    return to;
  }
}

}  // namespace cuda_detail

/// As the host's: x [N, H] -> y_slots [N top_k, H] and saved_gate_up [N top_k, 2f], overwritten.
/// The plan's arrays are device memory; rows of x and y_slots may be further apart than wide.
template <class Compute>
void expert_ffn_forward(const cuda<Compute>& run, const expert_ffn_shape& shape,
                        matrix_view<const Compute> x, const dispatch_plan& plan,
                        const float* weights, const Compute* gate_up, const Compute* down,
                        Compute* saved_gate_up, matrix_view<Compute> y_slots) {
  using cuda_detail::panel_order;
  using cuda_detail::ragged;
  using operand = cuda_detail::grouped_operand<Compute>;
  const std::int64_t hidden = shape.hidden, width = shape.width;
  const std::int64_t slots = plan.slots();
  run.count_product(slots, 3 * width, hidden);
  if (slots == 0) return;
  const std::int64_t stride = cuda_detail::chunked_columns<Compute>(width);
  Compute* weighted = device_scratch<Compute, cuda_detail::expert_weighted>(run, slots * stride);

  // [g, u] [slots, f and f] = x[token_of] [slots, H] gate_up[e]^T [H, 2f]
  cuda_detail::grouped_product<ragged::rows, panel_order::inner, panel_order::inner>(
      run, "expert_ffn_forward: gate and up",
      {plan.offsets, shape.experts, slots, 0, width, hidden,
       operand(x.data, x.row_stride, 0, plan.token_of),
       operand(gate_up, hidden, 2 * width * hidden, nullptr)},
      cuda_detail::swiglu_epilogue<Compute>{
          plan, weights, width, {saved_gate_up, 2 * width, 0, width}, {weighted, stride}});
  // y [slots, H] = weighted [slots, f] down[e]^T [f, H]
  cuda_detail::grouped_product<ragged::rows, panel_order::inner, panel_order::inner>(
      run, "expert_ffn_forward: down",
      {plan.offsets, shape.experts, slots, 0, hidden, width, operand(weighted, stride, 0, nullptr),
       operand(down, width, hidden * width, nullptr)},
      cuda_detail::store_epilogue<Compute>{{y_slots.data, y_slots.row_stride}});
}

/// As the host's: dgate_up and ddown are added to (those of experts without slots are not touched),
/// dweights and dx_slots overwritten.
template <class Compute>
void expert_ffn_backward(const cuda<Compute>& run, const expert_ffn_shape& shape,
                         matrix_view<const Compute> x, const dispatch_plan& plan,
                         const float* weights, const Compute* gate_up, const Compute* down,
                         const Compute* saved_gate_up, matrix_view<const float> dout,
                         float* dgate_up, float* ddown, float* dweights,
                         matrix_view<Compute> dx_slots) {
  using cuda_detail::panel_order;
  using cuda_detail::ragged;
  using operand = cuda_detail::grouped_operand<Compute>;
  const std::int64_t hidden = shape.hidden, width = shape.width;
  const std::int64_t slots = plan.slots();
  run.count_product(slots, 6 * width, hidden);
  if (slots == 0) return;
  const std::int64_t stride = cuda_detail::chunked_columns<Compute>(width);
  const std::int64_t pair_stride = cuda_detail::chunked_columns<Compute>(2 * width);
  Compute* weighted = device_scratch<Compute, cuda_detail::expert_weighted>(run, slots * stride);
  Compute* slopes = device_scratch<Compute, cuda_detail::expert_dgate_up>(run, slots * pair_stride);
  using rows_multiplier =
      cuda_detail::grouped_multiplier<Compute, panel_order::inner, panel_order::outer>;
  const std::int64_t part_count =
      blocks_for(width, rows_multiplier::tile_columns) * rows_multiplier::column_parts;
  float* parts = device_scratch<float, cuda_detail::expert_parts>(run, part_count * slots);
  const matrix_view<const Compute> outer = cuda_detail::rounded(run, dout);
  const operand x_rows(x.data, x.row_stride, 0, plan.token_of);
  const operand outer_rows(outer.data, outer.row_stride, 0, plan.token_of);

  // dwh [slots, f] = dout[token_of] [slots, H] down[e] [H, f] -> [dg, du], weighted, parts of dw
  cuda_detail::grouped_product<ragged::rows, panel_order::inner, panel_order::outer>(
      run, "expert_ffn_backward: h",
      {plan.offsets, shape.experts, slots, 0, width, hidden, outer_rows,
       operand(down, width, hidden * width, nullptr)},
      cuda_detail::swiglu_backward_epilogue<Compute>{plan,
                                                     weights,
                                                     width,
                                                     {saved_gate_up, 2 * width, 0, width},
                                                     {slopes, pair_stride, 0, width},
                                                     {weighted, stride},
                                                     parts});
  launch(run, {"expert_ffn_backward: dweights", {slots, part_count}},
         {blocks_for(slots, cuda_detail::expert_ffn_tuning::threads),
          cuda_detail::expert_ffn_tuning::threads},
         cuda_detail::add_weight_parts_kernel<float>, parts, part_count, plan, dweights);
  // dx [slots, H] = [dg, du] [slots, 2f] gate_up[e] [2f, H]
  cuda_detail::grouped_product<ragged::rows, panel_order::inner, panel_order::outer>(
      run, "expert_ffn_backward: dx",
      {plan.offsets, shape.experts, slots, 0, hidden, 2 * width,
       operand(slopes, pair_stride, 0, nullptr),
       operand(gate_up, hidden, 2 * width * hidden, nullptr)},
      cuda_detail::store_epilogue<Compute>{{dx_slots.data, dx_slots.row_stride}});
  // ddown[e] [H, f] += dout[token_of]^T [H, slots of e] weighted [slots of e, f]
  cuda_detail::grouped_product<ragged::inner, panel_order::outer, panel_order::outer>(
      run, "expert_ffn_backward: ddown",
      {plan.offsets, shape.experts, slots, hidden, width, 0, outer_rows,
       operand(weighted, stride, 0, nullptr)},
      cuda_detail::accumulate_epilogue{{ddown, width, hidden * width}});
  // dgate_up[e] [2f, H] += [dg, du]^T [2f, slots of e] x[token_of] [slots of e, H]
  cuda_detail::grouped_product<ragged::inner, panel_order::outer, panel_order::outer>(
      run, "expert_ffn_backward: dgate_up",
      {plan.offsets, shape.experts, slots, 2 * width, hidden, 0,
       operand(slopes, pair_stride, 0, nullptr), x_rows},
      cuda_detail::accumulate_epilogue{{dgate_up, hidden, 2 * width * hidden}});
}

}  // namespace cuda_backend
}  // namespace smelt
