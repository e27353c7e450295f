// SPDX-License-Identifier: Apache-2.0
//
// smelt-tokens as a user runs it: what is in the shards, what is held out, what is left out, the
// manifest, the recipe, and that a killed run leaves nothing that looks like a corpus.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "smelt/exec/random.hpp"
#include "smelt/io/token_set.hpp"
#include "support/folder.hpp"
#include "tools/program.hpp"

namespace {
using namespace smelt_test;
namespace fs = std::filesystem;
using texts = std::multiset<std::string>;

constexpr std::int64_t end_of_text = 256;

// Lines of words that no other document has.
std::string document(int number, int lines) {
  std::string text;
  for (int line = 0; line < lines; ++line) {
    for (int word = 0; word < 8; ++word)
      text += "w" + std::to_string(number) + "x" + std::to_string(line * 8 + word) + " ";
    text += "\n";
  }
  return text;
}

// The documents of the shards that begin so.
texts documents_of(const fs::path& out, const std::string& beginning) {
  const smelt::token_set set(smelt::token_shards_in(out, beginning), 257);
  const smelt::token_documents documents(set, end_of_text);
  texts found;
  std::int64_t end = 0;
  for (auto next = documents.next(0); next; next = documents.next(next->next())) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(next->size()));
    set.read(next->begin, std::span(ids));
    std::string text;
    for (const std::int32_t id : ids) text.push_back(static_cast<char>(id));
    found.insert(text);
    CHECK(next->is_closed);
    end = next->next();
  }
  CHECK(end == set.size());
  return found;
}

// Every file of a folder by name.
std::map<std::string, std::string> files_of(const fs::path& out) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(out))
    files[entry.path().filename().string()] = contents(entry.path());
  return files;
}

TEST_CASE("shards, held-out split and manifest of files, folders and JSONL") {
  const folder folder;
  texts all;
  for (int d = 0; d < 100; ++d) {
    const std::string text = document(d, 2 + d % 7);
    all.insert(text);
    folder.write("code/" + std::to_string(d % 5) + "/" + std::to_string(d), text);
  }
  std::string lines;
  texts pages;
  for (int d = 100; d < 160; ++d) {
    const std::string text = document(d, 3) + "\"\xc3\xa9\"";
    pages.insert(text);
    lines += nlohmann::json{{"id", d}, {"body", text}}.dump() + (d % 9 == 0 ? "\n\n" : "\n");
  }
  folder.write("pages.jsonl", lines);
  folder.write("code/binary", std::string("a\0b", 3));
  folder.write("code/empty", "");
  folder.write("code/again", document(3, 2 + 3));
  const fs::path out = folder / "out";
  const std::vector<std::string> words{
      "--out",          out.string(),
      "--source",       "Code/main=" + (folder / "code").string(),
      "--source",       "Web/pages=" + (folder / "pages.jsonl").string(),
      "--text-field",   "body",
      "--held-out",     "10",
      "--shard-tokens", "3000"};
  const outcome result = run(folder.path(), words);
  REQUIRE(result.errors == "");
  REQUIRE(result.code == 0);
  CHECK_FALSE(fs::exists(out.string() + ".part"));

  // Every document once, in the half and the source where it belongs.
  texts main = documents_of(out, "train.main.");
  const texts held_main = documents_of(out, "held_out.main.");
  main.insert(held_main.begin(), held_main.end());
  CHECK(main == all);
  texts web = documents_of(out, "train.pages.");
  const texts held_web = documents_of(out, "held_out.pages.");
  CHECK(held_web.size() >= 4);
  web.insert(held_web.begin(), held_web.end());
  CHECK(web == pages);
  const auto bytes = [](const texts& some) {
    std::size_t sum = 0;
    for (const std::string& text : some) sum += text.size();
    return sum;
  };
  CHECK(bytes(held_main) * 10 <= bytes(main));
  CHECK(bytes(held_main) * 20 >= bytes(main));

  // The manifest says what is there.
  const auto manifest = nlohmann::json::parse(contents(out / "manifest.json"));
  CHECK(manifest["tokenizer"]["vocabulary"] == 257);
  CHECK(manifest["tokenizer"]["end_of_text"] == 256);
  REQUIRE(manifest["sources"].size() == 2);
  std::size_t shards = 0;
  for (const auto& source : manifest["sources"])
    for (const char* half : {"train", "held_out"}) {
      std::int64_t tokens = 0;
      for (const auto& shard : source[half]["shards"]) {
        const fs::path file = out / shard["file"].get<std::string>();
        const smelt::token_shard read(file);
        CHECK(read.format() == smelt::token_format::llmc_uint16);
        CHECK(read.size() == shard["tokens"].get<std::int64_t>());
        CHECK(read.size() <= 3000);
        const std::string raw = contents(file);
        CHECK(smelt::checksum_of(std::as_bytes(std::span<const char>(raw))).text() ==
              shard["xxh64"].get<std::string>());
        tokens += read.size();
        ++shards;
      }
      CHECK(source[half]["tokens"].get<std::int64_t>() == tokens);
      CHECK(source[half]["tokens"].get<std::int64_t>() ==
            source[half]["bytes"].get<std::int64_t>() +
                source[half]["documents"].get<std::int64_t>());
    }
  CHECK(files_of(out).size() == shards + 1);
  CHECK(shards > 6);
  CHECK(manifest["sources"][0]["name"] == "main");
  CHECK(manifest["sources"][0]["group"] == "Code");
  CHECK(manifest["sources"][0]["binary_files"] == 1);
  CHECK(manifest["sources"][0]["repeated_documents"] == 1);
  CHECK(manifest["sources"][1]["group"] == "Web");

  // The same again, byte by byte; and without the other source, the same for the first.
  const auto before = files_of(out);
  auto again = words;
  again[1] = (folder / "again").string();
  CHECK(run(folder.path(), again).code == 0);
  CHECK(files_of(again[1]) == before);
  again[1] = (folder / "alone").string();
  again.erase(again.begin() + 4, again.begin() + 6);
  CHECK(run(folder.path(), again).code == 0);
  CHECK(documents_of(again[1], "held_out.main.") == held_main);

  // A dry run reports the same and writes nothing.
  auto dry = words;
  dry[1] = (folder / "dry").string();
  dry.push_back("--dry-run");
  const outcome tried = run(folder.path(), dry);
  CHECK(tried.code == 0);
  CHECK(tried.output == result.output);
  CHECK_FALSE(fs::exists(dry[1]));
  CHECK_FALSE(fs::exists(dry[1] + ".part"));

  // 32 bits a token on demand.
  auto wide = words;
  wide[1] = (folder / "wide").string();
  wide.insert(wide.end(), {"--format", "uint32"});
  CHECK(run(folder.path(), wide).code == 0);
  CHECK(smelt::token_shard(fs::path(wide[1]) / "train.main.0.bin").format() ==
        smelt::token_format::llmc_uint32);
  CHECK(documents_of(wide[1], "held_out.main.") == held_main);
}

TEST_CASE("a source of one document holds out its end; long documents are cut behind lines") {
  const folder folder;
  const std::string text = document(1, 400);
  const std::string file = folder.write("book.txt", text).string();
  const fs::path out = folder / "out";
  REQUIRE(run(folder.path(), {"--out", out.string(), "--held-out", "8", file}).code == 0);
  const texts training = documents_of(out, "train.book.");
  const texts held = documents_of(out, "held_out.book.");
  REQUIRE(training.size() == 1);
  REQUIRE(held.size() == 1);
  CHECK(*training.begin() + *held.begin() == text);
  CHECK(training.begin()->ends_with("\n"));
  CHECK(held.begin()->size() * 8 <= text.size());

  const fs::path cut = folder / "cut";
  REQUIRE(run(folder.path(), {"--out", cut.string(), "--held-out", "0", "--longest", "1000", file})
              .code == 0);
  const texts pieces = documents_of(cut, "train.book.");
  std::size_t bytes = 0;
  for (const std::string& piece : pieces) {
    CHECK(piece.size() <= 1000);
    CHECK(piece.ends_with("\n"));
    CHECK(text.find(piece) != std::string::npos);
    bytes += piece.size();
  }
  CHECK(bytes == text.size());
  CHECK_FALSE(fs::exists(cut / "held_out.book.0.bin"));
  // A character of two bytes is never cut.
  std::string accents;
  for (int i = 0; i < 500; ++i) accents += "\xc3\xa9";
  const fs::path narrow = folder / "narrow";
  REQUIRE(run(folder.path(), {"--out", narrow.string(), "--longest", "65", "--held-out", "9",
                              folder.write("accents", accents).string()})
              .code == 0);
  for (const char* half : {"train.", "held_out."})
    for (const std::string& piece : documents_of(narrow, half)) CHECK(piece.size() % 2 == 0);
}

TEST_CASE("near-duplicates of what is held out are not trained on") {
  const folder folder;
  for (int d = 0; d < 60; ++d) {
    const std::string text = document(d, 12);
    folder.write("a/" + std::to_string(d), text);
    // The same, with a line changed, under another source; and inside something longer.
    std::string changed = text;
    changed.replace(0, 4, "edit");
    folder.write("b/" + std::to_string(d), changed);
    folder.write("c/" + std::to_string(d), document(1000 + d, 40) + text + document(2000 + d, 40));
  }
  const fs::path out = folder / "out";
  const auto source = [&](const std::string& name) {
    return "text/" + name + "=" + (folder / name).string();
  };
  const auto build = [&](const fs::path& to, const std::string& threshold) {
    const outcome result = run(
        folder.path(), {"--out", to.string(), "--held-out", "6", "--near", threshold, "--source",
                        source("a"), "--source", source("b"), "--source", source("c")});
    CHECK(result.errors == "");
    CHECK(result.code == 0);
  };
  build(out, "0.5");
  // The number in a document's words names its family.
  const auto families = [](const texts& some) {
    std::set<std::string> found;
    for (const std::string& text : some) {
      for (std::size_t at = 0; (at = text.find('w', at)) != std::string::npos; ++at)
        found.insert(text.substr(at + 1, text.find('x', at) - at - 1));
    }
    return found;
  };
  const auto shared = [&](const fs::path& from) {
    const auto training = families(documents_of(from, "train."));
    std::size_t count = 0;
    for (const std::string& family : families(documents_of(from, "held_out.")))
      count += training.count(family);
    return count;
  };
  CHECK(families(documents_of(out, "held_out.")).size() >= 20);
  CHECK(shared(out) == 0);
  // Those that have nothing to do with it stay.
  const auto manifest = nlohmann::json::parse(contents(out / "manifest.json"));
  std::size_t near = 0;
  std::size_t halves = 0;
  for (const auto& each : manifest["sources"]) {
    near += each["near_duplicates"].get<std::size_t>();
    halves += each["train"]["documents"].get<std::size_t>() +
              each["held_out"]["documents"].get<std::size_t>();
  }
  CHECK(near > 20);
  CHECK(near + halves == 180);
  CHECK(documents_of(out, "train.").size() > 70);
  // Without the search there would be some, so that the test above can fail.
  build(folder / "all", "0");
  CHECK(shared(folder / "all") > 10);
}

TEST_CASE("the corpus recipe: 39 sources in five groups, and what of it is where") {
  const char* const path = std::getenv("SMELT_TOKENS_RECIPE");
  REQUIRE(path != nullptr);
  const auto recipe = nlohmann::json::parse(contents(path));
  REQUIRE(recipe["sources"].size() == 39);
  std::map<std::string, int> groups;
  for (const auto& source : recipe["sources"]) ++groups[source["group"].get<std::string>()];
  CHECK(groups.size() == 5);
  for (const auto& [group, count] : groups) CHECK(count >= 7);

  // A machine that has two of them and no other.
  const folder folder;
  folder.write("root/usr/share/perl/5.36.0/A/B.pm", document(1, 30));
  folder.write("root/usr/share/perl/5.36.0/C.pm", document(2, 30));
  folder.write("root/usr/share/perl/5.36.0/C.txt", document(3, 30));
  folder.write("root/usr/share/doc/sqlite3/a/b.html",
               "<html><head>no</head><body><p>" + document(4, 30) + "</body></html>");
  const fs::path out = folder / "out";
  const std::vector<std::string> words{
      "--recipe", path, "--root", (folder / "root").string(), "--out", out.string()};
  const outcome result = run(folder.path(), words);
  CHECK(result.errors == "");
  REQUIRE(result.code == 0);
  CHECK(result.output.find("missing: Code/go-library (golang-1.19-src)\n") != std::string::npos);
  CHECK(result.output.find("missing: Code/perl-library") == std::string::npos);
  CHECK(result.output.find("to have them: apt-get install anarchism ") != std::string::npos);
  CHECK(files_of(out).size() == 5);
  const texts perl = documents_of(out, "train.perl-library.");
  CHECK(perl.size() == 2);
  const texts pages = documents_of(out, "train.sqlite-manual.");
  REQUIRE(pages.size() == 1);
  CHECK(pages.begin()->find('<') == std::string::npos);
  CHECK(pages.begin()->starts_with("w4x0 w4x1 "));
  auto complete = words;
  complete.insert(complete.end(), {"--complete", "--dry-run"});
  const outcome refused = run(folder.path(), complete);
  CHECK(refused.code == 1);
  CHECK(refused.errors == "smelt-tokens: " + std::string(path) +
                              ": expected every source, found 37 missing; install their packages "
                              "or leave out --complete\n");
}

TEST_CASE("a run that is killed leaves no corpus, and the next one is as if it had not been") {
  const folder folder;
  for (int d = 0; d < 400; ++d) folder.write("text/" + std::to_string(d), document(d, 150));
  const auto words = [&](const fs::path& out) {
    return std::vector<std::string>{"--out", out.string(), "--shard-tokens", "200000",
                                    (folder / "text").string()};
  };
  const auto start = std::chrono::steady_clock::now();
  REQUIRE(run(folder.path(), words(folder / "whole")).code == 0);
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
  const auto expected = files_of(folder / "whole");
  CHECK(expected.size() > 10);

  const fs::path out = folder / "out";
  int killed = 0;
  int caught = 0;  // with something half-written in its way
  constexpr int kills = 20;
  for (int i = 0; i < kills; ++i) {
    program victim(folder.path(), words(out));
    const double share = (i + 0.5) / kills;
    std::this_thread::sleep_for(time * share);
    killed += victim.kill().code == -1;
    caught += fs::exists(out.string() + ".part");
    if (!fs::exists(out)) continue;
    // It was quicker than the one before: then it is whole.
    CHECK(files_of(out) == expected);
    fs::remove_all(out);
  }
  CHECK(killed > 0);
  CHECK(caught > 0);
  REQUIRE(run(folder.path(), words(out)).code == 0);
  CHECK(files_of(out) == expected);
  CHECK_FALSE(fs::exists(out.string() + ".part"));
}

}  // namespace
