// SPDX-License-Identifier: Apache-2.0
//
// cuda_context: what the copies of one CUDA policy share: device, stream, cuBLAS, scratch memory.
//
// Scratch is asked for by tag and grows to the largest request; after one step of a shape nothing
// grows any more, and a captured graph keeps valid pointers, since outgrown memory is not freed
// before the context ends. Work of one context is in order on one stream, so two ops may share a
// tag one after the other.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "smelt/error.hpp"
#include "smelt/exec/cuda/error.cuh"

namespace smelt {
inline namespace cuda_backend {

/// How many CUDA devices this process can use: 0 without a driver, a device, or the right to them.
inline int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // asking is no fault of later calls
    return 0;
  }
  return count;
}

namespace cuda_detail {

// "asked for 12 bytes of device memory, 34 of 56 are free"
inline std::string no_memory(std::int64_t bytes, const char* purpose) {
  std::size_t free_bytes = 0, all_bytes = 0;
  static_cast<void>(cudaMemGetInfo(&free_bytes, &all_bytes));
  return "out of device memory: asked for " + std::to_string(bytes) + " bytes for " + purpose +
         ", free are " + std::to_string(free_bytes) + " of " + std::to_string(all_bytes) +
         "; use a smaller batch, context or model, or recomputation";
}

// Uninitialised device memory; throws smelt::error with the figures where there is none.
inline std::byte* device_bytes(std::int64_t bytes, const char* purpose) {
  if (bytes <= 0) return nullptr;
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, static_cast<std::size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    throw out_of_memory(no_memory(bytes, purpose));
  }
  check(status, "cudaMalloc of " + std::to_string(bytes) + " bytes for " + purpose);
  return static_cast<std::byte*>(memory);
}

// One address per tag type.
template <class Tag>
inline const char tag_address = 0;

}  // namespace cuda_detail

class cuda_context {
 public:
  /// The current device; `stream` null makes a stream of the context's own.
  explicit cuda_context(cudaStream_t stream) : stream_(stream), owns_stream_(stream == nullptr) {
    if (cuda_device_count() == 0)
      throw error(
          "cuda: no CUDA device here (no driver, no GPU, or none visible to this process); run on "
          "the CPU with the policy host{}");
    cuda_detail::check(cudaGetDevice(&device_), "cudaGetDevice");
    const int major = attribute(cudaDevAttrComputeCapabilityMajor);
    const int minor = attribute(cudaDevAttrComputeCapabilityMinor);
    if (major < 8)
      throw error("cuda: device " + std::to_string(device_) + " has compute capability " +
                  std::to_string(major) + "." + std::to_string(minor) +
                  ", expected 8.0 or newer (bf16 tensor cores); run on the CPU with host{}");
    multiprocessors_ = attribute(cudaDevAttrMultiProcessorCount);
    shared_bytes_ = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    if (owns_stream_)
      cuda_detail::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
                         "cudaStreamCreate");
    cuda_detail::check(cublasCreate(&cublas_), "cublasCreate");
    cuda_detail::check(cublasSetStream(cublas_, stream_), "cublasSetStream");
    // A workspace of ours: cuBLAS then allocates nothing, also while a graph is captured.
    constexpr std::int64_t workspace_bytes = 32 << 20;
    struct cublas_workspace;
    cuda_detail::check(cublasSetWorkspace(cublas_, scratch<cublas_workspace>(workspace_bytes),
                                          static_cast<std::size_t>(workspace_bytes)),
                       "cublasSetWorkspace");
  }
  cuda_context(const cuda_context&) = delete;
  cuda_context& operator=(const cuda_context&) = delete;
  ~cuda_context() {
    // Nothing to be done about failures here; the first one was reported where it happened.
    static_cast<void>(cudaStreamSynchronize(stream_));
    static_cast<void>(cublasDestroy(cublas_));
    for (void* memory : allocations_) static_cast<void>(cudaFree(memory));
    if (owns_stream_) static_cast<void>(cudaStreamDestroy(stream_));
  }

  int device() const { return device_; }
  cudaStream_t stream() const { return stream_; }
  cublasHandle_t cublas() const { return cublas_; }
  int multiprocessors() const { return multiprocessors_; }
  /// Largest shared memory of one block, in bytes.
  int shared_bytes() const { return shared_bytes_; }
  /// Device memory held as scratch, in bytes, outgrown pieces included.
  std::int64_t scratch_bytes() const { return scratch_bytes_; }

  /// At least `bytes` bytes of device memory that belong to Tag.
  template <class Tag>
  std::byte* scratch(std::int64_t bytes) {
    piece& here = pieces_[&cuda_detail::tag_address<Tag>];
    if (here.bytes < bytes) {
      here.memory = cuda_detail::device_bytes(bytes, "scratch");
      here.bytes = bytes;
      allocations_.push_back(here.memory);
      scratch_bytes_ += bytes;
    }
    return here.memory;
  }

 private:
  struct piece {
    std::byte* memory = nullptr;
    std::int64_t bytes = 0;
  };
  int attribute(cudaDeviceAttr which) const {
    int value = 0;
    cuda_detail::check(cudaDeviceGetAttribute(&value, which, device_), "cudaDeviceGetAttribute");
    return value;
  }

  int device_ = 0;
  cudaStream_t stream_;
  bool owns_stream_;
  cublasHandle_t cublas_ = nullptr;
  int multiprocessors_ = 0;
  int shared_bytes_ = 0;
  std::int64_t scratch_bytes_ = 0;
  std::map<const void*, piece> pieces_;
  std::vector<void*> allocations_;
};

}  // namespace cuda_backend
}  // namespace smelt
