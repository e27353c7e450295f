// SPDX-License-Identifier: Apache-2.0
//
// The key-value cache of one token: 2 kv elements per executed layer (every visit has its own), or
// per physical layer where the visits share one. Source: paper section 3.
#pragma once

#include <cstdint>

#include "smelt/arch/language_model.hpp"

namespace smelt {

/// Storage types of a cache or a weight; only their size matters here. Bytes per element.
namespace storage {
struct float32 {
  static constexpr std::int64_t bytes = 4;
};
struct bf16 {
  static constexpr std::int64_t bytes = 2;
};
struct fp8 {
  static constexpr std::int64_t bytes = 1;
};
}  // namespace storage

/// Elements (not bytes) that the cache keeps for one token, keys and values, all layers.
template <countable A>
inline constexpr std::int64_t kv_elements_per_token = 2 * body_of<A>::attention.kv_width() *
                                                      (body_of<A>::attention.kv_shared_by_visits
                                                           ? layers<body_of<A>>
                                                           : executed_layers<body_of<A>>);

/// Bytes of cache for one token.
template <countable A, class Storage = storage::bf16>
inline constexpr std::int64_t kv_bytes_per_token = kv_elements_per_token<A>* Storage::bytes;

}  // namespace smelt
