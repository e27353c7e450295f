// SPDX-License-Identifier: Apache-2.0
//
// Parameters, exact. Per physical layer, with hidden H, query width q, key width kv:
//
//   attention 2 H q + 2 H kv      norms 2 H (gain only, no bias)
//   query and key gains: 2 d (per head) or q + kv (full width)
//   router H E    experts 3 H f E    shared expert 3 H f_s    dense 3 H f
//
// A body counts no embedding, final norm or head; a language_model adds V H (2 V H untied) and H.
// Source: paper section 3; its grid and four published models are the test.
#pragma once

#include <cstdint>

#include "smelt/arch/language_model.hpp"
#include "smelt/budget/convention.hpp"

namespace smelt {

/// Parameters of one layer or one model, by part. Elements, not bytes.
struct parameter_split {
  std::int64_t attention = 0;  // four projections
  std::int64_t norms = 0;      // every gain, query and key gains included
  std::int64_t router = 0;
  std::int64_t experts = 0;  // routed experts, or the dense feed-forward
  std::int64_t shared_experts = 0;
  std::int64_t embedding = 0;  // with an untied head: both matrices

  constexpr std::int64_t total() const {
    return attention + norms + router + experts + shared_experts + embedding;
  }
  constexpr parameter_split& add(const parameter_split& other, std::int64_t times) {
    attention += times * other.attention;
    norms += times * other.norms;
    router += times * other.router;
    experts += times * other.experts;
    shared_experts += times * other.shared_experts;
    embedding += times * other.embedding;
    return *this;
  }
};

namespace detail {
// With `width` the stored or the active SwiGLU width of the routed (or dense) part.
constexpr parameter_split layer_parameters(std::int64_t hidden, const attention_shape& attention,
                                           const ffn_shape& ffn, std::int64_t width) {
  const std::int64_t q = attention.query_width();
  const std::int64_t kv = attention.kv_width();
  parameter_split split;
  split.attention = 2 * hidden * q + 2 * hidden * kv;
  split.norms = 2 * hidden;
  if (attention.norm == qk_norm_kind::per_head) split.norms += 2 * attention.head_dim;
  if (attention.norm == qk_norm_kind::full_width) split.norms += q + kv;
  split.router = hidden * ffn.experts;
  split.experts = 3 * hidden * width;
  split.shared_experts = 3 * hidden * ffn.shared_width;
  return split;
}

// stored: all experts; otherwise the active ones. per_visit: a looped layer once per visit.
template <architecture A>
constexpr parameter_split body_parameters(bool stored, bool per_visit) {
  parameter_split total;
  for (const span_shape& span : A::spans) {
    const std::int64_t width =
        (stored ? span.ffn.stored_width() : span.ffn.active_width()) - span.ffn.shared_width;
    total.add(layer_parameters(A::hidden_size, A::attention, span.ffn, width),
              span.layers * (per_visit ? span.visits : 1));
  }
  return total;
}

template <has_head M>
constexpr parameter_split head_parameters() {
  parameter_split split;
  split.embedding = M::vocabulary_size * M::body::hidden_size * (M::is_tied ? 1 : 2);
  split.norms = M::body::hidden_size;  // the final norm
  return split;
}

template <countable A>
constexpr parameter_split all_parameters(bool stored, bool per_visit) {
  parameter_split total = body_parameters<body_of<A>>(stored, per_visit);
  if constexpr (has_head<A>) total.add(head_parameters<A>(), 1);
  return total;
}

template <class... Conventions>
consteval bool counts_per_execution() {
  static_assert((active_convention<Conventions> && ...),
                "active_parameters<A, Conventions...>: a convention must be "
                "convention::per_traversal or convention::per_execution");
  return names<convention::per_execution, Conventions...>;
}
}  // namespace detail

/// Parameters by part.
template <countable A>
inline constexpr parameter_split parameters_split = detail::all_parameters<A>(true, false);

/// All parameters of a body (non-embedding) or of a language model (embedding and head included).
template <countable A>
inline constexpr std::int64_t parameters = parameters_split<A>.total();

/// Parameters that one token meets: attention, norms, router and its top-k (and shared) experts. A
/// looped layer counts once (convention::per_traversal, the paper's) or once per visit
/// (convention::per_execution).
template <countable A, class... Conventions>
inline constexpr std::int64_t active_parameters =
    detail::all_parameters<A>(false, detail::counts_per_execution<Conventions...>()).total();

/// Without embedding and head matrices; the final norm stays in.
template <countable A>
inline constexpr std::int64_t non_embedding_parameters =
    parameters<A> - parameters_split<A>.embedding;

/// Active parameters without embedding and head matrices; the final norm stays in.
template <countable A, class... Conventions>
inline constexpr std::int64_t non_embedding_active_parameters =
    active_parameters<A, Conventions...> - parameters_split<A>.embedding;

}  // namespace smelt
