// SPDX-License-Identifier: Apache-2.0
//
// Inputs for a fuzz target, made by code: every prefix of a file, every byte of it changed, and
// pieces put together at random from a list. The same inputs on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/fuzz.hpp"

namespace smelt_test {

/// How often the target accepted an input and how often it refused one.
struct corpus_result {
  std::int64_t accepted = 0;
  std::int64_t refused = 0;

  void run(const std::string& input) {
    // On the heap and of exact length, so that a sanitizer sees a byte too far.
    const std::vector<std::uint8_t> bytes(input.begin(), input.end());
    const std::int64_t before = accepted_inputs;
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
    (accepted_inputs > before ? accepted : refused) += 1;
  }
};

inline corpus_result run_prefixes(const std::string& file) {
  corpus_result result;
  for (std::size_t length = 0; length <= file.size(); ++length) result.run(file.substr(0, length));
  return result;
}

/// Each byte of the first `limit` flipped bit by bit, and set to a few characters that matter.
inline corpus_result run_changes(const std::string& file, std::size_t limit) {
  corpus_result result;
  for (std::size_t i = 0; i < file.size() && i < limit; ++i) {
    std::string changed = file;
    for (int bit = 0; bit < 8; ++bit) {
      changed[i] = static_cast<char>(file[i] ^ (1 << bit));
      result.run(changed);
    }
    for (const char c : std::string("\0\xff{}[]\",:-0 ", 13)) {
      changed[i] = c;
      result.run(changed);
    }
    result.run(file.substr(0, i) + file.substr(i + 1));
  }
  return result;
}

/// A generator of random numbers that is the same everywhere.
class corpus_random {
 public:
  std::size_t below(std::size_t limit) {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<std::size_t>(state_ >> 33U) % limit;
  }

 private:
  std::uint64_t state_ = 42;
};

}  // namespace smelt_test
