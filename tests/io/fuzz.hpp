// SPDX-License-Identifier: Apache-2.0
//
// What both fuzz targets need: a check that ends the program, as a fuzzer expects, and the entry
// point's declaration for the suite that runs it over a corpus.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace smelt_test {

/// Counted by the target: a suite must know that its inputs were not all refused.
inline std::int64_t accepted_inputs = 0;

inline void demand(bool condition) {
  if (condition) return;
  std::fputs("the fuzz target found a contradiction\n", stderr);
  std::abort();
}

/// An error is one line that says what was expected and what was found.
inline void demand_one_line(std::string_view message) {
  demand(message.find("expected ") != std::string_view::npos);
  demand(message.find(", found ") != std::string_view::npos);
  demand(message.find_first_of("\n\r\x1b") == std::string_view::npos);
}

}  // namespace smelt_test
