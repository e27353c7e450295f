// SPDX-License-Identifier: Apache-2.0
//
// Arenas and scratch: alignment, places that do not overlap, and an error instead of a crash.
#include "smelt/exec/buffer.hpp"

#include <doctest/doctest.h>

#include <cstdint>

using namespace smelt;

TEST_CASE("tensors of a layout are aligned and do not overlap") {
  layout places;
  const placement a = places.place<float>(3);
  const placement b = places.place<double>(17);
  const placement c = places.place<std::int32_t>(1);
  CHECK(a.offset_bytes == 0);
  CHECK(b.offset_bytes == 64);
  CHECK(c.offset_bytes == 64 + 192);
  CHECK(places.bytes() == 64 + 192 + 64);
  const host_buffer memory = allocate(host<>(1), places.bytes());
  CHECK(reinterpret_cast<std::uintptr_t>(at<double>(memory, b)) % 64 == 0);
  CHECK(reinterpret_cast<std::byte*>(at<double>(memory, b)) == memory.data() + 64);
}

TEST_CASE("a layout can be made by the compiler") {
  constexpr std::int64_t bytes = [] {
    layout places;
    places.place<float>(100);
    return places.bytes();
  }();
  static_assert(bytes == 448);
}

TEST_CASE("more memory than there is ends in one line that says how much was asked for") {
  // Half of the address space; no overcommitting kernel grants it.
  CHECK_THROWS_WITH_AS(
      host_buffer(std::int64_t{1} << 62),
      "out of memory: asked for 4611686018427387904 bytes for scratch; use a smaller batch, "
      "context or model",
      error);
}

TEST_CASE("a thread's scratch grows and then stays") {
  struct here;
  int* small = thread_scratch<int, here>(10);
  CHECK(thread_scratch<int, here>(10) == small);
  int* large = thread_scratch<int, here>(100000);
  CHECK(thread_scratch<int, here>(10) == large);
}
