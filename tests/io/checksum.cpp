// SPDX-License-Identifier: Apache-2.0
//
// XXH64 by its published values, and independent of how the bytes were cut.
#include "smelt/io/checksum.hpp"

#include <doctest/doctest.h>

#include <string>

#include "io/bytes.hpp"

namespace {
using smelt_test::span_of;

std::string sum(const std::string& text) {
  return smelt::checksum_of(span_of(text)).text();
}

TEST_CASE(
    "published values of XXH64, seed 0, of every path: blocks, eights, a four, single bytes") {
  CHECK(sum("") == "ef46db3751d8e999");
  CHECK(sum("a") == "d24ec4f1a98c6e5b");
  CHECK(sum("abc") == "44bc2cf5ad770999");
  CHECK(sum("message digest") == "066ed728fceeb3be");
  CHECK(sum("abcdefghijklmnopqrstuvwxyz") == "cfe1f278fa89835c");
  CHECK(sum("Nobody inspects the spammish repetition") == "fbcea83c8a378bf1");
  CHECK(sum("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789") ==
        "aaa46907d3047814");
  CHECK(smelt::checksum_of(span_of("abc")).value() == 0x44bc2cf5ad770999U);
}

TEST_CASE(
    "pieces of any size give the value of the whole, and a value may be asked for in between") {
  std::string text;
  for (int i = 0; i < 200; ++i) text += static_cast<char>(i * 37);
  for (std::size_t length = 0; length <= text.size(); length += 7) {
    const std::string whole = text.substr(0, length);
    for (const std::size_t piece : {1U, 3U, 8U, 31U, 32U, 33U, 64U, 199U}) {
      smelt::checksum streamed;
      for (std::size_t i = 0; i < length; i += piece) {
        streamed.update(span_of(whole).subspan(i, std::min(piece, length - i)));
        CHECK(streamed.text() == sum(whole.substr(0, std::min(length, i + piece))));
      }
      CHECK(streamed.text() == sum(whole));
    }
  }
}

TEST_CASE("one bit, one byte more and two bytes exchanged are all seen") {
  const std::string text = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJ";
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    CHECK(sum(changed) != sum(text));
    if (i == 0) continue;
    changed = text;
    std::swap(changed[i], changed[i - 1]);
    CHECK(sum(changed) != sum(text));
  }
  CHECK(sum(text + '\0') != sum(text));
}

}  // namespace
