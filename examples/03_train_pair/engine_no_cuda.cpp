// SPDX-License-Identifier: Apache-2.0
//
// In place of engine_cuda.cu where the program is built without nvcc.
#include "engine.hpp"
#include "smelt/error.hpp"

namespace pair {

std::unique_ptr<engine> cuda_engine(const std::string&) {
  throw smelt::error(
      "this train_pair was built without CUDA, as no nvcc was found; install the CUDA toolkit and "
      "build again, or train with --device cpu");
}

}  // namespace pair
