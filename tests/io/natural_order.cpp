// SPDX-License-Identifier: Apache-2.0
//
// Names in the order a person counts, and an order in the mathematical sense.
#include "smelt/io/natural_order.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace {
using smelt::natural_less;

std::vector<std::string> sorted(std::vector<std::string> names) {
  std::sort(names.begin(), names.end(), natural_less);
  return names;
}

TEST_CASE("experts are sorted as numbers, not as strings (case 33)") {
  std::vector<std::string> wanted;
  for (int layer = 0; layer < 12; ++layer)
    for (int expert = 0; expert < 112; ++expert)
      wanted.push_back("layers." + std::to_string(layer) + ".experts." + std::to_string(expert) +
                       ".down");
  std::vector<std::string> as_strings = wanted;
  std::sort(as_strings.begin(), as_strings.end());
  REQUIRE(as_strings != wanted);
  CHECK(sorted(as_strings) == wanted);
  std::reverse(as_strings.begin(), as_strings.end());
  CHECK(sorted(as_strings) == wanted);
}

TEST_CASE("numbers of any length, leading zeros, and what is not a number") {
  CHECK(natural_less("a2", "a10"));
  CHECK_FALSE(natural_less("a10", "a2"));
  CHECK(natural_less("a", "a0"));
  CHECK(natural_less("", "0"));
  CHECK(natural_less("shard_99999999999999999999", "shard_100000000000000000000"));
  CHECK(natural_less("shard_18446744073709551615", "shard_18446744073709551616"));
  CHECK(natural_less("a007b", "a8a"));
  CHECK(natural_less("a1.b", "a01.c"));  // the number is equal, the letter decides
  CHECK(natural_less("a01", "a1"));      // equal item by item: bytes decide
  CHECK(natural_less("a.b", "a1"));      // '.' comes before digits,
  CHECK(natural_less("a1", "a:"));       // ':' after them
  CHECK(natural_less("A", "a"));
  CHECK(natural_less("a", "\x80"));  // bytes are unsigned
  CHECK_FALSE(natural_less("a10", "a10"));
}

TEST_CASE("a strict total order over all names of up to four of these characters") {
  std::vector<std::string> names{""};
  for (std::size_t begin = 0, length = 0; length < 4; ++length) {
    const std::size_t end = names.size();
    for (std::size_t i = begin; i < end; ++i)
      for (const char c : {'0', '1', '2', 'a', '.'}) names.push_back(names[i] + c);
    begin = end;
  }
  REQUIRE(names.size() == 1 + 5 + 25 + 125 + 625);
  std::sort(names.begin(), names.end(), natural_less);
  // If every pair agrees with one sequence, the relation is a total order.
  std::int64_t disagreements = 0;
  for (std::size_t i = 0; i < names.size(); ++i)
    for (std::size_t j = 0; j < names.size(); ++j)
      disagreements += natural_less(names[i], names[j]) != (i < j);
  CHECK(disagreements == 0);
}

TEST_CASE("a map in this order finds by string_view") {
  const std::map<std::string, int, smelt::natural_order> map{{"e10", 10}, {"e9", 9}, {"e1", 1}};
  CHECK(map.begin()->first == "e1");
  CHECK(map.rbegin()->first == "e10");
  CHECK(map.contains(std::string_view("e9")));
}

}  // namespace
