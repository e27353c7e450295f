// SPDX-License-Identifier: Apache-2.0
//
// A program of several ranks in which rank 2 goes wrong; fault.cmake reads how the job ends.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "smelt/mpi.hpp"

using namespace smelt;

namespace {
void hang() {
  for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
}

void go_wrong(mpi& ranks, const std::string& what) {
  const host<> run(1);
  const bool wrong = ranks.rank() == 2;
  std::vector<float> data(64, 1.0F);
  std::vector<double> wide(64, 1.0);
  // What goes well before must not hide what goes wrong.
  ranks.barrier();
  ranks.all_reduce_sum(run, data.data(), 64);

  if (what == "killed" && wrong) std::raise(SIGKILL);
  if (what == "hanging" && wrong) std::raise(SIGSTOP);
  if (what == "killed" || what == "hanging") ranks.all_reduce_sum(run, data.data(), 64);
  if (what == "away") {
    if (wrong) hang();
    ranks.barrier();
  }
  if (what == "away_from_bucket") {
    gradient_reducer<mpi, host<>> reducer(ranks, 64, 64);
    reducer.begin(data.data());
    reducer.complete(run, {48, 64});
    if (wrong) hang();
    reducer.finish(run);
  }
  if (what == "other_count") ranks.all_gather(run, data.data(), wrong ? 9 : 8);
  if (what == "other_type") {
    if (wrong)
      ranks.all_reduce_sum(run, wide.data(), 8);
    else
      ranks.all_reduce_sum(run, data.data(), 8);
  }
  if (what == "other_kind") {
    if (wrong)
      ranks.barrier();
    else
      ranks.broadcast(run, data.data(), 8, 1);
  }
  if (what == "other_bucket") {
    mpi::pending<float> first, second;
    ranks.begin_all_reduce_sum(run, data.data(), 16, first);
    ranks.begin_all_reduce_sum(run, data.data() + 16, wrong ? 7 : 8, second);
    second.finish();
    first.finish();
  }
  if (what == "other_order") {
    // Buckets of equal length, which nothing but their number tells apart.
    gradient_reducer<mpi, host<>> reducer(ranks, 64, 64);
    reducer.begin(data.data());
    reducer.complete(run, wrong ? element_range{0, 16} : element_range{16, 32});
    reducer.complete(run, wrong ? element_range{16, 32} : element_range{0, 16});
    reducer.finish(run);
  }
  if (what == "other_pair") {
    // Rank 2 sends rank 1 one element less than rank 1 expects.
    std::vector<std::int64_t> send(3, 5), receive(3, 5);
    if (wrong) send[1] = 4;
    ranks.all_to_all(run, data.data(), send, data.data() + 32, receive);
  }
  if (what == "other_seed") expect_same(ranks, run, "seed", wrong ? "11" : "4");
  if (what == "own_error") {
    if (wrong) throw error("the disk of this rank is full");
    ranks.barrier();
  }
  if (what == "wrong_grid") grid_of_ranks<mpi>(ranks, {2, 3});
}
}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc == 2 ? argv[1] : "";
  if (what == "bad_timeout") setenv("SMELT_COMM_TIMEOUT_SECONDS", "soon", 1);
  return run_ranks(argc, argv, [&](mpi& ranks) {
    go_wrong(ranks, what);
    std::printf("rank %d survived\n", static_cast<int>(ranks.rank()));
    return 0;
  });
}
