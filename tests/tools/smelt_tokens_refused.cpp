// SPDX-License-Identifier: Apache-2.0
//
// smelt-tokens on bad input: exit code 1, one line on stderr that names the culprit and the remedy,
// and nothing left behind.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "smelt/io/file.hpp"
#include "support/folder.hpp"
#include "tools/program.hpp"

namespace {
using namespace smelt_test;
namespace fs = std::filesystem;

// Runs with --out OUT and demands a refusal that leaves no trace; returns its line.
struct attempt {
  const folder& where;
  fs::path out = where / "out";

  std::string operator()(std::vector<std::string> words, ::rlim_t largest_file_bytes = 0) const {
    words.insert(words.begin(), {"--out", out.string()});
    const bool stood = fs::exists(out);
    const outcome result = run(where.path(), words, largest_file_bytes);
    CHECK(result.code == 1);
    CHECK(std::count(result.errors.begin(), result.errors.end(), '\n') == 1);
    CHECK(result.errors.starts_with("smelt-tokens: "));
    CHECK(fs::exists(out) == stood);
    CHECK_FALSE(fs::exists(out.string() + ".part"));
    std::string line = result.errors;
    if (line.starts_with("smelt-tokens: ")) line.erase(0, 14);
    if (line.ends_with('\n')) line.pop_back();
    return line;
  }
};

TEST_CASE("the command line") {
  const folder folder;
  const attempt refusal{folder};
  const std::string text = folder.write("text", "some text\n").string();
  CHECK(refusal({}) ==
        "the command line: expected files, folders, --source or --recipe, found none; try "
        "smelt-tokens --help");
  CHECK(refusal({"--nonsense", text}).find("--nonsense; try --help") != std::string::npos);
  CHECK(refusal({"--held-out", "many", text}).starts_with("Could not convert: --held-out = many"));
  CHECK(refusal({"--held-out", "1", text}) ==
        "--held-out: expected 0 or at least 2, found 1; hold out less than half");
  CHECK(refusal({"--held-out", "-1", text}) ==
        "--held-out: expected 0 or at least 2, found -1; hold out less than half");
  CHECK(refusal({"--near", "1.5", text}).starts_with("--near: "));
  CHECK(refusal({"--format", "uint8", text}).starts_with("--format: uint8 not in "));
  CHECK(refusal({"--converter", "pdf", text}).starts_with("--converter: pdf not in "));
  CHECK(refusal({"--source", text}) ==
        "--source: expected GROUP/NAME=PATH, found '" + text + "'; write --source GROUP/NAME=PATH");
  CHECK(refusal({"--source", "a/b.c=" + text}) ==
        "--source: expected a group and a name of letters, digits, - and _, found 'a/b.c=" + text +
            "'; write --source GROUP/NAME=PATH");
  CHECK(refusal({"--source", "a/x=" + text, "--source", "b/x=" + text}) ==
        "source x: expected one group, a, found b; give it one group");
  const outcome nowhere = run(folder.path(), {text});
  CHECK(nowhere.code == 1);
  CHECK(nowhere.errors ==
        "smelt-tokens: --out: expected a folder to make, found none; name it, or ask for a "
        "--dry-run\n");
  CHECK(run(folder.path(), {"--help"}).code == 0);
}

TEST_CASE("the text") {
  const folder folder;
  const attempt refusal{folder};
  fs::create_directory(folder / "nothing");
  CHECK(refusal({(folder / "nothing").string()}) ==
        (folder / "nothing").string() +
            ": expected at least 1 file, found an empty folder; name a folder with text in it");
  CHECK(refusal({(folder / "missing").string()}).starts_with((folder / "missing").string() + ": "));
  CHECK(refusal({"/dev/null"}) ==
        "/dev/null: expected a file or folder, found neither; name one that exists");
  CHECK(refusal({folder.write("empty", "").string()}) ==
        "source empty: expected text to train on, found none in 1 source; name files or folders "
        "with plain text");
  CHECK(refusal({folder.write("binary", std::string("a\0b", 3)).string()})
            .starts_with("source binary: expected text to train on"));
  const std::string broken = folder.write("broken.gz", "\x1f\x8b\x08 and no more").string();
  CHECK(refusal({broken}).starts_with(broken + ": expected "));

  const auto lines = [&](const std::string& text) {
    const std::string file = folder.write("lines.jsonl", text).string();
    const std::string line = refusal({file});
    CHECK(line.starts_with(file + ": line "));
    CHECK(line.ends_with("; mend the line or name the field with --text-field"));
    return line.substr(file.size() + 2, line.find(';') - file.size() - 2);
  };
  const std::string wanted = "expected a JSON object with text in the field 'text', found ";
  const std::string good = "{\"text\": \"good\"}\n";
  CHECK(lines(good + good + "{\"text\": \"cut o") == "line 3: " + wanted + "no valid JSON");
  CHECK(lines(good + "\n" + good + "nonsense\n" + good) == "line 4: " + wanted + "no valid JSON");
  CHECK(lines("{\"body\": \"x\"}\n") == "line 1: " + wanted + "an object without it");
  CHECK(lines("{\"text\": 5}\n") == "line 1: " + wanted + "a number in it");
  CHECK(lines(good + "[\"text\"]\n") == "line 2: " + wanted + "a JSON array");
  CHECK(lines("{\"text\": \"\xff\"}\n") == "line 1: " + wanted + "no valid JSON");

  const std::string model = folder.write("no.model", "no model").string();
  CHECK(refusal({"--tokenizer", model, folder.write("text", "some text\n").string()})
            .starts_with(model + ": expected "));
}

TEST_CASE("the recipe") {
  const folder folder;
  const attempt refusal{folder};
  const auto recipe = [&](const std::string& text) {
    const std::string file = folder.write("recipe.json", text).string();
    const std::string line = refusal({"--recipe", file, "--root", folder.path().string()});
    CHECK(line.starts_with(file + ": "));
    return line.substr(file.size() + 2);
  };
  const std::string remedy = "; see corpus.json beside smelt-tokens for an example";
  const auto source = [](const std::string& name, const std::string& kind,
                         const std::string& paths) {
    return "{\"name\": \"" + name + "\", \"group\": \"g\", \"package\": \"p\", \"converter\": \"" +
           kind + "\", \"paths\": " + paths + "}";
  };
  const auto whole = [](const std::string& sources) { return "{\"sources\": [" + sources + "]}"; };
  CHECK(recipe("{") == "expected a JSON object with sources, found no valid JSON" + remedy);
  CHECK(recipe("[]") == "expected a JSON object with at least one of sources, found none" + remedy);
  CHECK(recipe(whole("")) ==
        "expected a JSON object with at least one of sources, found none" + remedy);
  CHECK(recipe(whole("{\"group\": \"g\"}")) ==
        "source 0: expected text in name, found none" + remedy);
  CHECK(recipe(whole("5")) == "source 0: expected text in name, found none" + remedy);
  CHECK(recipe(whole(source("a", "plain", "[\"/x\"]") + "," + source("a", "plain", "[\"/x\"]"))) ==
        "source 1: expected every name once, found 'a' again" + remedy);
  CHECK(recipe(whole(source("a/b", "plain", "[\"/x\"]"))) ==
        "source 0: expected a name and a group of letters, digits, - and _, found 'a/b'" + remedy);
  CHECK(recipe(whole(source("a", "pdf", "[\"/x\"]"))) ==
        "source 0: expected a converter of plain, html, info or man, found 'pdf'" + remedy);
  CHECK(recipe(whole(source("a", "plain", "[]"))) ==
        "source 0: expected at least one pattern in paths, found none" + remedy);
  CHECK(recipe(whole(source("a", "plain", "[5]"))) ==
        "source 0: expected text as a path, found number" + remedy);
  CHECK(recipe(whole(source("a", "plain", "[\"/x\"]"))) ==
        "expected at least 1 source on this machine, found none; install some of their packages");
}

TEST_CASE("the output") {
  const folder folder;
  std::string text;
  for (int i = 0; i < 40'000; ++i) text += "line " + std::to_string(i) + "\n";
  const std::string file = folder.write("text", text).string();
  const std::string remedy = "; remove it or choose another folder with --out";

  fs::create_directory(folder / "full");
  folder.write("full/mine", "mine");
  CHECK(attempt{folder, folder / "full"}({file}) ==
        (folder / "full").string() +
            ": expected nothing or an empty folder, found a folder with files in it" + remedy);
  CHECK(contents(folder / "full/mine") == "mine");
  CHECK(attempt{folder, file}({file}) ==
        file + ": expected nothing or an empty folder, found something else" + remedy);
  CHECK(contents(file) == text);
  CHECK(attempt{folder, folder / "text/out"}({file}).starts_with(
      (folder / "text/out").string() + ": expected to create out.part, found "));
  CHECK(attempt{folder, folder / "no/such/out"}({file}).find("No such file or directory") !=
        std::string::npos);
  // Nobody may write there, not even root.
  if (fs::exists("/proc/self"))
    CHECK(attempt{folder, "/proc/smelt"}({file}).ends_with("choose another folder with --out"));

  // A disk that is full, before the text is read and while the shards are written.
  const attempt refusal{folder};
  CHECK(refusal({file}, 100'000).find("make room on the disk") != std::string::npos);
  CHECK(refusal({"--longest", "1000", "--shard-tokens", "2000000", file}, text.size() + 50'000)
            .find("train.text.0.bin: expected to write ") != std::string::npos);

  // What somebody else laid into the folder that a killed run left.
  fs::create_directory(folder / "out.part");
  folder.write("out.part/mine", "mine");
  const std::vector<std::string> words{"--out", (folder / "out").string(), file};
  outcome result = run(folder.path(), words);
  CHECK(result.code == 1);
  CHECK(result.errors == "smelt-tokens: " + (folder / "out").string() +
                             ": expected nothing but its own files in out.part, found 'mine'" +
                             remedy + "\n");
  CHECK(contents(folder / "out.part/mine") == "mine");
  fs::remove(folder / "out.part/mine");

  // Another one at work.
  {
    const smelt::detail::file_descriptor lock(
        ::open((folder / "out.part").c_str(), O_RDONLY | O_DIRECTORY));
    REQUIRE(::flock(lock.number(), LOCK_EX | LOCK_NB) == 0);
    result = run(folder.path(), words);
    CHECK(result.code == 1);
    CHECK(result.errors ==
          "smelt-tokens: " + (folder / "out").string() +
              ": expected one smelt-tokens at a time, found another one at work on it; wait for "
              "it\n");
    CHECK(fs::exists(folder / "out.part"));
  }
  CHECK(run(folder.path(), words).code == 0);
  CHECK(fs::exists(folder / "out/manifest.json"));
  // An empty folder is taken.
  fs::create_directory(folder / "ready");
  CHECK(run(folder.path(), {"--out", (folder / "ready/").string(), file}).code == 0);
  CHECK(fs::exists(folder / "ready/manifest.json"));
}

}  // namespace
