// SPDX-License-Identifier: Apache-2.0
//
// The fuzz target of safetensors over inputs made by code.
#include <doctest/doctest.h>

#include <array>
#include <string>

#include "io/bytes.hpp"
#include "io/corpus.hpp"

namespace {
using namespace smelt_test;

const std::string valid = safetensors_bytes(
    R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
    R"("b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}} )",
    "12345678abc");

TEST_CASE("every prefix of a valid file is refused, the whole is not") {
  const corpus_result result = run_prefixes(valid);
  CHECK(result.accepted == 1);
  CHECK(result.refused == static_cast<std::int64_t>(valid.size()));
}

TEST_CASE("every byte changed: data may be anything, the header hardly") {
  const corpus_result result = run_changes(valid, valid.size());
  CHECK(result.accepted > 100);
  CHECK(result.refused > 1000);
}

TEST_CASE("pieces of headers put together at random") {
  constexpr std::array pieces{"{",
                              "}",
                              "[",
                              "]",
                              ":",
                              ",",
                              "\"a\"",
                              "\"__metadata__\"",
                              "\"dtype\"",
                              "\"shape\"",
                              "\"data_offsets\"",
                              "\"F32\"",
                              "\"U8\"",
                              "0",
                              "1",
                              "-1",
                              "1e9",
                              "18446744073709551616",
                              "9223372036854775807",
                              "null",
                              "true",
                              " ",
                              "\\",
                              "\xc3",
                              "{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}",
                              "{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[4,4]}",
                              "\"b\":",
                              "\"c\":"};
  corpus_random random;
  corpus_result result;
  for (int round = 0; round < 20'000; ++round) {
    std::string header = "{";
    for (std::size_t count = random.below(8); count > 0; --count)
      header += pieces[random.below(pieces.size())];
    if (random.below(2) == 0) header += "}";
    result.run(safetensors_bytes(header, std::string(4 * random.below(2), 'd')));
  }
  CHECK(result.accepted > 20);
  CHECK(result.refused > 10'000);
}

TEST_CASE("lengths of headers at every edge") {
  corpus_result result;
  for (const std::uint64_t base :
       {0ULL, 8ULL, 100'000'000ULL, 1ULL << 31U, 1ULL << 32U, 1ULL << 63U, ~0ULL - 8})
    for (std::uint64_t beside = 0; beside <= 16; ++beside)
      result.run(bytes_of(base + beside - 8) + valid.substr(8));
  CHECK(result.accepted == 0);
  CHECK(result.refused == 7 * 17);
}

}  // namespace
