// SPDX-License-Identifier: Apache-2.0
//
// The fuzz target of token shards over inputs made by code.
#include <doctest/doctest.h>

#include <string>

#include "io/bytes.hpp"
#include "io/corpus.hpp"

namespace {
using namespace smelt_test;

std::string shard(std::int32_t magic, std::int32_t version, std::int32_t count,
                  std::size_t token_bytes) {
  return bytes_of(magic) + bytes_of(version) + bytes_of(count) + std::string(253 * 4, '\0') +
         std::string(token_bytes, 't');
}

TEST_CASE("every prefix of a valid shard is refused, the whole is not") {
  for (const std::string& whole : {shard(20240520, 1, 3, 6), shard(20240801, 7, 3, 12)}) {
    const corpus_result result = run_prefixes(whole);
    // Two bytes of one are two bytes of a shard without a header, which has no magic to know it by.
    CHECK(result.accepted == 2);
    CHECK(result.refused == static_cast<std::int64_t>(whole.size()) - 1);
  }
}

TEST_CASE("every byte of the header changed") {
  for (const std::string& whole : {shard(20240520, 1, 3, 6), shard(20240801, 7, 3, 12)}) {
    const corpus_result result = run_changes(whole, 40);
    CHECK(result.accepted > 100);
    CHECK(result.refused > 100);
  }
}

TEST_CASE("counts at every edge") {
  corpus_result result;
  for (const std::int32_t count : {-2147483647 - 1, -1, 0, 1, 2, 4, 5, 1 << 30, 2147483647})
    for (const std::size_t bytes : {0U, 1U, 2U, 4U, 8U, 10U}) {
      result.run(shard(20240520, 1, count, bytes));
      result.run(shard(20240801, 7, count, bytes));
    }
  CHECK(result.accepted == 4 + 2);
  CHECK(result.refused == 2 * 9 * 6 - 6);
}

}  // namespace
