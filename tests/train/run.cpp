// SPDX-License-Identifier: Apache-2.0
//
// The parts of a run by themselves: what is counted, what is kept in notes, what is cut from a
// metrics file, what settings are refused. The whole of it: tests/tools/smelt_train.cpp.
#include "smelt/train/run.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "smelt/arch/scales.hpp"
#include "smelt/budget/sparsity.hpp"
#include "smelt/comm/alone.hpp"
#include "support/allocation_counter.hpp"
#include "support/folder.hpp"
#include "train/checkpoint.hpp"

namespace {
using namespace smelt;
using namespace smelt::test;

TEST_CASE("FLOPs of a run are exact beyond 64 bits") {
  flop_total total;
  CHECK(total.text() == "0");
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  for (int i = 0; i < 3; ++i) total.add(most);
  CHECK(total.text() == "27670116110564327421");  // 3 (2^63 - 1)
  total.add(1);
  CHECK(total.text() == "27670116110564327422");
  CHECK(flop_total(total.text()) == total);
  total = flop_total("999999999999999999");
  total.add(1);
  CHECK(total.text() == "1000000000000000000");
  CHECK(flop_total(total.text()) == total);
  total.add(7);
  CHECK(total.text() == "1000000000000000007");
  for (const char* wrong : {"", "-1", "1e9", "12 ", "1234567890123456789012345678901234567"})
    CHECK_THROWS_AS(flop_total(std::string(wrong)), error);
}

TEST_CASE("a spike is a loss beyond mean and deviation of the last steps") {
  spike_watch watch;
  constexpr double none = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 19; ++i) watch.accept(i % 2 == 0 ? 1.0 : 3.0);
  CHECK(watch.limit(2.0) == none);  // too early to say
  watch.accept(3.0);
  CHECK(watch.limit(2.0) == doctest::Approx(2.0 + 2.0 * 1.0));
  CHECK(watch.limit(0.0) == none);
  // Only the last hundred count.
  for (int i = 0; i < 200; ++i) watch.accept(5.0);
  CHECK(watch.limit(7.0) == doctest::Approx(5.0));

  // Read back in any phase of the ring it goes on with the same bits.
  spike_watch whole;
  for (int i = 0; i < 137; ++i) whole.accept(std::sin(i) / 3.0 + 2.0);
  spike_watch resumed = spike_watch::from(whole.text());
  CHECK(resumed.limit(3.0) == whole.limit(3.0));
  for (int i = 0; i < 30; ++i) {
    whole.accept(1.0 / (i + 3));
    resumed.accept(1.0 / (i + 3));
    REQUIRE(resumed.limit(3.0) == whole.limit(3.0));
  }
  CHECK(spike_watch::from("").limit(1.0) == none);
  CHECK_THROWS_AS(spike_watch::from("1.0 x"), error);
}

TEST_CASE("notes of a checkpoint say all of it") {
  run_state state;
  state.tokens = 1 << 20;
  state.flops = flop_total("12345678901234567890123");
  state.bad_steps = 3;
  state.bad_in_a_row = 1;
  state.losses.accept(1.0 / 3.0);
  const run_state again = run_state::from(state.notes(), "here");
  CHECK(again.notes() == state.notes());
  CHECK(std::isnan(again.validation_loss));
  state.validation_loss = 0.1;
  CHECK(run_state::from(state.notes(), "here").validation_loss == 0.1);
  auto notes = state.notes();
  notes["tokens"] = "many";
  CHECK(message_of([&] { run_state::from(notes, "here"); }) ==
        "here: notes: tokens: expected a number, found 'many'; use a checkpoint that is whole");
  notes.erase("tokens");
  CHECK(message_of([&] {
          run_state::from(notes, "here");
        }).starts_with("here: notes: tokens: expected what the run wrote, found none"));
}

TEST_CASE("lines of metrics are JSON, and a file is cut at the end of a line") {
  json_line line;
  line.begin(7)
      .field("a", 0.1)
      .field("b", std::numeric_limits<double>::quiet_NaN())
      .digits("c", "123456789012345678901")
      .text("d", "say \"what\\\"\n")
      .list("e", [](auto add) {
        add(1.5);
        add(2.5);
      });
  const auto json = nlohmann::json::parse(line.end());
  CHECK(json["step"] == 7);
  CHECK(json["a"] == 0.1);
  CHECK(json["b"].is_null());
  CHECK(json["d"] == "say \"what\\\" ");
  CHECK(json["e"] == std::vector<double>{1.5, 2.5});
  // Again and again without memory.
  const std::int64_t before = allocations();
  line.begin(8).field("a", 0.25).digits("c", "1").text("d", "short");
  static_cast<void>(line.end());
  CHECK(allocations() == before);

  const smelt_test::folder folder;
  const auto path = folder.write("metrics.jsonl",
                                 "{\"step\":1,\"a\":2}\n{\"step\":2}\n{\"step\":2,\"v\":1}\n"
                                 "{\"step\":3}\n{\"step\":4,\"lo");
  {
    metrics_file file(path, 2);
    CHECK(text_of(path) == "{\"step\":1,\"a\":2}\n{\"step\":2}\n{\"step\":2,\"v\":1}\n");
    file.write(line.begin(3).end());
    file.sync();
  }
  CHECK(text_of(path).ends_with("\"v\":1}\n{\"step\":3}\n"));
  { metrics_file all(path, 99); }
  CHECK(text_of(path).ends_with("\"v\":1}\n{\"step\":3}\n"));
  // Half a line is no line, even of a step that stays.
  put(path, "{\"step\":1}\n{\"step\":1");
  { metrics_file all(path, 99); }
  CHECK(text_of(path) == "{\"step\":1}\n");
  put(path, "{\"step\":1}\nsomething\n");
  CHECK(ends_with(message_of([&] { metrics_file file(path, 9); }),
                  "metrics.jsonl: row 2: expected a line that begins with its step, found "
                  "'something'; remove that line, or name another folder"));
  CHECK(text_of(path) == "{\"step\":1}\nsomething\n");
  // Nothing yet.
  { metrics_file fresh(folder / "new.jsonl", 0); }
  CHECK(text_of(folder / "new.jsonl").empty());
}

TEST_CASE("load of experts: even, all to one, none") {
  const expert_load even = load_of(std::vector<std::int64_t>{5, 5, 5, 5});
  CHECK(even.ratio == 1.0);
  CHECK(even.entropy == doctest::Approx(std::log(4.0)));
  const expert_load one = load_of(std::vector<std::int64_t>{0, 12, 0});
  CHECK(one.ratio == 3.0);
  CHECK(one.entropy == 0.0);
  const expert_load none = load_of(std::vector<std::int64_t>{0, 0});
  CHECK(none.ratio == 0.0);
}

TEST_CASE("F and S of an endpoint are the accounting's") {
  // The control of a type with one feed-forward, written out.
  using sparse = transformer<hidden<64>, gqa<4, 2, 16>, moe<24, 2, 40>,
                             stack<plain<1>, looped<2, 2>, plain<1>>>;
  using control = transformer<hidden<64>, gqa<4, 2, 16>, moe<2, 2, 40>,
                              stack<plain<1>, looped<2, 2>, plain<1>>>;
  using model = language_model<sparse, vocabulary<257>, tied>;
  CHECK(law_sparsity<model>(64) == doctest::Approx(sparsity<sparse, control, causal<64>>));
  CHECK(law_sparsity<language_model<control, vocabulary<9>>>(64) == doctest::Approx(0.0));
  CHECK(law_flops_per_token<model>(64) * 64 ==
        static_cast<double>(flops_per_sequence<sparse, causal<64>>));
  // The paper's: 391 positions on average are a document of 781 tokens.
  CHECK(law_sparsity<language_model<paper::baseline_200m_s95, vocabulary<9>>>(781) ==
        doctest::Approx(0.946).epsilon(0.001));
}

TEST_CASE("settings that do not fit together are refused in one line") {
  run_setting setting;
  setting.follow(paper_protocol.scaled(0.001, 8, 256));
  CHECK(setting.stable_steps == 196);
  CHECK(setting.branches.size() == 6);
  CHECK(setting.batches() == 206);
  CHECK(message_of([&] { setting.check(); }) == "no error");
  const auto refused = [&](auto&& change) {
    run_setting other = setting;
    change(other);
    return message_of([&] { other.check(); });
  };
  CHECK(refused([](run_setting& s) { s.warmup_steps = 11; }) ==
        "warmup: expected 0 to the 10 steps before the first branch, found 11; warm up faster");
  CHECK(refused([](run_setting& s) { s.branches[1].first_step = 10; }) ==
        "branch points: expected each after the one before, from 1 on; one after 10, found 10; put "
        "them in order");
  CHECK(refused([](run_setting& s) {
          s.branches[5].first_step = 197;
        }).starts_with("branch points: expected none after the 196 steps"));
  CHECK(refused([](run_setting& s) { s.keep = 0; }).starts_with("checkpoints to keep"));
  CHECK(refused([](run_setting& s) { s.peak = -1; }).starts_with("schedule: "));
  CHECK(refused([](run_setting& s) {
          s.branches.clear();
          s.part = run_part::branches;
        }).starts_with("branches: expected at least 1"));
}

TEST_CASE("what fails together is one error") {
  alone ranks;
  const host<float> control(1);
  int calls = 0;
  together(ranks, control, [&] { ++calls; });
  CHECK(calls == 1);
  CHECK_THROWS_AS(together(ranks, control, [] { throw error("the disk is full"); }), agreed_error);
  CHECK(message_of([&] { together(ranks, control, [] { throw error("the disk is full"); }); }) ==
        "the disk is full");
}

}  // namespace
