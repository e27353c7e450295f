// SPDX-License-Identifier: Apache-2.0
//
// Memory: an owning buffer of bytes, a layout that places tensors in it, and a scratch per thread.
//
// One arena each for weights, gradients, optimizer state and activations is a buffer with a layout
// laid out before the first step; a step then allocates nothing. Every tensor starts at a multiple
// of 64 bytes: a cache line, and the widest vector register.
#pragma once

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include "smelt/error.hpp"
#include "smelt/exec/policy.hpp"

namespace smelt {

inline constexpr std::int64_t alignment_bytes = 64;

constexpr std::int64_t aligned_bytes(std::int64_t bytes) {
  return (bytes + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
}

inline namespace host_backend {

namespace host_detail {
// An arena of many megabytes is walked from end to end in every step; in pages of 4 KiB that is a
// miss of the address cache every 4 KiB. Large pages make a training step 8 % faster.
inline constexpr std::int64_t large_page_bytes = 2 << 20;

inline std::int64_t alignment_of(std::int64_t bytes) {
  return bytes >= 2 * large_page_bytes ? large_page_bytes : alignment_bytes;
}

// Advice only: where the system refuses it, or knows no such thing, the pages stay small.
inline void advise_large_pages([[maybe_unused]] void* memory, [[maybe_unused]] std::int64_t bytes) {
#if defined(__linux__)
  static_cast<void>(madvise(memory, static_cast<std::size_t>(bytes), MADV_HUGEPAGE));
#endif
}

struct aligned_delete {
  std::int64_t alignment = alignment_bytes;
  void operator()(std::byte* memory) const {
    ::operator delete[](memory, std::align_val_t(static_cast<std::size_t>(alignment)));
  }
};
}  // namespace host_detail

/// Owning, aligned, uninitialised bytes in the host's memory; large ones in large pages where the
/// system grants them.
class host_buffer {
 public:
  host_buffer() = default;
  explicit host_buffer(std::int64_t bytes, const char* purpose = "scratch") : bytes_(bytes) {
    if (bytes <= 0) return;
    const std::int64_t alignment = host_detail::alignment_of(bytes);
    // nothrow: a sanitizer ends the program in a throwing new that fails.
    memory_ = {new (std::align_val_t(static_cast<std::size_t>(alignment)), std::nothrow)
                   std::byte[static_cast<std::size_t>(bytes)],
               host_detail::aligned_delete{alignment}};
    if (!memory_)
      throw out_of_memory("out of memory: asked for " + std::to_string(bytes) + " bytes for " +
                          purpose + "; use a smaller batch, context or model");
    if (alignment == host_detail::large_page_bytes)
      host_detail::advise_large_pages(memory_.get(), bytes);
  }
  std::int64_t bytes() const { return bytes_; }
  std::byte* data() const { return memory_.get(); }
  void zero() {
    if (bytes_ > 0) std::memset(memory_.get(), 0, static_cast<std::size_t>(bytes_));
  }

 private:
  std::unique_ptr<std::byte[], host_detail::aligned_delete> memory_{nullptr, {}};
  std::int64_t bytes_ = 0;
};

/// The buffer that belongs to a policy. `purpose` is what a message calls it.
template <class Compute>
host_buffer allocate(const host<Compute>&, std::int64_t bytes, const char* purpose = "an arena") {
  return host_buffer(bytes, purpose);
}

/// Copies of `count` elements into and out of a policy's memory, and zeros; on the host,
/// where that is one memory, at once.
template <class Compute, class T>
void upload(const host<Compute>&, const T* from, std::int64_t count, T* to) {
  std::copy_n(from, count, to);
}
template <class Compute, class T>
void download(const host<Compute>&, const T* from, std::int64_t count, T* to) {
  std::copy_n(from, count, to);
}
/// Within the policy's memory; the two do not overlap.
template <class Compute, class T>
void copy(const host<Compute>&, const T* from, std::int64_t count, T* to) {
  std::copy_n(from, count, to);
}
template <class Compute, class T>
void clear(const host<Compute>&, T* memory, std::int64_t count) {
  std::fill_n(memory, count, T{});
}

/// At least `count` elements that belong to the calling thread until it asks again under the same
/// Tag. Grows on first use and then stays, so a step that has run once allocates nothing.
template <class T, class Tag>
T* thread_scratch(std::int64_t count) {
  static_assert(std::is_trivially_copyable_v<T>);
  thread_local host_buffer memory;
  const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(T));
  if (memory.bytes() < bytes) memory = host_buffer(aligned_bytes(bytes));
  return reinterpret_cast<T*>(memory.data());
}

/// `count` elements for each worker of a loop, in memory of the calling thread. A worker's own
/// thread_scratch would allocate when it meets its first block, which may be late in a run.
template <class T, class Tag>
class worker_scratch {
 public:
  worker_scratch(int threads, std::int64_t count)
      : threads_(threads),
        stride_(aligned_bytes(count * static_cast<std::int64_t>(sizeof(T))) /
                static_cast<std::int64_t>(sizeof(T))),
        memory_(thread_scratch<T, Tag>(threads * stride_)) {
    static_assert(alignment_bytes % sizeof(T) == 0);
  }
  /// The part of the worker that asks.
  T* mine() const { return memory_ + worker_index(threads_) * stride_; }

 private:
  int threads_;
  std::int64_t stride_;
  T* memory_;
};

}  // namespace host_backend

/// The owning buffer of a policy's memory.
template <class Policy>
using buffer_of = decltype(allocate(std::declval<const Policy&>(), std::int64_t{}));

/// Where a tensor lies in its arena: bytes from the start, and how many elements.
struct placement {
  std::int64_t offset_bytes = 0;
  std::int64_t count = 0;
};

/// Hands out places one behind the other; constexpr, so an arena can be laid out by the compiler.
class layout {
 public:
  template <class T>
  constexpr placement place(std::int64_t count) {
    const placement here{bytes_, count};
    bytes_ += aligned_bytes(count * static_cast<std::int64_t>(sizeof(T)));
    return here;
  }
  constexpr std::int64_t bytes() const { return bytes_; }

 private:
  std::int64_t bytes_ = 0;
};

/// The tensor at a place of a buffer. Memory of new char[] may hold objects of any trivial type.
template <class T, class Buffer>
T* at(const Buffer& buffer, placement where) {
  return reinterpret_cast<T*>(buffer.data() + where.offset_bytes);
}

}  // namespace smelt
