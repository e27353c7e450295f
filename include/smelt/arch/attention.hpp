// SPDX-License-Identifier: Apache-2.0
//
// Attention as a type: grouped-query heads and the three choices that change a budget or a shape.
//
//   query width  q  = query heads * head size      (need not equal the hidden size)
//   key width    kv = key-value heads * head size  (keys and values each have this width)
//
// Source: paper section 1 (GQA, a cache per visit); query width apart from hidden as in Qwen3.
#pragma once

#include <concepts>
#include <cstdint>

namespace smelt {

/// Width of the residual stream, in elements.
template <std::int64_t Size>
struct hidden {
  static_assert(Size > 0, "hidden<Size>: the hidden size must be at least 1");
  static constexpr std::int64_t size = Size;
};

/// Grouped-query attention: QueryHeads heads of HeadDim elements share KvHeads key-value heads.
/// Fewer key-value heads shrink the projections and the cache; the products QK and AV stay as they
/// are, because every query head still meets every attended position.
template <std::int64_t QueryHeads, std::int64_t KvHeads, std::int64_t HeadDim>
struct gqa {
  static_assert(QueryHeads > 0, "gqa<QueryHeads, KvHeads, HeadDim>: QueryHeads must be at least 1");
  static_assert(KvHeads > 0, "gqa<QueryHeads, KvHeads, HeadDim>: KvHeads must be at least 1");
  static_assert(HeadDim > 0, "gqa<QueryHeads, KvHeads, HeadDim>: HeadDim must be at least 1");
  static_assert(KvHeads <= 0 || QueryHeads % (KvHeads > 0 ? KvHeads : 1) == 0,
                "gqa<QueryHeads, KvHeads, HeadDim>: QueryHeads must be a multiple of KvHeads, "
                "so that each key-value head serves the same number of query heads");
  static constexpr std::int64_t query_heads = QueryHeads;
  static constexpr std::int64_t kv_heads = KvHeads;
  static constexpr std::int64_t head_dim = HeadDim;
};

/// Multi-head attention: every query head has its own key-value head.
template <std::int64_t Heads, std::int64_t HeadDim>
using mha = gqa<Heads, Heads, HeadDim>;

/// RMSNorm of queries and keys before the rotation: over each head (one gain vector of HeadDim for
/// queries, one for keys) or over the full projected width (gains of q and of kv elements).
namespace qk_norm {
struct none {};
struct per_head {};
struct full_width {};
}  // namespace qk_norm

/// Keys and values of a looped layer: one cache for every visit (the paper), or the keys and values
/// of the first visit serve all visits, which then project queries only.
namespace kv_cache {
struct per_visit {};
struct shared {};
}  // namespace kv_cache

/// How a query knows where it stands: rotary embedding with an integral base, or not at all.
namespace position {
template <std::int64_t Base>
struct rope {
  static_assert(Base > 1, "position::rope<Base>: the base must be at least 2 (10000 is usual)");
  static constexpr std::int64_t base = Base;
};
struct none {
  static constexpr std::int64_t base = 0;
};
}  // namespace position

/// Factor of every residual update inside a looped span: 1/visits (the paper) or 1.
namespace residual_scale {
struct inverse_visits {};
struct one {};
}  // namespace residual_scale

enum class qk_norm_kind : std::uint8_t { none, per_head, full_width };

/// The same facts as numbers, for accounting and for the walkers that run a model.
struct attention_shape {
  std::int64_t query_heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  qk_norm_kind norm = qk_norm_kind::none;
  bool kv_shared_by_visits = false;
  std::int64_t rope_base = 0;  // 0: no rotation

  constexpr std::int64_t query_width() const { return query_heads * head_dim; }
  constexpr std::int64_t kv_width() const { return kv_heads * head_dim; }
  constexpr bool operator==(const attention_shape&) const = default;
};

namespace detail {
template <class T>
inline constexpr bool is_hidden = false;
template <std::int64_t Size>
inline constexpr bool is_hidden<hidden<Size>> = true;

template <class T>
inline constexpr bool is_attention = false;
template <std::int64_t Q, std::int64_t K, std::int64_t D>
inline constexpr bool is_attention<gqa<Q, K, D>> = true;

template <class T>
concept qk_norm_option = std::same_as<T, qk_norm::none> || std::same_as<T, qk_norm::per_head> ||
    std::same_as<T, qk_norm::full_width>;
template <class T>
concept kv_cache_option = std::same_as<T, kv_cache::per_visit> || std::same_as<T, kv_cache::shared>;

template <class T>
inline constexpr bool is_rope = false;
template <std::int64_t Base>
inline constexpr bool is_rope<position::rope<Base>> = true;
template <class T>
concept position_option = is_rope<T> || std::same_as<T, position::none>;

template <class T>
concept residual_scale_option =
    std::same_as<T, residual_scale::inverse_visits> || std::same_as<T, residual_scale::one>;
}  // namespace detail

}  // namespace smelt
