// SPDX-License-Identifier: Apache-2.0
//
// smelt on bad input: exit code 1, one line on stderr that names the culprit and the remedy, and
// nothing written.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tools/smelt_program.hpp"

namespace {
using namespace smelt_test;
namespace fs = std::filesystem;

struct attempt {
  const workshop& shop;

  // A run that must be refused; returns its line.
  std::string operator()(const std::vector<std::string>& more,
                         const std::string& name = "refused") const {
    const bool stood = fs::exists(shop.where / name);
    return line_of(shop.run(name, more), stood, name);
  }
  std::string line_of(const ending& end, bool stood, const std::string& name) const {
    CHECK(end.code == 1);
    CHECK(end.output.empty());
    CHECK(std::count(end.errors.begin(), end.errors.end(), '\n') == 1);
    CHECK(end.errors.starts_with("smelt: "));
    CHECK(fs::exists(shop.where / name) == stood);
    return end.errors.substr(std::min<std::size_t>(7, end.errors.size()));
  }
};

bool says(const std::string& line, const std::string& part) {
  if (line.find(part) != std::string::npos) return true;
  MESSAGE("found: " << line);
  return false;
}

TEST_CASE("the command line") {
  const workshop shop;
  const attempt refused{shop};
  const auto plainly = [&](std::vector<std::string> words) {
    words.insert(words.begin(), workshop::program());
    return refused.line_of(process(shop.where.path(), words).wait(), false, "refused");
  };
  CHECK(says(plainly({}), "try smelt --help"));
  CHECK(says(plainly({"train"}), "MODEL is required"));
  CHECK(says(plainly({"trian"}), "try smelt --help"));
  CHECK(says(refused({"--nonsense", "1"}), "--nonsense"));
  CHECK(says(refused({"--steps", "many"}), "--steps"));
  CHECK(says(refused({"--factor", "0.1"}), "excludes"));
  CHECK(says(refused({"--branch-at", "8,4"}), "branch points: expected each after the one before"));
  CHECK(says(refused({"--branch-at", "25"}), "none after the 24 steps of the stable phase"));
  CHECK(says(refused({"--warmup", "9"}), "warmup: expected 0 to the 8 steps before the first"));
  CHECK(says(refused({"--micro-batches", "5"}), "micro-batches: expected 1 to the 4 sequences"));
  CHECK(says(refused({"--compute", "float16"}), "--compute"));
  CHECK(says(refused({"--expert-ranks", "3"}), "3"));
  // Help is no error.
  const ending help = process(shop.where.path(), {workshop::program(), "train", "--help"}).wait();
  CHECK(help.code == 0);
  CHECK(says(help.output, "--on-bad-step"));
  const ending models = process(shop.where.path(), {workshop::program(), "models"}).wait();
  CHECK(models.code == 0);
  CHECK(says(models.output, "baseline-gpt2"));
}

TEST_CASE("model, text and folder") {
  const workshop shop;
  const attempt refused{shop};
  const auto other_model = [&](const std::string& name) {
    std::vector<std::string> words = shop.words("refused");
    words[2] = name;
    return refused.line_of(process(shop.where.path(), words).wait(), false, "refused");
  };
  CHECK(says(other_model("smelt-huge"),
             "MODEL: expected one of baseline, smelt, baseline-gpt2, smelt-gpt2, baseline-tiny, "
             "smelt-tiny, found 'smelt-huge'; smelt models describes them"));
  // Its end of a text is another token.
  CHECK(says(other_model("smelt-gpt2"), "expected the end-of-text token 50256"));
  CHECK(says(refused({"--tokens", (shop.where / "nothing").string()}), "nothing"));
  shop.where.write("empty.bin", "");
  CHECK(says(refused({"--tokens", (shop.where / "empty.bin").string()}),
             "a header of 1024 bytes, found 0 bytes"));
  fs::create_directories(shop.where / "hollow");
  CHECK(says(refused({"--held-out", (shop.where / "hollow").string()}), "hollow: expected files"));
  // A token that the model does not know.
  {
    smelt::token_writer shard(shop.where / "large.bin", smelt::token_format::llmc_uint16, 50'257);
    for (int i = 0; i < 50; ++i) shard.append(std::vector<int>{1, 2, 3, 256, 4, 5, 256});
    shard.append(std::vector<int>{50'000});
    shard.finish();
  }
  CHECK(says(refused({"--tokens", (shop.where / "large.bin").string()}),
             "position 350: expected an id below 257, found 50000"));
  CHECK(says(refused({"--context", "32000"}), "at least one batch of 4 sequences of 32000"));
  // Where no folder can be.
  shop.where.write("file", "text");
  CHECK(says(refused({"--out", (shop.where / "file" / "run").string()}), "file/run"));
  fs::create_directories(shop.where / "mine");
  shop.where.write("mine/thesis.tex", "text");
  CHECK(says(refused({}, "mine"), "mine: expected a new or empty folder, or that of a run"));
}

TEST_CASE("the folder of another run") {
  const workshop shop;
  const attempt refused{shop};
  const std::vector<std::string> brief{"--steps", "4", "--branch-at", "4", "--branch-steps", "2"};
  REQUIRE(shop.run("run", brief).code == 0);
  const std::string before = text_of(shop.where / "run" / "run.json");
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = brief;
    words.insert(words.end(), more.begin(), more.end());
    const std::string line = refused(words, "run");
    CHECK(text_of(shop.where / "run" / "run.json") == before);
    return line;
  };
  CHECK(says(with({"--seed", "2"}), "run.json: seed: expected 2, found 1; go on with what"));
  CHECK(says(with({"--peak", "0.01"}), "run.json: options.schedule.peak: expected 0.01"));
  CHECK(says(with({"--compute", "bf16"}), "run.json: compute: expected \"BF16\", found \"F32\""));
  CHECK(says(with({"--sequences", "8"}), "run.json: step_sequences: expected 8, found 4"));
  write_shard(shop.where / "other.bin", 401);
  CHECK(says(with({"--tokens", (shop.where / "other.bin").string()}), "run.json: corpus"));
  std::vector<std::string> words = shop.words("run", brief);
  words[2] = "baseline-tiny";
  CHECK(says(refused.line_of(process(shop.where.path(), words).wait(), true, "run"),
             "run.json: model: expected \"baseline-tiny\", found \"smelt-tiny\""));
  // What no result depends on may change.
  std::vector<std::string> same = brief;
  same.insert(same.end(), {"--threads", "2", "--keep", "1", "--checkpoint-every", "2"});
  CHECK(shop.run("run", same).code == 0);
  // A metrics file that is none.
  std::ofstream(shop.where / "run" / "branch-00000004" / "metrics.jsonl") << "what\n";
  fs::remove(shop.where / "run" / "branch-00000004" / "endpoint.json");
  const ending end = shop.run("run", brief);
  CHECK(end.code == 1);
  CHECK(says(end.errors, "metrics.jsonl: row 1: expected a line that begins with its step"));
}

}  // namespace
