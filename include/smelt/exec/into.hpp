// SPDX-License-Identifier: Apache-2.0
//
// into: what an op does with the memory of its result.
//
// Gradients of a layer that is executed several times are added up; results of its first execution
// begin the sum. Every product and every backward pass takes this as an argument, on every backend.
#pragma once

#include <cstdint>

namespace smelt {

/// Whether a result overwrites what is there or is added to it.
enum class into : std::uint8_t { overwrite, accumulate };

}  // namespace smelt
