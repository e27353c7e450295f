// SPDX-License-Identifier: Apache-2.0
//
// Activations of a training step: what forward keeps for backward, once per visit.
//
// For N tokens, hidden H, query width q, key width kv, E experts, top-k K, width f, a visit keeps
//
//   real      residual in and middle 2 N H; q, k, v after rotation N (q + 2 kv); row statistics
//   compute   both norm outputs 2 N H; attention output N q; gate and up 2 N K f
//   routing   probabilities N E; chosen, weights and slots N K
//
// A looped layer keeps these once per visit; where the visits share keys and values, the later ones
// point at the first one's. All of it lies in one arena laid out for a number of tokens, so a step
// allocates nothing. budget/memory.hpp states the same sum in closed form; a test compares the two.
//
// A policy that recomputes visits keeps the residual in of each (and keys and values that visits
// share); the rest of every visit lies in the same memory, which backward fills again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "smelt/exec/buffer.hpp"
#include "smelt/exec/matrix.hpp"
#include "smelt/exec/recomputation.hpp"
#include "smelt/model/plan.hpp"
#include "smelt/op/dispatch.hpp"

namespace smelt {

/// What one executed layer keeps. Null where a layer has no such tensor.
template <class Compute>
struct visit_activations {
  using real = real_of<Compute>;
  real* residual_in = nullptr;          // [N, H]
  real* attention_rstd = nullptr;       // [N]
  Compute* attention_input = nullptr;   // [N, H] normalised
  real* query_raw = nullptr;            // [N, q] before query norm
  real* key_raw = nullptr;              // [N, kv] before key norm
  real* query_rstd = nullptr;           // one per normalised row: N * heads, or N
  real* key_rstd = nullptr;             //
  real* query = nullptr;                // [N, q] rotated
  real* key = nullptr;                  // [N, kv] rotated
  real* value = nullptr;                // [N, kv]
  Compute* attention_output = nullptr;  // [N, q]
  real* logsumexp = nullptr;            // [query heads, N]
  real* residual_middle = nullptr;      // [N, H]
  real* ffn_rstd = nullptr;             // [N]
  Compute* ffn_input = nullptr;         // [N, H] normalised
  real* probabilities = nullptr;        // [N, E]
  real* router_logsumexp = nullptr;     // [N]
  std::int32_t* chosen = nullptr;       // [N, K]
  real* expert_weights = nullptr;       // [N, K]
  dispatch_plan dispatch{};             // its arrays lie here too
  Compute* gate_up = nullptr;           // [N K, 2f] of experts, [N, 2f] of a dense layer
  Compute* shared_gate_up = nullptr;    // [N, 2 f_shared]
};

namespace detail {
// Hands out typed pieces of one arena: with null memory it only measures.
class arena_writer {
 public:
  explicit arena_writer(std::byte* memory) : memory_(memory) {}
  template <class T>
  T* take(std::int64_t count) {
    const placement here = places_.place<T>(count);
    elements_bytes_ += count * static_cast<std::int64_t>(sizeof(T));
    return memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + here.offset_bytes);
  }
  std::int64_t bytes() const { return places_.bytes(); }
  /// Without the padding between tensors: what the accounting predicts.
  std::int64_t payload_bytes() const { return elements_bytes_; }

 private:
  std::byte* memory_;
  layout places_;
  std::int64_t elements_bytes_ = 0;
};

// Rows that query (or key) norm normalises, one rstd each.
constexpr std::int64_t norm_rows(qk_norm_kind kind, std::int64_t tokens, std::int64_t heads) {
  return kind == qk_norm_kind::per_head ? tokens * heads : tokens;
}
}  // namespace detail

/// The activation arena of a model for up to `tokens` tokens.
template <class Policy>
class activations {
 public:
  using compute = typename Policy::compute;
  using real = real_of<compute>;

  activations(const Policy& run, const model_plan& plan, std::int64_t tokens)
      : tokens_(tokens),
        recomputed_(run.recompute() == recomputation::visits),
        visits_(plan.visits.size()) {
    const std::int64_t bytes = place(plan, nullptr);
    memory_ = allocate(run, bytes, "activations");
    place(plan, memory_.data());
  }

  std::int64_t bytes() const { return memory_.bytes(); }
  std::int64_t payload_bytes() const { return payload_bytes_; }

  const visit_activations<compute>& visit(std::size_t index) const { return visits_[index]; }
  /// Output of the last layer [N, H], its norm's statistics, and what the head reads.
  real* final_residual() const { return final_residual_; }
  real* final_rstd() const { return final_rstd_; }
  compute* final_input() const { return final_input_; }

 private:
  // Points every tensor into `memory`, or only measures where that is null; returns the bytes.
  std::int64_t place(const model_plan& plan, std::byte* memory) {
    detail::arena_writer kept(memory);
    const std::int64_t n = tokens_;
    final_residual_ = kept.take<real>(n * plan.hidden);
    final_rstd_ = kept.take<real>(n);
    final_input_ = kept.take<compute>(n * plan.hidden);
    std::vector<const visit_activations<compute>*> first_visit(plan.layers.size(), nullptr);
    // What every visit keeps for itself, recomputed or not.
    for (std::size_t i = 0; i < visits_.size(); ++i) {
      const visit_plan& visit = plan.visits[i];
      visit_activations<compute>& a = visits_[i];
      a = {};
      a.residual_in = kept.take<real>(n * plan.hidden);
      if (!plan.attention.kv_shared_by_visits) continue;
      auto& first = first_visit[static_cast<std::size_t>(visit.layer)];
      if (first == nullptr) {
        a.key = kept.take<real>(n * plan.attention.kv_width());
        a.value = kept.take<real>(n * plan.attention.kv_width());
        first = &a;
      }
      a.key = first->key;
      a.value = first->value;
    }
    // The rest: one behind the other, or all in the same place.
    std::int64_t bytes = kept.bytes();
    std::int64_t widest_payload = 0, all_payload = 0;
    const std::int64_t begin = bytes;
    for (std::size_t i = 0; i < visits_.size(); ++i) {
      const std::int64_t offset = recomputed_ ? begin : bytes;
      detail::arena_writer writer(memory == nullptr ? nullptr : memory + offset);
      place_visit(plan, plan.visits[i], visits_[i], writer);
      bytes = std::max(bytes, offset + writer.bytes());
      widest_payload = std::max(widest_payload, writer.payload_bytes());
      all_payload += writer.payload_bytes();
    }
    payload_bytes_ = kept.payload_bytes() + (recomputed_ ? widest_payload : all_payload);
    return bytes;
  }

  void place_visit(const model_plan& plan, const visit_plan& visit, visit_activations<compute>& a,
                   detail::arena_writer& writer) const {
    const std::int64_t n = tokens_;
    const std::int64_t hidden = plan.hidden;
    const attention_shape& shape = plan.attention;
    const std::int64_t q = shape.query_width();
    const std::int64_t kv = shape.kv_width();
    const bool own_keys = !shape.kv_shared_by_visits || visit.visit == 0;
    a.attention_rstd = writer.take<real>(n);
    a.attention_input = writer.take<compute>(n * hidden);
    if (shape.norm != qk_norm_kind::none) {
      a.query_raw = writer.take<real>(n * q);
      a.query_rstd = writer.take<real>(detail::norm_rows(shape.norm, n, shape.query_heads));
      if (own_keys) {
        a.key_raw = writer.take<real>(n * kv);
        a.key_rstd = writer.take<real>(detail::norm_rows(shape.norm, n, shape.kv_heads));
      }
    }
    a.query = writer.take<real>(n * q);
    if (!shape.kv_shared_by_visits) {
      a.key = writer.take<real>(n * kv);
      a.value = writer.take<real>(n * kv);
    }
    a.attention_output = writer.take<compute>(n * q);
    a.logsumexp = writer.take<real>(shape.query_heads * n);
    a.residual_middle = writer.take<real>(n * hidden);
    a.ffn_rstd = writer.take<real>(n);
    a.ffn_input = writer.take<compute>(n * hidden);
    place_ffn(plan.layers[static_cast<std::size_t>(visit.layer)].ffn, a, writer);
  }

  void place_ffn(const ffn_shape& ffn, visit_activations<compute>& a,
                 detail::arena_writer& writer) const {
    const std::int64_t n = tokens_;
    if (ffn.is_dense()) {
      a.gate_up = writer.take<compute>(n * 2 * ffn.width);
      return;
    }
    const std::int64_t slots = n * ffn.top_k;
    a.probabilities = writer.take<real>(n * ffn.experts);
    a.router_logsumexp = writer.take<real>(n);
    a.chosen = writer.take<std::int32_t>(slots);
    a.expert_weights = writer.take<real>(slots);
    a.dispatch = {.tokens = n,
                  .experts = ffn.experts,
                  .top_k = ffn.top_k,
                  .offsets = writer.take<std::int64_t>(ffn.experts + 1),
                  .slot_of = writer.take<std::int64_t>(slots),
                  .token_of = writer.take<std::int64_t>(slots),
                  .choice_of = writer.take<std::int32_t>(slots)};
    a.gate_up = writer.take<compute>(slots * 2 * ffn.width);
    if (ffn.shared_width > 0) a.shared_gate_up = writer.take<compute>(n * 2 * ffn.shared_width);
  }

  std::int64_t tokens_;
  bool recomputed_;
  std::int64_t payload_bytes_ = 0;
  buffer_of<Policy> memory_;
  std::vector<visit_activations<compute>> visits_;
  real* final_residual_ = nullptr;
  real* final_rstd_ = nullptr;
  compute* final_input_ = nullptr;
};

}  // namespace smelt
