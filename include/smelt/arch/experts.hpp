// SPDX-License-Identifier: Apache-2.0
//
// The feed-forward half of a layer as a type: a dense SwiGLU, or routed SwiGLU experts.
//
//   SwiGLU(x) = W_down (silu(W_gate x) * (W_up x))     three matrices of hidden * width
//   MoE(x)    = sum over the top-k experts e of weight_e(x) * SwiGLU_e(x)  [+ SwiGLU_shared(x)]
//
// Source: paper sections 1 and 3; shared experts as in DeepSeekMoE.
#pragma once

#include <concepts>
#include <cstdint>

namespace smelt {

/// An expert that every token visits beside its routed ones; Width is its own, in elements.
template <std::int64_t Width>
struct shared {
  static_assert(Width > 0,
                "shared<Width>: the width must be at least 1; leave shared<> out for none");
  static constexpr std::int64_t width = Width;
};

/// Stands for the absence of a shared expert.
struct no_shared {
  static constexpr std::int64_t width = 0;
};

namespace detail {
template <class T>
inline constexpr std::int64_t shared_width_of = -1;
template <>
inline constexpr std::int64_t shared_width_of<no_shared> = 0;
template <std::int64_t Width>
inline constexpr std::int64_t shared_width_of<shared<Width>> = shared<Width>::width;
}  // namespace detail

/// Routed experts: each token goes to TopK of Experts, each a SwiGLU of Width elements.
template <std::int64_t Experts, std::int64_t TopK, std::int64_t Width, class Shared = no_shared>
struct moe {
  static_assert(Experts > 0, "moe<Experts, TopK, Width>: Experts must be at least 1");
  static_assert(TopK > 0, "moe<Experts, TopK, Width>: TopK must be at least 1");
  static_assert(Width > 0, "moe<Experts, TopK, Width>: Width must be at least 1");
  static_assert(TopK <= Experts,
                "moe<Experts, TopK, Width>: TopK must not exceed Experts, because a token chooses "
                "TopK different experts");
  static_assert(detail::shared_width_of<Shared> >= 0,
                "moe<Experts, TopK, Width, Shared>: the fourth argument must be shared<Width>; "
                "leave it out for no shared expert");
  static constexpr std::int64_t experts = Experts;
  static constexpr std::int64_t top_k = TopK;
  static constexpr std::int64_t width = Width;
  static constexpr std::int64_t shared_width = detail::shared_width_of<Shared>;
};

/// One SwiGLU of Width elements for every token; no router.
template <std::int64_t Width>
struct dense {
  static_assert(Width > 0, "dense<Width>: the width must be at least 1");
  static constexpr std::int64_t width = Width;
};

/// Weights of the chosen experts: the softmax over all experts, divided by the sum over the chosen
/// (they then add up to 1: Mixtral, Qwen3), or as the softmax gives them (OLMoE).
namespace router {
struct renormalized {};
struct plain_softmax {};
}  // namespace router

/// The same facts as numbers. A dense layer has experts = 0 and its width in `width`.
struct ffn_shape {
  std::int64_t experts = 0;
  std::int64_t top_k = 0;
  std::int64_t width = 0;
  std::int64_t shared_width = 0;

  constexpr bool is_dense() const { return experts == 0; }
  /// SwiGLU width that one token passes through, all its experts together.
  constexpr std::int64_t active_width() const {
    return (is_dense() ? width : top_k * width) + shared_width;
  }
  /// SwiGLU width that the layer holds.
  constexpr std::int64_t stored_width() const {
    return (is_dense() ? width : experts * width) + shared_width;
  }
  constexpr bool operator==(const ffn_shape&) const = default;
};

namespace detail {
template <class T>
inline constexpr bool is_ffn = false;
template <std::int64_t E, std::int64_t K, std::int64_t W, class S>
inline constexpr bool is_ffn<moe<E, K, W, S>> = true;
template <std::int64_t W>
inline constexpr bool is_ffn<dense<W>> = true;

template <class T>
inline constexpr ffn_shape ffn_shape_of{};
template <std::int64_t E, std::int64_t K, std::int64_t W, class S>
inline constexpr ffn_shape ffn_shape_of<moe<E, K, W, S>>{E, K, W, moe<E, K, W, S>::shared_width};
template <std::int64_t W>
inline constexpr ffn_shape ffn_shape_of<dense<W>>{0, 0, dense<W>::width, 0};

template <class T>
concept router_option =
    std::same_as<T, router::renormalized> || std::same_as<T, router::plain_softmax>;
}  // namespace detail

}  // namespace smelt
