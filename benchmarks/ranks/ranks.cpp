// SPDX-License-Identifier: Apache-2.0
//
// How much faster several MPI ranks train the demo's SMELT than one of them: benchmarks/ranks/ranks
// builds and starts it.
//
//   efficiency   seconds of a step on one rank with all micro-batches / (ranks x seconds on all)
//   sent         bytes that one rank sends in a step, counted by the engine
//
// One rank trains while the others wait, then all of them do, in turn, so that both see the same
// machine; medians. One thread a rank. The same global batch in both: strong scaling. A step of one
// rank has no expert elsewhere and sends nothing.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "../../examples/03_train_pair/pair.hpp"
#include "smelt/host.hpp"
#include "smelt/mpi.hpp"

namespace {
using namespace smelt;
using model = pair::smelt_model;

constexpr std::int64_t micro_batches = 8;  // of one sequence, dealt to the ranks
constexpr int rounds = 7;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::vector<token_batch> sequences() {
  std::vector<token_batch> all;
  std::mt19937 generator(1);
  std::vector<std::int32_t> document(pair::context);
  for (std::int64_t i = 0; i < micro_batches; ++i) {
    for (std::int32_t& token : document) token = static_cast<std::int32_t>(generator() % 256);
    all.emplace_back(pair::context);
    all.back().add_segment(document.data(), pair::context, no_target);
  }
  return all;
}

int measure(mpi& ranks) {
  if (micro_batches % ranks.size() != 0) {
    if (ranks.rank() == 0)
      std::fprintf(stderr, "ranks: expected 1, 2, 4 or 8 ranks, found %d\n",
                   static_cast<int>(ranks.size()));
    return 1;
  }
  const std::vector<token_batch> batches = sequences();
  std::vector<batch_view> all;
  for (const token_batch& batch : batches) all.push_back(batch.view());
  const element_range own = shards{micro_batches, ranks.size()}.of(ranks.rank());
  const auto share = std::span<const batch_view>(all).subspan(
      static_cast<std::size_t>(own.begin), static_cast<std::size_t>(own.count()));

  training_options options;
  options.batch_tokens = pair::context;
  options.schedule.steps = 1'000'000;
  const host<> run(1);
  std::unique_ptr<trainer<model, host<>>> alone_one;
  if (ranks.rank() == 0) {
    alone_one = std::make_unique<trainer<model, host<>>>(run, options, 1);
    alone_one->step(all);  // scratch and the library's kernels
    std::printf("%lld parameters, a step of %lld x %lld tokens, one thread a rank\n\n",
                static_cast<long long>(alone_one->plan().elements),
                static_cast<long long>(micro_batches), static_cast<long long>(pair::context));
    std::printf("%-34s %5s %12s %10s %12s\n", "", "ranks", "tokens/s", "efficiency", "sent a step");
  }
  struct row {
    const char* name;
    parallel_setting how;
  };
  const row rows[] = {{"data parallel", {1, false, false}},
                      {"data parallel, sharded optimizer", {1, true, false}},
                      {"expert parallel", {ranks.size(), false, false}}};
  for (const row& r : rows) {
    trainer<model, host<>, mpi> t(run, options, 1, ranks, r.how);
    t.step(share);
    std::vector<double> together, by_one, ratio;
    const std::int64_t before = [&] {
      std::int64_t sum = 0;
      for (const std::int64_t bytes : t.team().sent().by_kind) sum += bytes;
      return sum;
    }();
    for (int round = 0; round < rounds; ++round) {
      ranks.barrier();
      double start = now();
      if (alone_one) alone_one->step(all);
      const double one = now() - start;
      ranks.barrier();
      start = now();
      t.step(share);
      together.push_back(now() - start);
      by_one.push_back(one);
      ratio.push_back(one / (static_cast<double>(ranks.size()) * together.back()));
    }
    std::int64_t sent = -before;
    for (const std::int64_t bytes : t.team().sent().by_kind) sent += bytes;
    if (ranks.rank() != 0) continue;
    const auto tokens = static_cast<double>(micro_batches * pair::context);
    if (&r == rows)
      std::printf("%-34s %5d %12.0f %9.0f %% %9.2f MB\n", "one rank", 1, tokens / median(by_one),
                  100.0, 0.0);
    std::printf("%-34s %5d %12.0f %9.0f %% %9.2f MB\n", r.name, static_cast<int>(ranks.size()),
                tokens / median(together), 100.0 * median(ratio),
                static_cast<double>(sent) / rounds * 1e-6);
  }
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  return run_ranks(argc, argv, measure);
}
