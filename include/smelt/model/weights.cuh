// SPDX-License-Identifier: Apache-2.0
//
// Weights of a model on CUDA: the start is made on the host, in double, by the same numbers as a
// host model's, and uploaded; so two backends that share a seed share every bit of it. The bf16
// copy is made on the device. Bytes: 4 a parameter over the bus, once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "smelt/kernel/residual.cuh"
#include "smelt/model/weights.hpp"

namespace smelt {
inline namespace cuda_backend {

/// Fills master weights from a seed.
template <class Compute>
void initialize_weights(const cuda<Compute>& run, const model_plan& plan, std::uint64_t seed,
                        const tensor_arena<float, cuda<Compute>>& weights) {
  // A piece at a time: a model of billions of weights need not exist on the host as well.
  constexpr std::int64_t most_elements = std::int64_t{1} << 24;
  std::vector<float> piece;
  for_each_tensor(plan, [&](const std::string& name, const tensor_place& place) {
    const double deviation = initial_deviation(plan, name, place);
    for (std::int64_t first = 0; first < place.count(); first += most_elements) {
      const std::int64_t count = std::min(most_elements, place.count() - first);
      piece.resize(static_cast<std::size_t>(count));
      for_each_block(
          available_threads(), count, 1 << 12, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin; i < end; ++i)
              piece[static_cast<std::size_t>(i)] =
                  static_cast<float>(initial_weight(seed, place.origin + first + i, deviation));
          });
      upload(run, piece.data(), count, weights.at(place) + first);
    }
  });
}

/// Rounds master weights into the copy that products read.
template <class Compute>
void copy_weights(const cuda<Compute>& run, const tensor_arena<float, cuda<Compute>>& from,
                  const tensor_arena<Compute, cuda<Compute>>& to) {
  scaled(run, matrix_view<const float>(from.data(), 1, from.elements()), 1.0F,
         matrix_view<Compute>(to.data(), 1, to.elements()));
}

}  // namespace cuda_backend
}  // namespace smelt
