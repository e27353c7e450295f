// SPDX-License-Identifier: Apache-2.0
//
// Many shards as one sequence: order, borders, positions beyond 2^32, documents.
#include "smelt/io/token_set.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "io/bytes.hpp"
#include "support/allocation_counter.hpp"
#include "support/folder.hpp"

namespace {
using namespace smelt;
using namespace smelt_test;

using ids = std::vector<int>;

std::filesystem::path write_shard(const std::filesystem::path& path, const ids& tokens,
                                  token_format format = token_format::llmc_uint16) {
  token_writer writer(path, format, token_limit(format));
  writer.append(tokens);
  writer.finish();
  return path;
}

ids read_all(const token_set& set) {
  ids tokens(static_cast<std::size_t>(set.size()));
  set.read(0, std::span(tokens));
  return tokens;
}

// All documents as (begin, end, closed), from a position on.
std::vector<token_document> documents_from(const token_documents& documents,
                                           std::int64_t position) {
  std::vector<token_document> found;
  while (const auto document = documents.next(position)) {
    found.push_back(*document);
    position = document->next();
  }
  return found;
}

TEST_CASE("shards in natural order, as one sequence, whatever the order they are named in") {
  const folder folder;
  std::vector<std::filesystem::path> paths;
  ids wanted;
  for (int shard = 0; shard < 12; ++shard) {
    ids tokens;
    for (int i = 0; i <= shard % 3; ++i) tokens.push_back(100 * shard + i);
    wanted.insert(wanted.end(), tokens.begin(), tokens.end());
    paths.insert(paths.begin(),
                 write_shard(folder / ("train_" + std::to_string(shard) + ".bin"), tokens));
  }
  folder.write("train_5.bin.tmp-77", "an unfinished one");
  folder.write("val_0.bin", "another one");
  std::filesystem::create_directory(folder / "train_x.bin");
  CHECK(token_shards_in(folder.path(), "train_").size() == 12);
  CHECK(token_shards_in(folder.path(), "train_")[10].filename() == "train_10.bin");
  for (const auto& names : {paths, token_shards_in(folder.path(), "train_")}) {
    const token_set set(names, 2000);
    REQUIRE(set.size() == 24);
    CHECK(set.shards().size() == 12);
    CHECK(set.shards()[2].path() == folder / "train_2.bin");
    CHECK(set.format() == token_format::llmc_uint16);
    CHECK(read_all(set) == wanted);
    for (std::int64_t i = 0; i < set.size(); ++i)
      CHECK(set.token(i) == static_cast<std::uint32_t>(wanted[static_cast<std::size_t>(i)]));
    // Every window, into another type.
    for (std::size_t begin = 0; begin <= 24; ++begin)
      for (std::size_t end = begin; end <= 24; ++end) {
        std::vector<std::uint16_t> window(end - begin);
        set.read(static_cast<std::int64_t>(begin), std::span(window));
        CHECK(std::equal(window.begin(), window.end(), wanted.begin() + static_cast<int>(begin)));
      }
    set.check_vocabulary();
  }
}

TEST_CASE("what does not go together is refused by name") {
  const folder folder;
  const auto a = write_shard(folder / "a", {1, 2});
  const auto b = write_shard(folder / "b", {3}, token_format::llmc_uint32);
  const auto c = write_shard(folder / "c", {4}, token_format::headerless_uint16);
  using paths = std::vector<std::filesystem::path>;
  const auto refusal = [](const paths& names, std::int64_t vocabulary = 100,
                          std::optional<token_format> wanted = std::nullopt) {
    return message_of([&] { token_set set(names, vocabulary, wanted); });
  };
  CHECK(refusal({b, a}) ==
        b.string() + ": expected llm.c uint16 (magic 20240520, version 1) as in " + a.string() +
            ", found llm.c uint32 (magic 20240801, version 7); make one set of each format, or "
            "convert the shards of one");
  CHECK(refusal({a, c}).starts_with(c.string() + ": expected "));
  CHECK(refusal({a, c}, 100, token_format::headerless_uint16) ==
        a.string() +
            ": expected headerless uint16, found llm.c uint16 (magic 20240520, version "
            "1); name the format that it has");
  CHECK(refusal({c}, 100, token_format::headerless_uint16) == "");
  CHECK(refusal({a, a}) ==
        a.string() + ": expected every shard once, found it a second time; name it once");
  CHECK(refusal({a, folder / "../" / folder.path().filename() / "a"}) != "");
  CHECK(refusal({}) == "token_set: expected at least 1 shard, found none; name the files");
  CHECK(refusal({a}, 0) ==
        "token_set: expected a vocabulary of at least 1, found 0; give the model's vocabulary");
  CHECK(refusal({folder / "missing"}).starts_with((folder / "missing").string() + ": expected "));
  CHECK(message_of([&] { token_shards_in(folder / "missing"); }) ==
        (folder / "missing").string() +
            ": expected a folder of token shards, found No such file or directory; check the path "
            "and its permissions");
  CHECK(message_of([&] { token_shards_in(folder.path(), "train_"); }) ==
        folder.path().string() +
            ": expected files named train_*.bin, found none; name the folder that holds the "
            "shards");
}

TEST_CASE("positions and ids that are out of range") {
  const folder folder;
  const auto a = write_shard(folder / "a", {1, 2, 3});
  const auto b = write_shard(folder / "b", {4, 500, 6});
  const token_set set({a, b}, 100);
  ids window(2);
  const auto refusal = [&](std::int64_t begin) {
    return message_of([&] { set.read(begin, std::span(window)); });
  };
  const std::string place = a.string() + " and 1 other shard: ";
  CHECK(refusal(0) == "");
  CHECK(refusal(5) == place +
                          "expected positions within [0, 6), found [5, 5 + 2); read less, or "
                          "from further in front");
  CHECK(refusal(-1) != "");
  CHECK(refusal(std::numeric_limits<std::int64_t>::max()) != "");
  CHECK(message_of([&] { static_cast<void>(set.token(6)); }) != "");
  const std::string bad = b.string() +
                          ": token at position 1: expected an id below 100, found 500; check that "
                          "the tokenizer belongs to this vocabulary";
  CHECK(refusal(3) == bad);
  CHECK(refusal(4) == bad);
  CHECK(message_of([&] { static_cast<void>(set.token(4)); }) == bad);
  CHECK(message_of([&] { set.check_vocabulary(); }) == bad);
  CHECK(set.token(3) == 4);
  // The first id that is too large, and the last that is not.
  CHECK(token_set({a}, 4).token(2) == 3);
  CHECK(message_of([&] {
          static_cast<void>(token_set({a}, 3).token(2));
        }).find("position 2: expected an id below 3, found 3;") != std::string::npos);
  CHECK(set.token(5) == 6);
  // Memory that cannot hold every id of the vocabulary.
  std::vector<std::int8_t> bytes(1);
  const token_set small({a}, 128);
  small.read(0, std::span(bytes));
  CHECK(bytes[0] == 1);
  const token_set wide({a}, 129);
  CHECK(message_of([&] { wide.read(0, std::span(bytes)); }) ==
        a.string() +
            ": expected memory that holds ids up to 128, found 1 byte for each; read into "
            "a wider type");
}

TEST_CASE("positions beyond 2^32, on files with holes") {
  const folder folder;
  const std::int64_t tokens = (std::int64_t{1} << 31) + 11;  // per shard; 4 GiB and a little
  const auto write_sparse = [&](const std::string& name, std::uint16_t last) {
    const detail::file_descriptor file(
        ::open((folder / name).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    const std::uint16_t first = 1;  // no zeros at the front, which could be a magic's
    return file.is_open() && ::ftruncate(file.number(), 2 * tokens) == 0 &&
           ::pwrite(file.number(), &first, 2, 0) == 2 &&
           ::pwrite(file.number(), &last, 2, 2 * (tokens - 1)) == 2;
  };
  if (!write_sparse("1", 41) || !write_sparse("2", 42) || !write_sparse("3", 43)) {
    MESSAGE("skipped: no files with holes of this size here");
    return;
  }
  const token_set set({folder / "1", folder / "2", folder / "3"}, 50257,
                      token_format::headerless_uint16);
  REQUIRE(set.size() == 3 * tokens);
  CHECK(set.token(tokens - 1) == 41);
  CHECK(set.token(2 * tokens - 1) == 42);
  CHECK(set.token(3 * tokens - 1) == 43);
  CHECK(set.token(3 * tokens - 2) == 0);
  ids window(4);
  set.read(2 * tokens - 2, std::span(window));
  CHECK(window == ids{0, 42, 1, 0});
  CHECK(set.find(43, 3 * tokens - 1000) == 3 * tokens - 1);
  CHECK(set.find(44, 3 * tokens - 1000) == set.size());
  const token_documents documents(set, 0);
  CHECK(documents.next(2 * tokens - 3) == token_document{2 * tokens - 1, 2 * tokens + 1, true});
  CHECK(documents.next(3 * tokens - 3) == token_document{3 * tokens - 1, 3 * tokens, false});
}

TEST_CASE("documents end at the end-of-text token, over the ends of shards") {
  const folder folder;
  constexpr int e = 99;
  // Behind each document, and between the last two shards: 1 2 3 e | 4 | 5 e e 6 | 7
  const token_set set({write_shard(folder / "a", {1, 2, 3, e}), write_shard(folder / "b", {4}),
                       write_shard(folder / "c", {5, e, e, 6}), write_shard(folder / "d", {7})},
                      100);
  const token_documents documents(set, e);
  using list = std::vector<token_document>;
  const list wanted{{0, 3, true}, {4, 6, true}, {8, 10, false}};
  CHECK(documents_from(documents, 0) == wanted);
  CHECK(documents_from(documents, -5) == wanted);
  // From the middle of a document on comes the next one, from a beginning the same one.
  const std::vector<std::size_t> first{0, 1, 1, 1, 1, 2, 2, 2, 2};
  for (std::size_t position = 0; position < first.size(); ++position) {
    CAPTURE(position);
    const list rest(wanted.begin() + static_cast<std::ptrdiff_t>(first[position]), wanted.end());
    CHECK(documents_from(documents, static_cast<std::int64_t>(position)) == rest);
  }
  for (const std::int64_t position : {9, 10, 11, 1000}) CHECK(!documents.next(position));
}

TEST_CASE("an end-of-text token before each document, as llm.c has it, gives the same documents") {
  const folder folder;
  constexpr int e = 99;
  const token_set before({write_shard(folder / "a", {e, 1, 2, e, 3, e, 4, 5})}, 100);
  const token_set behind({write_shard(folder / "b", {1, 2, e, 3, e, 4, 5, e})}, 100);
  const auto texts = [](const token_set& set) {
    std::vector<ids> found;
    for (const token_document& document : documents_from(token_documents(set, e), 0)) {
      found.emplace_back(static_cast<std::size_t>(document.size()));
      set.read(document.begin, std::span(found.back()));
    }
    return found;
  };
  CHECK(texts(before) == std::vector<ids>{{1, 2}, {3}, {4, 5}});
  CHECK(texts(behind) == texts(before));
  // Nothing but ends of text: no document.
  CHECK(!token_documents(token_set({write_shard(folder / "c", {e, e, e})}, 100), e).next(0));
}

TEST_CASE("without an end-of-text token there are no documents, and it is said so") {
  const folder folder;
  const auto a = write_shard(folder / "a", {1, 2, 3});
  const auto b = write_shard(folder / "b", {4});
  const auto c = write_shard(folder / "c", {5});
  const token_set set({a, b, c}, 50257);
  CHECK(message_of([&] { token_documents documents(set, 50256); }) ==
        a.string() +
            " and 2 other shards: expected the end-of-text token 50256 somewhere in 5 "
            "tokens, found none; check which id the tokenizer ends a text with");
  CHECK(message_of([&] { token_documents documents(set, 50257); }) ==
        a.string() +
            " and 2 other shards: expected an end-of-text id below 50257, found 50257; "
            "give the tokenizer's own");
  CHECK(message_of([&] { token_documents documents(set, -1); }) != "");
  CHECK(message_of([&] { token_documents documents(set, 5); }) == "");
}

TEST_CASE("reading and walking the documents allocate nothing") {
  const folder folder;
  const token_set set({write_shard(folder / "a", {1, 2, 9, 3}), write_shard(folder / "b", {4, 9})},
                      100);
  const token_documents documents(set, 9);
  ids window(5);
  std::int64_t total = 0;
  const std::int64_t before = smelt::test::allocations();
  for (int round = 0; round < 10; ++round) {
    set.read(1, std::span(window));
    total += set.token(0);
    for (auto document = documents.next(0); document; document = documents.next(document->next()))
      total += document->size();
  }
  CHECK(smelt::test::allocations() == before);
  CHECK(total == 10 * (1 + 4));
}

}  // namespace
