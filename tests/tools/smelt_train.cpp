// SPDX-License-Identifier: Apache-2.0
//
// smelt train as a user runs it: killed, stopped, shared among processes and starved by bad steps,
// it ends with the files of an undisturbed run.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "06_scaling_law/input.hpp"
#include "tools/smelt_program.hpp"

namespace {
using namespace smelt_test;
namespace fs = std::filesystem;
using lines = std::vector<nlohmann::json>;

const char* const phases[] = {"stable", "branch-00000008", "branch-00000024"};

// A metrics file without what depends on the clock.
lines metrics_of(const fs::path& file) {
  lines all;
  std::istringstream text(text_of(file));
  for (std::string line; std::getline(text, line);) {
    all.push_back(nlohmann::json::parse(line));
    all.back().erase("seconds");
    all.back().erase("tokens_per_second");
  }
  return all;
}

// Every file of two runs, but for the clock and the checkpoints on the way: a run that was stopped
// has some of its own.
void check_same(const fs::path& found, const fs::path& expected) {
  CHECK(text_of(found / "runs.jsonl") == text_of(expected / "runs.jsonl"));
  CHECK(text_of(found / "run.json") == text_of(expected / "run.json"));
  for (const char* phase : phases) {
    CAPTURE(phase);
    const lines here = metrics_of(found / phase / "metrics.jsonl");
    const lines there = metrics_of(expected / phase / "metrics.jsonl");
    REQUIRE(here.size() == there.size());
    for (std::size_t i = 0; i < here.size(); ++i) CHECK(here[i] == there[i]);
    for (const char* step : {"step-00000008", "step-00000014", "step-00000024", "step-00000030"})
      if (fs::exists(expected / phase / step))
        for (const char* file : {"weights.safetensors", "optimizer.safetensors", "state.json"}) {
          CAPTURE(step);
          CAPTURE(file);
          CHECK((text_of(found / phase / step / file) == text_of(expected / phase / step / file)));
        }
  }
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++count;
  return count;
}

TEST_CASE("a run: its folder, its metrics, its endpoints") {
  const workshop shop;
  const ending end = shop.run("run");
  INFO(end.errors);
  REQUIRE(end.code == 0);
  CHECK(end.errors.empty());
  CHECK(end.output.find("2 of 2 branches are finished") != std::string::npos);
  const fs::path folder = shop.where / "run";

  const lines stable = metrics_of(folder / "stable" / "metrics.jsonl");
  std::int64_t steps = 0;
  for (const nlohmann::json& line : stable) {
    if (line.contains("validation_loss")) continue;
    CHECK(line["step"] == ++steps);
    CHECK(line["tokens"] == 128 * steps);
    // 17 experts, 2 of them chosen; 6 layers executed.
    REQUIRE(line["load_ratio"].size() == 6);
    for (const double ratio : line["load_ratio"]) CHECK((ratio >= 1.0 && ratio <= 8.5));
    for (const double entropy : line["load_entropy"])
      CHECK((entropy > 0.0 && entropy <= std::log(17.0)));
  }
  CHECK(steps == 24);
  CHECK(stable.back()["validation_loss"].is_number());

  // Branch points stay, of the others the newest three.
  for (const char* step : {"00000008", "00000015", "00000020", "00000024"})
    CHECK(fs::exists(folder / "stable" / (std::string("step-") + step)));
  CHECK_FALSE(fs::exists(folder / "stable" / "step-00000010"));
  // A branch begins below the peak and ends at the last fraction, 0.
  const lines branch = metrics_of(folder / "branch-00000008" / "metrics.jsonl");
  CHECK(branch.front()["step"] == 9);
  CHECK(branch.front()["learning_rate"].get<double>() < 1e-3);
  // The last line is the evaluation of the last step.
  REQUIRE(branch.back()["step"] == 14);
  CHECK(branch[branch.size() - 2]["learning_rate"].get<double>() == doctest::Approx(0.0));
  // The same batch as the stable run's step of that number, from the same weights.
  CHECK(branch.front()["loss"] == stable[8]["loss"]);

  // What is finished is not run again.
  const ending again = shop.run("run");
  CHECK(again.code == 0);
  CHECK(count_of(again.output, "finished before") == 2);
}

TEST_CASE("shards without a header train the same") {
  const workshop shop;
  REQUIRE(shop.run("with", {"--branch-at", "24"}).code == 0);
  // llm.c's header has 256 int32.
  const std::string bare = shop.where / "bare.bin", bare_held_out = shop.where / "bare_held.bin";
  shop.where.write("bare.bin", text_of(shop.tokens).substr(1024));
  shop.where.write("bare_held.bin", text_of(shop.held_out).substr(1024));
  const std::vector<std::string> words{"--branch-at", "24",          "--tokens",    bare,
                                       "--held-out",  bare_held_out, "--headerless"};
  const ending end = shop.run("without", words);
  INFO(end.errors);
  REQUIRE(end.code == 0);
  const auto metrics = [&](const char* run) {
    return metrics_of(shop.where / run / "stable" / "metrics.jsonl");
  };
  CHECK(metrics("with") == metrics("without"));
  // And are never taken for what they are not.
  CHECK(shop.run("refused", {"--tokens", bare}).code == 1);
}

TEST_CASE("endpoints are read by the reader of the scaling laws") {
  const workshop shop;
  REQUIRE(shop.run("run", {"--steps", "8", "--branch-at", "4,8", "--branch-steps", "2"}).code == 0);
  // The folder of the run is what a user names; its single steps are passed over.
  const auto points = scaling_law::read_runs((shop.where / "run").string());
  REQUIRE(points.size() == 2);
  CHECK(points[0].architecture == "smelt");
  CHECK(points[0].cell == "smelt-tiny");
  CHECK(points[0].tokens == 6 * 4 * 32);
  CHECK(points[1].tokens == 10 * 4 * 32);
  CHECK(points[0].flops_per_token == points[1].flops_per_token);
  CHECK(points[0].loss > 0.0);
  smelt::law::check_endpoints(points);
}

TEST_CASE("killed at random moments and stopped by a signal, it ends as if it had not been") {
  const workshop shop;
  REQUIRE(shop.run("undisturbed").code == 0);
  const fs::path metrics = shop.where / "run" / "stable" / "metrics.jsonl";
  // Another moment each time; a failure names the seed.
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 chance(seed);
  for (int kill = 0; kill < 3; ++kill) {
    process one(shop.where.path(), shop.words("run"));
    one.until(metrics, chance() % 9000);
    ::usleep(static_cast<::useconds_t>(chance() % 20'000));
    one.send(SIGKILL);
    one.wait();
  }
  for (const int signal : {SIGTERM, SIGINT}) {
    process one(shop.where.path(), shop.words("run", {"--threads", "2"}));
    one.until(metrics, fs::file_size(metrics) + 1);
    one.send(signal);
    const ending end = one.wait();
    INFO(end.errors);
    CHECK(end.code == 0);
  }
  const ending end = shop.run("run", {"--keep", "3"});
  INFO(end.errors);
  REQUIRE(end.code == 0);
  check_same(shop.where / "run", shop.where / "undisturbed");
}

TEST_CASE("a signal never breaks a run") {
  const workshop shop;
  // One run in thirty once broke; CI does not wait for that, SMELT_SIGNALLED_RUNS=200 does.
  const char* const wanted = std::getenv("SMELT_SIGNALLED_RUNS");
  const int runs = wanted != nullptr ? std::atoi(wanted) : 6;
  int stopped = 0;
  for (int i = 0; i < runs; ++i) {
    const std::string name = "run" + std::to_string(i);
    process one(shop.where.path(), shop.words(name, {"--steps", "100000", "--threads", "2"}));
    one.until(shop.where / name / "stable" / "metrics.jsonl", 1);
    ::usleep(static_cast<::useconds_t>(i * 7919 % 40'000));
    one.send(i % 2 == 0 ? SIGTERM : SIGINT);
    const ending end = one.wait();
    INFO(end.errors);
    REQUIRE(end.code == 0);
    stopped += end.output.find("stopped by SIG") != std::string::npos ? 1 : 0;
    // The checkpoint and the metrics are of one step.
    const lines all = metrics_of(shop.where / name / "stable" / "metrics.jsonl");
    std::string digits = std::to_string(all.back()["step"].get<int>());
    digits.insert(0, 8 - digits.size(), '0');
    CHECK(fs::exists(shop.where / name / "stable" / ("step-" + digits)));
    fs::remove_all(shop.where / name);
  }
  CHECK(stopped == runs);
}

TEST_CASE("branches are the same whoever runs them") {
  const workshop shop;
  REQUIRE(shop.run("one").code == 0);
  // Nothing to begin from yet.
  const ending early = shop.run("two", {"--phase", "branches"});
  CHECK(early.code == 1);
  CHECK(count_of(early.errors, "\n") == 1);
  CHECK(early.errors.find("work on the stable phase first") != std::string::npos);
  REQUIRE(shop.run("two", {"--phase", "stable"}).code == 0);
  CHECK_FALSE(fs::exists(shop.where / "two" / "branch-00000008" / "metrics.jsonl"));
  CHECK_FALSE(fs::exists(shop.where / "two" / "runs.jsonl"));
  // Two at once: each takes the branches that the other does not.
  fs::create_directories(shop.where / "other");
  process second(shop.where / "other", shop.words("two", {"--phase", "branches"}));
  const ending first = shop.run("two", {"--phase", "branches"});
  CHECK(first.code == 0);
  CHECK(second.wait().code == 0);
  check_same(shop.where / "two", shop.where / "one");
}

TEST_CASE("a bad step stops the run before it harms anything, or is passed over") {
  const workshop shop;
  const fs::path metrics = shop.where / "run" / "stable" / "metrics.jsonl";
  const std::vector<std::string> wild{"--peak", "1e30", "--warmup", "0"};
  ending end = shop.run("run", wild);
  CHECK(end.code == 1);
  CHECK(count_of(end.errors, "\n") == 1);
  INFO(end.errors);
  // The state before it is there, and the metrics end with it.
  const auto taken = metrics_of(metrics).back()["step"].get<int>();
  REQUIRE(taken < 10);
  CHECK(end.errors.starts_with("smelt: step " + std::to_string(taken)));
  const fs::path checkpoint =
      shop.where / "run" / "stable" / ("step-0000000" + std::to_string(taken));
  CHECK(fs::exists(checkpoint));
  CHECK(end.errors.find(checkpoint.string()) != std::string::npos);
  // Nothing is lost by skipping either, but these weights cannot recover.
  std::vector<std::string> skip = wild;
  skip.insert(skip.end(), {"--on-bad-step", "skip"});
  end = shop.run("run", skip);
  CHECK(end.code == 1);
  CHECK(end.errors.find("(10 steps before it were skipped)") != std::string::npos);
  CHECK(count_of(text_of(metrics), "\"skipped\":") == 10);
  CHECK(metrics_of(metrics).back()["step"] == taken + 10);
}

TEST_CASE("spikes are skipped, and a resumed run skips the same ones") {
  const workshop shop;
  // Half of all steps lie above the mean.
  const std::vector<std::string> options{"--steps",        "60",    "--on-bad-step", "skip",
                                         "--spike-factor", "0.01",  "--peak",        "1e-9",
                                         "--phase",        "stable"};
  REQUIRE(shop.run("undisturbed", options).code == 0);
  const fs::path metrics = shop.where / "run" / "stable" / "metrics.jsonl";
  process one(shop.where.path(), shop.words("run", options));
  one.until(metrics, 12'000);
  one.send(SIGTERM);
  CHECK(one.wait().code == 0);
  REQUIRE(shop.run("run", options).code == 0);
  const lines here = metrics_of(metrics);
  CHECK(here == metrics_of(shop.where / "undisturbed" / "stable" / "metrics.jsonl"));
  std::size_t skipped = 0;
  for (const nlohmann::json& line : here) skipped += line.contains("skipped") ? 1 : 0;
  CHECK(skipped > 3);
  CHECK(skipped < 40);
}

TEST_CASE("several ranks take the steps of one, stop together and go on as another number") {
  const char* const launcher = std::getenv("SMELT_MPIEXEC");
  if (launcher == nullptr) {
    MESSAGE("skipped: no MPI here");
    return;
  }
  const workshop shop;
  const auto on_two = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> words = shop.words(name, more);
    words.insert(words.begin(), {launcher, "-np", "2"});
    return words;
  };
  const std::vector<std::string> brief{"--branch-at", "8", "--micro-batches", "1"};
  REQUIRE(shop.run("one", brief).code == 0);
  const auto check_close = [&](const std::string& name) {
    for (const char* phase : {"stable", "branch-00000008"}) {
      const lines here = metrics_of(shop.where / name / phase / "metrics.jsonl");
      const lines there = metrics_of(shop.where / "one" / phase / "metrics.jsonl");
      REQUIRE(here.size() == there.size());
      for (std::size_t i = 0; i < here.size(); ++i) {
        CHECK(here[i]["step"] == there[i]["step"]);
        CHECK(here[i].value("flops", std::int64_t{0}) == there[i].value("flops", std::int64_t{0}));
        for (const char* key : {"loss", "load_balance", "validation_loss"})
          if (there[i].contains(key))
            CHECK(std::abs(here[i][key].get<double>() - there[i][key].get<double>()) < 1e-5);
      }
    }
  };
  std::vector<std::string> parallel = brief;
  parallel.insert(parallel.end(), {"--shard-optimizer", "--expert-ranks", "2"});
  for (const auto& [how, more] : {std::pair{"two", brief}, std::pair{"parallel", parallel}}) {
    const std::string name = how;
    CAPTURE(name);
    const ending end = process(shop.where.path(), on_two(name, more)).wait();
    INFO(end.errors);
    REQUIRE(end.code == 0);
    check_close(name);
  }
  // mpirun passes this signal on to both ranks; they leave one checkpoint, of one step.
  process two(shop.where.path(), on_two("stopped", brief));
  two.until(shop.where / "stopped" / "stable" / "metrics.jsonl", 1);
  two.send(SIGUSR1);
  CHECK(two.wait().code == 0);
  CHECK(shop.run("stopped", brief).code == 0);
  check_close("stopped");
}

}  // namespace
