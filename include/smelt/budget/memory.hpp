// SPDX-License-Identifier: Apache-2.0
//
// Memory of a training step on one rank, in bytes, exact up to the padding between tensors.
//
//   weights       4 P            float32 masters
//   copies        2 P            what bf16 products read; 0 in float32
//   gradients     4 P            a looped layer has one
//   optimizer     8 P            two moments of AdamW
//   activations   what every visit keeps for backward, for B sequences of T tokens (N = B T), r the
//                 bytes of a float32 and c those of what products read (2 in bf16, 4 in float32):
//
//     attention   N (2 r H + c H + r q + 2 r kv + c q + r heads + 2 r)
//                 + with query and key norm N r (q + kv) and one statistic per normalised row
//                 - 2 r N kv (and the key's norm) where a later visit shares the first one's keys
//     dense       N (c H + 2 c f)
//     MoE         N (c H + r E + r + K (4 + r + 8 + 8 + 4) + 2 c K f + 2 c f_shared) + 8 (E + 1)
//     once        N (r H + r + c H) for the final norm
//
// An activation of a looped layer exists once per visit. Where visits are recomputed, each keeps
// its input r N H (and keys and values that visits share), and the rest of the widest visit exists
// once. Source: the layout in model/activations.hpp, which a test compares with this sum. Workspace
// that visits borrow is apart: it does not grow with depth.
#pragma once

#include <cstdint>

#include "smelt/budget/kv_cache.hpp"
#include "smelt/budget/parameters.hpp"

namespace smelt {

/// Bytes by what they hold.
struct memory_bytes {
  std::int64_t weights = 0;
  std::int64_t copies = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  std::int64_t activations = 0;

  constexpr std::int64_t total() const {
    return weights + copies + gradients + optimizer + activations;
  }
};

namespace detail {
constexpr std::int64_t visit_activation_bytes(std::int64_t tokens, std::int64_t hidden,
                                              const attention_shape& attention,
                                              const ffn_shape& ffn, std::int64_t compute_bytes,
                                              bool own_keys) {
  constexpr std::int64_t r = storage::float32::bytes;
  const std::int64_t c = compute_bytes;
  const std::int64_t q = attention.query_width();
  const std::int64_t kv = attention.kv_width();
  std::int64_t per_token = 2 * r * hidden + c * hidden + r * q + c * q + r * attention.query_heads +
                           2 * r;  // one statistic for each of the two norms
  if (own_keys) per_token += 2 * r * kv;
  if (attention.norm != qk_norm_kind::none) {
    const bool per_head = attention.norm == qk_norm_kind::per_head;
    per_token += r * q + r * (per_head ? attention.query_heads : 1);
    if (own_keys) per_token += r * kv + r * (per_head ? attention.kv_heads : 1);
  }
  per_token += c * hidden;  // the second norm's output
  if (ffn.is_dense()) return tokens * (per_token + 2 * c * ffn.width);
  // Chosen expert and its weight, then slot, token and choice of the dispatch.
  constexpr std::int64_t per_choice = 4 + r + 8 + 8 + 4;
  per_token += r * ffn.experts + r + ffn.top_k * per_choice + 2 * c * ffn.top_k * ffn.width +
               2 * c * ffn.shared_width;
  return tokens * per_token + 8 * (ffn.experts + 1);
}

template <has_head M>
constexpr std::int64_t activation_bytes(std::int64_t tokens, std::int64_t compute_bytes,
                                        bool recomputed) {
  using body = typename M::body;
  constexpr std::int64_t r = storage::float32::bytes;
  const std::int64_t hidden = body::hidden_size;
  const attention_shape& attention = body::attention;
  std::int64_t kept = tokens * (r * hidden + r + compute_bytes * hidden);
  std::int64_t all = 0, widest = 0;
  for (const span_shape& span : body::spans)
    for (std::int64_t visit = 0; visit < span.visits; ++visit) {
      const bool own_keys = !attention.kv_shared_by_visits || visit == 0;
      std::int64_t own = tokens * r * hidden;
      if (attention.kv_shared_by_visits && visit == 0) own += tokens * 2 * r * attention.kv_width();
      const std::int64_t rest =
          visit_activation_bytes(tokens, hidden, attention, span.ffn, compute_bytes, own_keys) -
          own;
      kept += span.layers * own;
      all += span.layers * rest;
      widest = rest > widest ? rest : widest;
    }
  return kept + (recomputed ? widest : all);
}

template <has_head M, std::int64_t Sequences, std::int64_t Context, class Products>
constexpr memory_bytes make_memory_plan(bool recomputed) {
  static_assert(Sequences > 0 && Context > 0,
                "memory_plan<Model, Sequences, Context>: both must be at least 1");
  static_assert(Products::bytes == 4 || Products::bytes == 2,
                "memory_plan<..., Products>: products run in storage::float32 or storage::bf16");
  memory_bytes plan;
  plan.weights = 4 * parameters<M>;
  plan.copies = Products::bytes == 2 ? 2 * parameters<M> : 0;
  plan.gradients = 4 * parameters<M>;
  plan.optimizer = 8 * parameters<M>;
  plan.activations = detail::activation_bytes<M>(Sequences * Context, Products::bytes, recomputed);
  return plan;
}
}  // namespace detail

/// Memory of a training step on Sequences x Context tokens, products in Products (storage::float32
/// or storage::bf16), master weights and optimizer in float32.
template <has_head M, std::int64_t Sequences, std::int64_t Context,
          class Products = storage::float32>
inline constexpr memory_bytes memory_plan =
    detail::make_memory_plan<M, Sequences, Context, Products>(false);

/// The same under recomputation::visits: every visit keeps its input alone.
template <has_head M, std::int64_t Sequences, std::int64_t Context,
          class Products = storage::float32>
inline constexpr memory_bytes recomputed_memory_plan =
    detail::make_memory_plan<M, Sequences, Context, Products>(true);

}  // namespace smelt
