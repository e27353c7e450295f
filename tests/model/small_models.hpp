// SPDX-License-Identifier: Apache-2.0
//
// Small language models that between them use every choice a type offers, and batches for them.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "op/gradient.hpp"
#include "smelt/host.hpp"
#include "support/tensor.hpp"

namespace smelt::test {

template <class Body, class Tying = untied>
using tiny = language_model<Body, vocabulary<11>, Tying>;

// A looped MoE with prelude and coda, grouped queries.
using looped_moe = tiny<
    transformer<hidden<12>, gqa<4, 2, 4>, moe<5, 2, 6>, stack<plain<1>, looped<2, 2>, plain<1>>>>;
// Shared expert, tied head, per-head query and key norm, raw softmax weights, unscaled residual.
using shared_expert =
    tiny<transformer<hidden<12>, mha<3, 4>, moe<5, 2, 6, shared<7>>, stack<looped<2, 3>>,
                     qk_norm::per_head, router::plain_softmax, residual_scale::one>,
         tied>;
// Dense layers inside a MoE stack, full-width norms, one cache for all visits, odd width.
using mixed = tiny<transformer<hidden<12>, gqa<4, 1, 6>, moe<7, 3, 5>,
                               stack<plain<1, dense<9>>, looped<2, 3>, repeated<2, looped<1, 2>>>,
                               qk_norm::full_width, kv_cache::shared>>;
// A dense looped model without positions; query width apart from hidden, odd head size.
using dense_looped = tiny<
    transformer<hidden<8>, gqa<4, 4, 3>, dense<10>, stack<plain<1>, looped<1, 4>>, position::none>,
    tied>;
// One layer, many visits, a shared cache without norms.
using one_layer =
    tiny<transformer<hidden<8>, gqa<2, 1, 4>, moe<3, 1, 4>, stack<looped<1, 4>>, kv_cache::shared>>;
// The unlooped ones.
using plain_moe = tiny<transformer<hidden<8>, gqa<2, 2, 4>, moe<4, 2, 8>, stack<plain<3>>>>;
using plain_dense = tiny<transformer<hidden<8>, mha<2, 4>, dense<16>, stack<plain<2>>>>;
// Every expert active: the router's weights are all that routes.
using all_active =
    tiny<transformer<hidden<8>, mha<2, 4>, moe<4, 4, 4>, stack<plain<1>, looped<1, 2>>>>;

/// A batch of seeded tokens in documents of these lengths; the last token of each has no target.
inline token_batch documents_of(const std::vector<std::int64_t>& lengths, std::uint32_t seed,
                                std::int32_t vocabulary = 11) {
  std::int64_t total = 0;
  for (const std::int64_t length : lengths) total += length;
  token_batch batch(total);
  std::mt19937 generator(seed);
  for (const std::int64_t length : lengths) {
    std::vector<std::int32_t> document(static_cast<std::size_t>(length));
    for (std::int32_t& token : document)
      token = static_cast<std::int32_t>(generator() % static_cast<std::uint32_t>(vocabulary));
    batch.add_segment(document.data(), length, no_target);
  }
  return batch;
}

/// Options under which a test trains: every loss term switched on.
inline training_options test_options(std::int64_t tokens, std::int64_t steps = 100) {
  training_options options;
  options.batch_tokens = tokens;
  options.schedule = {.peak = 3e-3, .warmup_steps = 0, .decay_steps = 0, .steps = steps};
  options.balance_coefficient = 0.05;
  options.z_coefficient = 0.01;
  return options;
}

/// An arena of a trainer as the host sees it.
template <class Model, class Policy, class Real>
std::vector<Real> arena_of(trainer<Model, Policy>& t, const Real* data) {
  std::vector<Real> values(static_cast<std::size_t>(t.plan().elements));
  download(t.policy(), data, t.plan().elements, values.data());
  return values;
}
template <class Model, class Policy>
auto weights_of(trainer<Model, Policy>& t) {
  return arena_of(t, static_cast<const typename Policy::real*>(t.state().weights.data()));
}
template <class Model, class Policy>
auto gradients_of(trainer<Model, Policy>& t) {
  return arena_of(t, static_cast<const typename Policy::real*>(t.state().gradients.data()));
}
template <class Model, class Policy>
void set_weights(trainer<Model, Policy>& t, const std::vector<typename Policy::real>& values) {
  upload(t.policy(), values.data(), t.plan().elements, t.state().weights.data());
  t.state().refresh_copy(t.policy());
}

}  // namespace smelt::test
