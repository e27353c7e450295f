// SPDX-License-Identifier: Apache-2.0
//
// Checks of CUDA calls: a status that is not success becomes a smelt::error in words.
//
// CUDA reports a fault of a kernel at some later call. The message therefore names the call that
// saw it; a kernel's own launch is named by launch.cuh.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <string>

#include "smelt/error.hpp"

namespace smelt {
inline namespace cuda_backend {
namespace cuda_detail {

inline void check(cudaError_t status, const std::string& call) {
  if (status == cudaSuccess) return;
  throw error("CUDA: " + call + ": " + cudaGetErrorString(status) + " (" +
              cudaGetErrorName(status) + ")");
}

inline void check(cublasStatus_t status, const std::string& call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw error("cuBLAS: " + call + ": " + cublasGetStatusString(status));
}

}  // namespace cuda_detail
}  // namespace cuda_backend
}  // namespace smelt
