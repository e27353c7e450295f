// SPDX-License-Identifier: Apache-2.0
//
// One token shard: the bytes of known ones, there and back, and every way in which one is broken.
#include "smelt/io/tokens.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

#include "io/bytes.hpp"
#include "support/folder.hpp"

namespace {
using namespace smelt;
using namespace smelt_test;

// A shard by hand: header words, zeros up to 256 of them, then the tokens.
template <class Token>
std::string shard_bytes(std::int32_t magic, std::int32_t version, std::int32_t count,
                        const std::vector<Token>& tokens) {
  std::string bytes = bytes_of(magic) + bytes_of(version) + bytes_of(count);
  bytes += std::string(1024 - bytes.size(), '\0');
  for (const Token token : tokens) bytes += bytes_of(token);
  return bytes;
}

using u16 = std::vector<std::uint16_t>;
using u32 = std::vector<std::uint32_t>;

std::string refusal(const std::string& bytes, std::optional<token_format> wanted = std::nullopt) {
  return message_of([&] { parse_token_shard(span_of(bytes), "f", wanted); });
}

TEST_CASE("shards made by hand are read: the kind by the magic, the tokens in place") {
  const folder folder;
  const token_shard small(folder.write("a.bin", shard_bytes(20240520, 1, 3, u16{50256, 0, 65535})));
  CHECK(small.format() == token_format::llmc_uint16);
  CHECK(small.size() == 3);
  CHECK(small.token(0) == 50256);
  CHECK(small.token(2) == 65535);
  small.visit([](auto tokens) { CHECK(sizeof(tokens[0]) == 2); });

  const token_shard large(
      folder.write("b.bin", shard_bytes(20240801, 7, 2, u32{128000, 4294967295U})));
  CHECK(large.format() == token_format::llmc_uint32);
  CHECK(large.token(0) == 128000);
  CHECK(large.token(1) == 4294967295U);
  large.visit([](auto tokens) { CHECK(sizeof(tokens[0]) == 4); });

  const token_shard bare(folder.write("c.bin", bytes_of(std::uint16_t{513}) + "ab"),
                         token_format::headerless_uint16);
  CHECK(bare.size() == 2);
  CHECK(bare.token(0) == 513);
  CHECK(bare.token(1) == 0x6261);
  CHECK(bare.path() == folder / "c.bin");
  CHECK(message_of([&] { static_cast<void>(bare.token(2)); }) ==
        (folder / "c.bin").string() +
            ": expected a position below 2, found 2; stay inside the shard");
  CHECK(message_of([&] { static_cast<void>(bare.token(-1)); }) != "");
}

TEST_CASE("the words of the header that carry no meaning may be anything") {
  std::string bytes = shard_bytes(20240520, 1, 1, u16{9});
  bytes[12] = 'x';
  CHECK(refusal(bytes) == "");
}

TEST_CASE("what is written is, bit for bit, what llm.c would write") {
  const folder folder;
  const auto written = [&](token_format format, const auto& tokens) {
    token_writer writer(folder / "f", format, 60000);
    writer.append(std::span(tokens).first(1));
    writer.append(std::span(tokens).subspan(1));
    CHECK(writer.tokens() == std::ssize(tokens));
    writer.finish();
    return text_of(folder / "f");
  };
  const std::vector<int> ints{50256, 0, 59999};
  CHECK(written(token_format::llmc_uint16, ints) ==
        shard_bytes(20240520, 1, 3, u16{50256, 0, 59999}));
  CHECK(written(token_format::llmc_uint32, ints) ==
        shard_bytes(20240801, 7, 3, u32{50256, 0, 59999}));
  CHECK(written(token_format::headerless_uint16, ints) == bytes_of(std::uint16_t{50256}) +
                                                              bytes_of(std::uint16_t{0}) +
                                                              bytes_of(std::uint16_t{59999}));
  // From every integer type.
  CHECK(written(token_format::llmc_uint16, std::vector<std::int64_t>{1, 2}) ==
        shard_bytes(20240520, 1, 2, u16{1, 2}));
  CHECK(written(token_format::llmc_uint16, std::vector<std::uint8_t>{1, 2}) ==
        shard_bytes(20240520, 1, 2, u16{1, 2}));
  CHECK(entries_of(folder.path()) == 1);
}

TEST_CASE("there and back over many blocks") {
  const folder folder;
  std::vector<std::uint32_t> tokens(700'001);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<std::uint32_t>(i * 2654435761U % 65000);
  for (const token_format format :
       {token_format::llmc_uint16, token_format::llmc_uint32, token_format::headerless_uint16}) {
    token_writer writer(folder / "f", format, 65000);
    writer.append(tokens);
    writer.finish();
    const token_shard shard(folder / "f", format);
    REQUIRE(shard.size() == 700'001);
    CHECK(shard.visit([&](auto found) { return std::ranges::equal(found, tokens); }));
    shard.check_vocabulary(65000);
  }
}

TEST_CASE("a wrong magic says which file, what was expected and what was found") {
  const std::string known =
      "llm.c uint16 (magic 20240520, version 1) or llm.c uint32 (magic 20240801, version 7)";
  const std::string remedy =
      "; name a token shard, or say headerless_uint16 if it is one without a header";
  CHECK(refusal(shard_bytes(7, 1, 1, u16{9})) ==
        "f: expected " + known + ", found magic 7" + remedy);
  CHECK(refusal(shard_bytes(20240522, 1, 1, u16{9})) ==
        "f: expected " + known + ", found magic 20240522, an evaluation file of llm.c" + remedy);
  CHECK(refusal(shard_bytes(0, 0, 0, u16{9})) ==
        "f: expected " + known + ", found magic 0" + remedy);
  CHECK(refusal(shard_bytes(7, 1, 1, u16{9}), token_format::llmc_uint32) ==
        "f: expected llm.c uint32 (magic 20240801, version 7), found magic 7" + remedy);
}

TEST_CASE("a wrong version says which file and which version") {
  const std::string remedy = "; write the shard again in this version";
  CHECK(refusal(shard_bytes(20240520, 2, 1, u16{9})) ==
        "f: expected llm.c uint16 (magic 20240520, version 1), found version 2" + remedy);
  CHECK(refusal(shard_bytes(20240801, 1, 1, u32{9})) ==
        "f: expected llm.c uint32 (magic 20240801, version 7), found version 1" + remedy);
}

TEST_CASE("another format than the one that was asked for") {
  const std::string remedy = "; name the format that it has, or convert it";
  CHECK(refusal(shard_bytes(20240520, 1, 1, u16{9}), token_format::llmc_uint32) ==
        "f: expected llm.c uint32 (magic 20240801, version 7), found llm.c uint16 (magic 20240520, "
        "version 1)" +
            remedy);
  CHECK(refusal(shard_bytes(20240801, 7, 1, u32{9}), token_format::headerless_uint16) ==
        "f: expected headerless uint16, found llm.c uint32 (magic 20240801, version 7); name the "
        "format that it has");
}

TEST_CASE("truncated, oversized, empty, and counts that cannot be") {
  const std::string truncated = "; the file is truncated: fetch or write it again";
  const std::string whole = shard_bytes(20240520, 1, 3, u16{1, 2, 3});
  CHECK(refusal("") == "f: expected a header of 1024 bytes, found 0 bytes" + truncated);
  CHECK(refusal(whole.substr(0, 3)) ==
        "f: expected a header of 1024 bytes, found 3 bytes" + truncated);
  CHECK(refusal(whole.substr(0, 7)) ==
        "f: expected a header of 1024 bytes, found 7 bytes" + truncated);
  CHECK(refusal(whole.substr(0, 1023)) ==
        "f: expected a header of 1024 bytes, found 1023 bytes" + truncated);
  CHECK(refusal(whole.substr(0, 1029)) ==
        "f: expected 1030 bytes for 3 tokens of 2 bytes, found 1029 bytes" + truncated);
  CHECK(refusal(whole + "x") ==
        "f: expected 1030 bytes for 3 tokens of 2 bytes, found 1031 bytes; something was appended "
        "to it: fetch or write it again");
  // As long as its tokens would be in the other width.
  CHECK(refusal(shard_bytes(20240801, 7, 4, u16{1, 2, 3, 4})) ==
        "f: expected 1040 bytes for 4 tokens of 4 bytes, found 1032 bytes" + truncated);
  for (const std::int32_t count : {0, -1, std::numeric_limits<std::int32_t>::min()})
    CHECK(refusal(shard_bytes(20240520, 1, count, u16{})) ==
          "f: expected a count of at least 1 token, found " + std::to_string(count) +
              "; write the shard again, in several of fewer than 2^31 tokens");
  CHECK(refusal(shard_bytes(20240801, 7, 2147483647, u32{1})) ==
        "f: expected 8589935612 bytes for 2147483647 tokens of 4 bytes, found 1028 bytes" +
            truncated);
  const std::string bare = "f: expected 2 bytes for each of at least 1 token, found ";
  const std::string bare_remedy = "; the file is truncated or no token shard";
  CHECK(refusal("", token_format::headerless_uint16) == bare + "0 bytes" + bare_remedy);
  CHECK(refusal("abcde", token_format::headerless_uint16) == bare + "5 bytes" + bare_remedy);
}

TEST_CASE("every prefix of a valid shard is refused") {
  const folder folder;
  for (const std::string& whole :
       {shard_bytes(20240520, 1, 3, u16{1, 2, 3}), shard_bytes(20240801, 7, 3, u32{1, 2, 3})}) {
    for (std::size_t length = 0; length < whole.size(); ++length) {
      CAPTURE(length);
      // Memory of exactly this length, so that a sanitizer sees a byte too far.
      const std::vector<char> prefix(whole.begin(),
                                     whole.begin() + static_cast<std::ptrdiff_t>(length));
      CHECK(message_of([&] {
              parse_token_shard(std::as_bytes(std::span(prefix)), "f");
            }).starts_with("f: expected "));
    }
    CHECK(refusal(whole) == "");
    for (const std::size_t length : {0U, 2U, 1023U, 1024U, 1028U}) {
      const auto path = folder.write("cut", whole.substr(0, length));
      CHECK(
          message_of([&] { token_shard shard(path); }).starts_with(path.string() + ": expected "));
    }
  }
}

TEST_CASE("ids outside the vocabulary are named with their position") {
  const folder folder;
  const auto path = folder.write("f", shard_bytes(20240520, 1, 4, u16{0, 50256, 50257, 60000}));
  const token_shard shard(path);
  shard.check_vocabulary(60001);
  shard.check_vocabulary(65536);
  const std::string remedy = "; check that the tokenizer belongs to this vocabulary";
  CHECK(message_of([&] { shard.check_vocabulary(50257); }) ==
        path.string() + ": token at position 2: expected an id below 50257, found 50257" + remedy);
  CHECK(message_of([&] { shard.check_vocabulary(60000); }) ==
        path.string() + ": token at position 3: expected an id below 60000, found 60000" + remedy);
  const token_shard wide(
      folder.write("g", shard_bytes(20240801, 7, 2, u32{5, std::uint32_t{1} << 31U})));
  CHECK(message_of([&] { wide.check_vocabulary(128256); }).find("found 2147483648") !=
        std::string::npos);
}

TEST_CASE("a writer refuses ids, vocabularies and shards that cannot be, and leaves the old file") {
  const folder folder;
  const auto path = folder.write("f", "old");
  const std::string at = path.string() + ": token at position ";
  const std::string remedy = "; check that the tokenizer belongs to this vocabulary";
  {
    token_writer writer(path, token_format::llmc_uint16, 50257);
    writer.append(std::vector<int>{1, 2});
    CHECK(message_of([&] {
            writer.append(std::vector<int>{3, -1});
          }) == at + "3: expected an id from 0 to 50256, found -1" + remedy);
    CHECK(message_of([&] { writer.append(std::vector<int>{50257}); }) ==
          at + "3: expected an id from 0 to 50256, found 50257" + remedy);
    // What would be a legal id if its upper half were cut off.
    const std::vector<std::uint64_t> huge{(std::uint64_t{1} << 32U) + 5, ~std::uint64_t{0}};
    for (const std::uint64_t id : huge)
      CHECK(message_of([&] { writer.append(std::span(&id, 1)); }) ==
            at + "3: expected an id from 0 to 50256, found " + std::to_string(id) + remedy);
    CHECK(writer.tokens() == 3);
  }
  CHECK(text_of(path) == "old");
  CHECK(message_of([&] { token_writer(path, token_format::llmc_uint16, 50257).finish(); }) ==
        path.string() + ": expected at least 1 token, found none; leave out an empty shard");
  CHECK(message_of([&] { token_writer(path, token_format::llmc_uint16, 65537); }) ==
        path.string() +
            ": expected a vocabulary of 1 to 65536 for llm.c uint16 (magic 20240520, "
            "version 1), found 65537; use llmc_uint32 for a larger one");
  CHECK(message_of([&] { token_writer(path, token_format::headerless_uint16, 0); }) != "");
  CHECK(message_of([&] {
          token_writer(path, token_format::llmc_uint32, (std::int64_t{1} << 32) + 1);
        }) != "");
  CHECK(text_of(path) == "old");
  CHECK(entries_of(folder.path()) == 1);
}

}  // namespace
