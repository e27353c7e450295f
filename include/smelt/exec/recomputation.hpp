// SPDX-License-Identifier: Apache-2.0
//
// recomputation: which activations a training step keeps, and which it computes again.
//
//   none    every visit keeps what its backward pass reads
//   visits  a visit keeps its input alone, [N, H]; its backward pass runs its forward pass again
//
// Memory for time: activations fall from the sum over visits to one visit, for one more forward
// pass, a third of a step's products. Router statistics belong to the backward pass and are counted
// once either way.
#pragma once

#include <cstdint>

namespace smelt {

enum class recomputation : std::uint8_t { none, visits };

}  // namespace smelt
