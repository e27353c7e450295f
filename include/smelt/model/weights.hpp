// SPDX-License-Identifier: Apache-2.0
//
// Weights of a model: one arena of master weights, the copy that products read, and their start.
//
//   matrices    normal(0, 1/sqrt(3 inputs))          gains  1
//   output and down projections: times 1/sqrt(2 executed layers), so that the variance of the
//   residual stream does not grow with depth (each visit of a looped layer adds its updates)
//   embedding   normal(0, 1/sqrt(hidden))
//
// The paper does not print its initialisation. Numbers come from a counter-based generator: weight
// i of the arena depends on the seed and i alone, so neither threads nor order can change it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "smelt/exec/buffer.hpp"
#include "smelt/exec/matrix.hpp"
#include "smelt/exec/policy.hpp"
#include "smelt/exec/random.hpp"
#include "smelt/model/plan.hpp"

namespace smelt {

/// Calls visit(name, place) for every tensor of a model once; a tied head is the embedding and is
/// not called again. Names are those of a checkpoint, e.g. "layers.3.query".
template <class Visit>
void for_each_tensor(const model_plan& plan, Visit&& visit) {
  visit(std::string("embedding"), plan.embedding);
  if (!plan.tied()) visit(std::string("head"), plan.head);
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    const layer_plan& layer = plan.layers[i];
    const std::string prefix = "layers." + std::to_string(i) + ".";
    const auto call = [&](const char* name, const tensor_place& place) {
      if (place.exists()) visit(prefix + name, place);
    };
    call("attention_norm", layer.attention_norm);
    call("query", layer.query);
    call("key", layer.key);
    call("value", layer.value);
    call("output", layer.output);
    call("query_norm", layer.query_norm);
    call("key_norm", layer.key_norm);
    call("ffn_norm", layer.ffn_norm);
    call("router", layer.router);
    call("gate_up", layer.gate_up);
    call("down", layer.down);
    call("shared_gate_up", layer.shared_gate_up);
    call("shared_down", layer.shared_down);
  }
  visit(std::string("final_norm"), plan.final_norm);
}

/// An arena of one element type with the tensors of a plan, in the memory of a policy. Zero at
/// birth.
template <class T, class Policy>
class tensor_arena {
 public:
  tensor_arena(const Policy& run, const model_plan& plan, const char* purpose)
      : memory_(allocate(run, plan.elements * static_cast<std::int64_t>(sizeof(T)), purpose)),
        elements_(plan.elements) {
    memory_.zero();
  }
  T* data() const { return reinterpret_cast<T*>(memory_.data()); }
  std::int64_t elements() const { return elements_; }
  std::int64_t bytes() const { return memory_.bytes(); }
  void zero() { memory_.zero(); }

  T* at(const tensor_place& place) const { return data() + place.offset; }
  matrix_view<T> matrix(const tensor_place& place) const {
    return {at(place), place.rows, place.columns};
  }
  matrix_view<const T> constant(const tensor_place& place) const { return matrix(place); }

 private:
  buffer_of<Policy> memory_;
  std::int64_t elements_;
};

/// Standard deviation of a tensor's weights at the start; 0 for a gain, which starts at 1.
inline double initial_deviation(const model_plan& plan, const std::string& name,
                                const tensor_place& place) {
  if (place.offset >= plan.matrix_elements) return 0.0;
  if (name == "embedding") return 1.0 / std::sqrt(static_cast<double>(place.columns));
  const bool to_residual = name.ends_with("output") || name.ends_with("down");
  const double depth = 1.0 / std::sqrt(2.0 * static_cast<double>(plan.visits.size()));
  return (to_residual ? depth : 1.0) / std::sqrt(3.0 * static_cast<double>(place.columns));
}

/// Weight `index` of the arena at the start.
inline double initial_weight(std::uint64_t seed, std::int64_t index, double deviation) {
  return deviation == 0.0 ? 1.0
                          : deviation * random_normal(seed, static_cast<std::uint64_t>(index));
}

inline namespace host_backend {

/// Fills master weights from a seed.
template <class Compute, class Real = real_of<Compute>>
void initialize_weights(const host<Compute>& run, const model_plan& plan, std::uint64_t seed,
                        const tensor_arena<Real, host<Compute>>& weights) {
  for_each_tensor(plan, [&](const std::string& name, const tensor_place& place) {
    const double deviation = initial_deviation(plan, name, place);
    for_each_block(run, place.count(), 1 << 12, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        weights.at(place)[i] = static_cast<Real>(initial_weight(seed, place.origin + i, deviation));
    });
  });
}

/// Rounds master weights into the copy that products read.
template <class Compute, class Real = real_of<Compute>>
void copy_weights(const host<Compute>& run, const tensor_arena<Real, host<Compute>>& from,
                  const tensor_arena<Compute, host<Compute>>& to) {
  for_each_block(run, from.elements(), 1 << 14, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) to.data()[i] = static_cast<Compute>(from.data()[i]);
  });
}

}  // namespace host_backend
}  // namespace smelt
