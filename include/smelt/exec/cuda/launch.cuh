// SPDX-License-Identifier: Apache-2.0
//
// launch: starts a kernel on a policy's stream and turns a refusal into words: which kernel, which
// shapes, which grid. Grids are one-dimensional, since the second dimension ends at 65,535 blocks.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "smelt/exec/cuda/policy.cuh"

namespace smelt {
inline namespace cuda_backend {

/// What a message says of a kernel: its name and the sizes it was given.
struct kernel_call {
  const char* name;
  std::array<std::int64_t, 4> shape{};  // trailing zeros are left out

  std::string text() const {
    std::string words = std::string(name) + " [";
    std::size_t last = shape.size();
    while (last > 1 && shape[last - 1] == 0) --last;
    for (std::size_t i = 0; i < last; ++i) words += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
    return words + "]";
  }
};

/// How many blocks, of how many threads, with how much dynamic shared memory.
struct kernel_grid {
  std::int64_t blocks = 0;
  int threads = 0;
  int shared_bytes = 0;
};

/// Blocks for `count` items of `each` per block.
constexpr std::int64_t blocks_for(std::int64_t count, std::int64_t each) {
  return (count + each - 1) / each;
}

/// Starts kernel(arguments...); nothing where the grid is empty. Throws smelt::error naming the
/// kernel and its shapes where CUDA refuses it.
template <class Compute, class... Parameters, class... Arguments>
void launch(const cuda<Compute>& run, const kernel_call& call, const kernel_grid& grid,
            void (*kernel)(Parameters...), Arguments&&... arguments) {
  if (grid.blocks == 0) return;
  const auto fail = [&](const char* what) {
    throw error("CUDA: " + call.text() + ": " + what + " (grid of " + std::to_string(grid.blocks) +
                " blocks of " + std::to_string(grid.threads) + " threads, " +
                std::to_string(grid.shared_bytes) + " bytes of shared memory)");
  };
  constexpr std::int64_t most_blocks = (std::int64_t{1} << 31) - 1;
  if (grid.blocks < 0 || grid.blocks > most_blocks) fail("more than 2^31 - 1 blocks");
  // Beyond 48 KiB, static shared memory included, a kernel must be told.
  constexpr int plain_shared_bytes = 32 << 10;
  if (grid.shared_bytes > plain_shared_bytes) {
    if (grid.shared_bytes > run.context().shared_bytes())
      fail("more shared memory than a block of this device can have");
    const cudaError_t status =
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, grid.shared_bytes);
    if (status != cudaSuccess) fail(cudaGetErrorString(status));
  }
  kernel<<<static_cast<unsigned>(grid.blocks), static_cast<unsigned>(grid.threads),
           static_cast<std::size_t>(grid.shared_bytes), run.stream()>>>(
      std::forward<Arguments>(arguments)...);
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) fail(cudaGetErrorString(status));
}

}  // namespace cuda_backend
}  // namespace smelt
