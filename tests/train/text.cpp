// SPDX-License-Identifier: Apache-2.0
//
// The corpus: what is read, in which order, what is passed over, and what is refused.
#include "smelt/train/text.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "smelt/train/byte_counts.hpp"
#include "support/folder.hpp"

namespace {
using namespace smelt;
using namespace std::string_literals;

std::string text_of(const text_corpus& corpus, std::size_t document) {
  const text_document& d = corpus.documents().at(document);
  return {reinterpret_cast<const char*>(corpus.bytes()) + d.begin,
          static_cast<std::size_t>(d.end - d.begin)};
}

std::string message_of(text_corpus& corpus, const text_request& request) {
  try {
    corpus.add(request);
  } catch (const error& e) {
    return e.what();
  }
  return "";
}

bool says(const std::string& message, const std::string& what) {
  return message.find(what) != std::string::npos && message.find('\n') == std::string::npos;
}

TEST_CASE("a folder is read below, in the order of names, a document per file") {
  const smelt_test::folder folder;
  folder.write("b.txt", "second");
  folder.write("a/z.txt", "first");
  folder.write("c.md", "third");
  text_corpus corpus;
  const text_source& source = corpus.add({"all", {folder.path()}});
  REQUIRE(source.documents() == 3);
  CHECK(text_of(corpus, 0) == "first");
  CHECK(text_of(corpus, 1) == "second");
  CHECK(text_of(corpus, 2) == "third");
  CHECK(corpus.documents()[0].name == "a/z.txt");
  CHECK(source.bytes == 16);
  CHECK(corpus.size() == 16);

  SUBCASE("endings choose files") {
    text_corpus chosen;
    CHECK(chosen.add({"md", {folder.path()}, {".md"}}).documents() == 1);
    CHECK(text_of(chosen, 0) == "third");
  }
  SUBCASE("a second source follows the first and its documents are its own") {
    const smelt_test::folder other;
    const auto file = other.write("one.txt", "fourth");
    corpus.add({"one", {file}});
    REQUIRE(corpus.sources().size() == 2);
    CHECK(corpus.sources()[1].first_document == 3);
    CHECK(corpus.sources()[1].last_document == 4);
    CHECK(text_of(corpus, 3) == "fourth");
  }
}

TEST_CASE("binary, empty and repeated files are passed over and counted") {
  const smelt_test::folder folder;
  folder.write("text", "words");
  folder.write("text_again", "words");
  folder.write("empty", "");
  folder.write("binary", "wo\0rds"s);
  folder.write("packed.gz", "\x1f\x8b\x08\x01\x01\x01");
  // A NUL beyond the first block that is read.
  folder.write("late", std::string(100'000, 'x') + "\0"s);
  text_corpus corpus;
  const text_source& source = corpus.add({"all", {folder.path()}});
  CHECK(source.documents() == 1);
  CHECK(source.binary_files == 3);
  CHECK(source.compressed_files == 1);
  CHECK(source.repeated_files == 1);
  CHECK(corpus.size() == 5);
}

TEST_CASE("a limit takes whole documents until it is passed, the same each time") {
  const smelt_test::folder folder;
  for (int i = 0; i < 40; ++i)
    folder.write("file" + std::to_string(i), std::string(100, static_cast<char>('A' + i)));
  text_corpus first;
  text_corpus second;
  first.add({"some", {folder.path()}, {}, 950});
  second.add({"some", {folder.path()}, {}, 950});
  CHECK(first.size() == 1000);
  REQUIRE(first.documents().size() == 10);
  for (std::size_t i = 0; i < 10; ++i) CHECK(text_of(first, i) == text_of(second, i));
}

TEST_CASE("what the user names and cannot be used is an error that names it and the remedy") {
  const smelt_test::folder folder;
  text_corpus corpus;
  const std::string where = folder.path().string();
  std::filesystem::create_directories(folder / "nothing");
  const std::string missing = message_of(corpus, {"x", {folder / "missing"}});
  CHECK(says(missing, where + "/missing: no such file or folder"));
  CHECK(says(message_of(corpus, {"x", {folder.write("empty", "")}}), "/empty: the file is empty"));
  CHECK(says(message_of(corpus, {"x", {folder.write("nul", "a\0b"s)}}), "/nul: a NUL byte in it"));
  CHECK(says(message_of(corpus, {"x", {folder.write("gz", "\x1f\x8b\x08")}}), "gunzip"));
  CHECK(says(message_of(corpus, {"x", {folder / "nothing"}}), "/nothing: no text in it (0 files"));
  // Opens, and then fails to read, for every user.
  if (std::filesystem::exists("/proc/self/mem"))
    CHECK(says(message_of(corpus, {"x", {"/proc/self/mem"}}), "/proc/self/mem: cannot read"));
  CHECK(says(message_of(corpus, {"x", {"/dev/null"}}), "/dev/null: neither a file nor a folder"));
  CHECK(corpus.size() == 0);
  CHECK(corpus.sources().empty());
}

TEST_CASE("a source that fails leaves the corpus as it was") {
  const smelt_test::folder folder;
  const auto good = folder.write("good", "good text");
  const auto other = folder.write("other", "other text");
  text_corpus corpus;
  CHECK_THROWS_AS(corpus.add({"both", {good, folder / "missing"}}), error);
  CHECK_THROWS_AS(corpus.add({"both", {good, folder.write("empty", "")}}), error);
  CHECK(corpus.size() == 0);
  CHECK(corpus.documents().empty());
  // Had the failed source left its contents among those seen, this would count as repeated.
  CHECK(corpus.add({"good", {good}}).documents() == 1);
  CHECK(corpus.add({"other", {other}}).bytes == 10);
  CHECK(says(message_of(corpus, {"again", {good}}), "1 already read"));
}

TEST_CASE("entropy of counts") {
  byte_counts two;
  const std::string even = "abababab";
  two.add(reinterpret_cast<const std::uint8_t*>(even.data()), 8);
  CHECK(two.entropy() == doctest::Approx(std::log(2.0)));
  byte_counts uniform;
  std::string all;
  for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
  uniform.add(reinterpret_cast<const std::uint8_t*>(all.data()), 256);
  CHECK(uniform.entropy() == doctest::Approx(8 * std::log(2.0)));
  // Predicting a's with an even coin costs one bit each; an unseen byte costs log(total / 0.5).
  byte_counts a;
  a.add(reinterpret_cast<const std::uint8_t*>("aaaa"), 4);
  CHECK(two.cross_entropy(a) == doctest::Approx(std::log(2.0)));
  byte_counts z;
  z.add(reinterpret_cast<const std::uint8_t*>("z"), 1);
  CHECK(two.cross_entropy(z) == doctest::Approx(std::log(16.0)));
}

}  // namespace
