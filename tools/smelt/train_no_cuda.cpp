// SPDX-License-Identifier: Apache-2.0
//
// In place of train_cuda.cu where the program is built without nvcc.
#include "device_trainers.hpp"
#include "smelt/error.hpp"

namespace smelt_tool {

std::unique_ptr<device_trainers> trainers_on_cuda(ranks&, const request&) {
  throw smelt::error(
      "--device cuda: expected a program that was built with CUDA, found one without, as there was "
      "no nvcc; install the CUDA toolkit and build again, or train with --device cpu");
}

}  // namespace smelt_tool
