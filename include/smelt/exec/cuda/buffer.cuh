// SPDX-License-Identifier: Apache-2.0
//
// Device memory of a policy: an owning buffer, and copies to and from it in stream order.
//
// The same names as the host's (buffer.hpp): allocate, upload, download, copy, clear. A copy from
// or to pageable host memory is finished when the call returns; with pinned memory (pinned_buffer)
// it goes on beside the host.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "smelt/exec/cuda/policy.cuh"

namespace smelt {
inline namespace cuda_backend {

/// Owning, uninitialised device memory, aligned to 256 bytes by CUDA.
class cuda_buffer {
 public:
  cuda_buffer() = default;
  cuda_buffer(std::int64_t bytes, cudaStream_t stream, const char* purpose)
      : memory_(cuda_detail::device_bytes(bytes, purpose)), bytes_(bytes), stream_(stream) {}
  std::int64_t bytes() const { return bytes_; }
  std::byte* data() const { return memory_.get(); }
  /// In order on the stream of the policy that allocated it.
  void zero() {
    if (bytes_ > 0)
      cuda_detail::check(cudaMemsetAsync(data(), 0, static_cast<std::size_t>(bytes_), stream_),
                         "cudaMemsetAsync");
  }

 private:
  struct release {
    void operator()(std::byte* memory) const { static_cast<void>(cudaFree(memory)); }
  };
  std::unique_ptr<std::byte[], release> memory_;
  std::int64_t bytes_ = 0;
  cudaStream_t stream_ = nullptr;
};

/// Owning host memory that a device can copy from and to while the host goes on. Zero at birth.
class pinned_buffer {
 public:
  pinned_buffer() = default;
  explicit pinned_buffer(std::int64_t bytes) : bytes_(bytes) {
    if (bytes <= 0) return;
    void* memory = nullptr;
    cuda_detail::check(cudaMallocHost(&memory, static_cast<std::size_t>(bytes)),
                       "cudaMallocHost of " + std::to_string(bytes) + " bytes");
    memory_.reset(static_cast<std::byte*>(memory));
    std::memset(memory, 0, static_cast<std::size_t>(bytes));
  }
  std::int64_t bytes() const { return bytes_; }
  std::byte* data() const { return memory_.get(); }

 private:
  struct release {
    void operator()(std::byte* memory) const { static_cast<void>(cudaFreeHost(memory)); }
  };
  std::unique_ptr<std::byte[], release> memory_;
  std::int64_t bytes_ = 0;
};

/// The buffer that belongs to a policy; throws smelt::error with what was asked for and what is
/// free where the device has no more.
template <class Compute>
cuda_buffer allocate(const cuda<Compute>& run, std::int64_t bytes,
                     const char* purpose = "an arena") {
  return cuda_buffer(bytes, run.stream(), purpose);
}

/// Host memory -> device memory, `count` elements.
template <class Compute, class T>
void upload(const cuda<Compute>& run, const T* from, std::int64_t count, T* to) {
  if (count > 0)
    cuda_detail::check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(count) * sizeof(T),
                                       cudaMemcpyHostToDevice, run.stream()),
                       "upload of " + std::to_string(count) + " elements");
}

/// Device memory -> host memory, `count` elements, there when it returns.
template <class Compute, class T>
void download(const cuda<Compute>& run, const T* from, std::int64_t count, T* to) {
  if (count > 0)
    cuda_detail::check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(count) * sizeof(T),
                                       cudaMemcpyDeviceToHost, run.stream()),
                       "download of " + std::to_string(count) + " elements");
  run.synchronize();
}

/// Device memory -> device memory, `count` elements that do not overlap.
template <class Compute, class T>
void copy(const cuda<Compute>& run, const T* from, std::int64_t count, T* to) {
  if (count > 0)
    cuda_detail::check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(count) * sizeof(T),
                                       cudaMemcpyDeviceToDevice, run.stream()),
                       "copy of " + std::to_string(count) + " elements");
}

/// `count` elements of device memory become zero bytes.
template <class Compute, class T>
void clear(const cuda<Compute>& run, T* memory, std::int64_t count) {
  if (count > 0)
    cuda_detail::check(
        cudaMemsetAsync(memory, 0, static_cast<std::size_t>(count) * sizeof(T), run.stream()),
        "cudaMemsetAsync");
}

}  // namespace cuda_backend
}  // namespace smelt
