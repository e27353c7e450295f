// SPDX-License-Identifier: Apache-2.0
//
// How often this program has asked operator new for memory, on any thread. Linked once per test
// program (allocation_counter.cpp replaces the operators).
#pragma once

#include <cstdint>

namespace smelt::test {
std::int64_t allocations();
}
