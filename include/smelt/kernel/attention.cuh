// SPDX-License-Identifier: Apache-2.0
//
// Attention on CUDA: the overloads of op/attention.hpp, where formulas and shapes are.
//
//   cuda<bf16>   q, k, v (and dout) packed to bf16 (attention_rows.cuh), products on tensor cores
//                (attention_forward.cuh, attention_backward.cuh)
//   cuda<float>  float32 multiply-adds throughout (attention_float.cuh)
//
// Forward is one kernel after packing, backward three: rows, gradients of keys, those of queries.
// Offsets of the documents lie in device memory, so known_tokens and known_pairs must be set. Grids
// depend on tokens and heads alone and scratch grows at the first call of a shape: legal while a
// graph is captured after one call. A replay may meet other documents of as many tokens, as long as
// `count` stays (empty ones at the end).
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>

#include "smelt/arch/attention.hpp"
#include "smelt/kernel/attention_backward.cuh"
#include "smelt/kernel/attention_float.cuh"
#include "smelt/kernel/attention_forward.cuh"
#include "smelt/op/attention.hpp"

namespace smelt {
inline namespace cuda_backend {
namespace cuda_detail {

// Tags of scratch memory.
struct attention_packed_q;
struct attention_packed_k;
struct attention_packed_v;
struct attention_packed_dout;
struct attention_packed_rows;

// Offsets in device memory cannot be read here: the totals must be known.
inline void check_documents(const char* where, const segments& documents) {
  if (documents.count == 0 || (documents.known_tokens >= 0 && documents.known_pairs >= 0)) return;
  throw error(std::string(where) + ": segments on a device with known_tokens " +
              std::to_string(documents.known_tokens) + " and known_pairs " +
              std::to_string(documents.known_pairs) +
              ", expected both from 0 on; set them when the offsets are uploaded");
}

// What all kernels of a call are told, but for the slots, which depend on a kernel's tile.
inline attention_problem problem_of(const attention_shape& shape, const segments& documents) {
  return {documents,
          documents.tokens(),
          0,
          static_cast<int>(shape.query_heads),
          static_cast<int>(shape.kv_heads),
          static_cast<int>(shape.head_dim),
          1.0F / std::sqrt(static_cast<float>(shape.head_dim))};
}

// The problem cut into slots of a kernel's tile.
inline attention_problem in_tiles(attention_problem problem, std::int64_t tile) {
  problem.slots = blocks_for(problem.tokens, tile);
  return problem;
}

// q, k and v as bf16 [heads, N, HeadSize].
template <int HeadSize>
attention_packed attention_pack(const cuda<bf16>& run, const attention_problem& problem,
                                matrix_view<const float> q, matrix_view<const float> k,
                                matrix_view<const float> v) {
  const std::int64_t of_queries = problem.query_heads * problem.tokens * HeadSize;
  const std::int64_t of_keys = problem.kv_heads * problem.tokens * HeadSize;
  bf16* const to_q = device_scratch<bf16, attention_packed_q>(run, of_queries);
  bf16* const to_k = device_scratch<bf16, attention_packed_k>(run, of_keys);
  bf16* const to_v = device_scratch<bf16, attention_packed_v>(run, of_keys);
  launch(run, {"attention: pack", {problem.tokens, q.columns, k.columns}},
         {problem.tokens, row_block_threads}, attention_pack_kernel<HeadSize>,
         attention_pack_job{q, problem.query_heads, to_q},
         attention_pack_job{k, problem.kv_heads, to_k},
         attention_pack_job{v, problem.kv_heads, to_v}, problem.head_dim);
  return {to_q, to_k, to_v, nullptr, nullptr};
}

}  // namespace cuda_detail

/// As the host's: out and logsumexp overwritten; counts 4 query width per pair. Throws smelt::error
/// for views that do not fit, head sizes above 128, and documents whose totals are not known.
template <class Compute>
void attention_forward(const cuda<Compute>& run, const attention_shape& shape,
                       const segments& documents, matrix_view<const float> q,
                       matrix_view<const float> k, matrix_view<const float> v,
                       matrix_view<Compute> out, float* logsumexp) {
  cuda_detail::check_documents("attention_forward", documents);
  const std::int64_t tokens = documents.tokens();
  // Row-major views of all tokens; rows may be further apart than they are wide.
  const auto check = [tokens](const char* where, std::int64_t columns, const auto& view) {
    host_detail::check_attention(where, tokens, columns, view.rows, view.columns,
                                 view.column_stride);
  };
  check("attention_forward: q", shape.query_width(), q);
  check("attention_forward: k", shape.kv_width(), k);
  check("attention_forward: v", shape.kv_width(), v);
  check("attention_forward: out", shape.query_width(), out);
  const cuda_detail::attention_problem problem = cuda_detail::problem_of(shape, documents);
  const kernel_call call{"attention_forward",
                         {tokens, shape.query_heads, shape.kv_heads, shape.head_dim}};
  cuda_detail::with_head_size(call.name, shape.head_dim, [&](auto size) {
    constexpr int head_size = decltype(size)::value;  // of the kernels; head_dim or more
    run.count_attention(4 * shape.query_width() * documents.pairs(), 0);
    // One block a query head and slot.
    if constexpr (std::is_same_v<Compute, bf16>) {
      using tuning = cuda_detail::attention_forward_tuning<head_size>;
      const auto packed = cuda_detail::attention_pack<head_size>(run, problem, q, k, v);
      const auto cut = cuda_detail::in_tiles(problem, tuning::query_tile);
      launch(run, call,
             {cut.slots * shape.query_heads, cuda_detail::attention_threads, tuning::shared_bytes},
             cuda_detail::attention_forward_kernel<head_size>, cut, packed.q, packed.k, packed.v,
             out, logsumexp);
    } else {
      using tuning = cuda_detail::attention_float_tuning<head_size>;
      const auto cut = cuda_detail::in_tiles(problem, tuning::tile);
      launch(run, call, {cut.slots * shape.query_heads, tuning::threads, tuning::forward_bytes},
             cuda_detail::attention_forward_float_kernel<head_size>, cut, q, k, v, out, logsumexp);
    }
  });
}

/// As the host's: dq overwritten, dk and dv overwritten or added to. Counts 8 query width per pair,
/// and 6 more as recomputed: S in both kernels, dP in the second. Throws as attention_forward does.
template <class Compute>
void attention_backward(const cuda<Compute>& run, const attention_shape& shape,
                        const segments& documents, matrix_view<const float> dout,
                        matrix_view<const float> q, matrix_view<const float> k,
                        matrix_view<const float> v, matrix_view<const Compute> out,
                        const float* logsumexp, matrix_view<float> dq, matrix_view<float> dk,
                        matrix_view<float> dv, into mode_kv) {
  cuda_detail::check_documents("attention_backward", documents);
  const std::int64_t tokens = documents.tokens();
  // Row-major views of all tokens; rows may be further apart than they are wide.
  const auto check = [tokens](const char* where, std::int64_t columns, const auto& view) {
    host_detail::check_attention(where, tokens, columns, view.rows, view.columns,
                                 view.column_stride);
  };
  check("attention_backward: dout", shape.query_width(), dout);
  check("attention_backward: q", shape.query_width(), q);
  check("attention_backward: k", shape.kv_width(), k);
  check("attention_backward: v", shape.kv_width(), v);
  check("attention_backward: out", shape.query_width(), out);
  check("attention_backward: dq", shape.query_width(), dq);
  check("attention_backward: dk", shape.kv_width(), dk);
  check("attention_backward: dv", shape.kv_width(), dv);
  const cuda_detail::attention_problem problem = cuda_detail::problem_of(shape, documents);
  const auto call = [&](const char* name) {
    return kernel_call{name, {tokens, shape.query_heads, shape.kv_heads, shape.head_dim}};
  };
  cuda_detail::with_head_size("attention_backward", shape.head_dim, [&](auto size) {
    constexpr int head_size = decltype(size)::value;
    const std::int64_t per_pair = 2 * shape.query_width() * documents.pairs();
    run.count_attention(4 * per_pair, 3 * per_pair);
    constexpr bool narrow = std::is_same_v<Compute, bf16>;
    // L and D of every row, and dout packed where the products are bf16.
    const std::int64_t rows_count = shape.query_heads * tokens;
    auto* const rows =
        device_scratch<cuda_detail::attention_row, cuda_detail::attention_packed_rows>(run,
                                                                                       rows_count);
    bf16* packed_dout = nullptr;
    if constexpr (narrow)
      packed_dout =
          device_scratch<bf16, cuda_detail::attention_packed_dout>(run, rows_count * head_size);
    launch(run, call("attention_backward: rows"),
           {blocks_for(rows_count, row_reduce<32>::rows_per_block), row_block_threads},
           cuda_detail::attention_rows_kernel<Compute>, dout, out, logsumexp, problem.query_heads,
           problem.head_dim, head_size, rows, packed_dout);
    // Gradients of keys, one block a key-value head and slot, then those of queries. Each row is
    // summed by one block, so dk and dv may be added to where they lie.
    const cuda_detail::attention_gradients of_keys{dv, dk, mode_kv};
    const cuda_detail::attention_gradients of_queries{{}, dq, into::overwrite};
    const auto start = [&](const auto& operands, std::int64_t tile, int threads, int bytes,
                           auto keys_kernel, auto queries_kernel) {
      const auto cut = cuda_detail::in_tiles(problem, tile);
      launch(run, call("attention_backward: dk, dv"), {cut.slots * shape.kv_heads, threads, bytes},
             keys_kernel, cut, operands, of_keys);
      launch(run, call("attention_backward: dq"), {cut.slots * shape.query_heads, threads, bytes},
             queries_kernel, cut, operands, of_queries);
    };
    if constexpr (narrow) {
      using tuning = cuda_detail::attention_backward_tuning<head_size>;
      // Packed again, not kept from the forward pass: other layers have used the scratch since.
      cuda_detail::attention_packed packed =
          cuda_detail::attention_pack<head_size>(run, problem, q, k, v);
      packed.dout = packed_dout;
      packed.rows = rows;
      start(packed, tuning::tile, cuda_detail::attention_threads, tuning::shared_bytes,
            cuda_detail::attention_backward_kernel<head_size, true>,
            cuda_detail::attention_backward_kernel<head_size, false>);
    } else {
      using tuning = cuda_detail::attention_float_tuning<head_size>;
      start(cuda_detail::attention_operands{q, k, v, dout, rows}, tuning::tile, tuning::threads,
            tuning::backward_bytes, cuda_detail::attention_backward_float_kernel<head_size, true>,
            cuda_detail::attention_backward_float_kernel<head_size, false>);
    }
  });
}

}  // namespace cuda_backend
}  // namespace smelt
