// SPDX-License-Identifier: Apache-2.0
//
// The pair on CUDA: the same types, another policy.
#include "smelt/cuda.hpp"

#include "policy_engine.hpp"

namespace pair {
namespace {
template <class Compute>
std::unique_ptr<engine> on_cuda(const std::string& precision) {
  const smelt::cuda<Compute> run;
  cudaDeviceProp device{};
  smelt::cuda_detail::check(cudaGetDeviceProperties(&device, run.context().device()),
                            "cudaGetDeviceProperties");
  return std::make_unique<policy_engine<smelt::cuda<Compute>>>(
      run, std::string(device.name) + ", " + precision + " products by cuBLAS");
}
}  // namespace

std::unique_ptr<engine> cuda_engine(const std::string& precision) {
  return precision == "bf16" ? on_cuda<smelt::bf16>(precision) : on_cuda<float>(precision);
}

}  // namespace pair
