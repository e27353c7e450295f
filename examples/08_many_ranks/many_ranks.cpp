// SPDX-License-Identifier: Apache-2.0
//
// many_ranks [EXPERT_RANKS]: a training loop on as many ranks as mpirun starts.
//
//   mpirun -np 4 many_ranks       data parallel: every rank has all weights and a quarter of the
//   text mpirun -np 4 many_ranks 2     2 x 2: pairs of ranks share the experts, two pairs share the
//   text
//
// The loop is that of one rank; what differs is the last argument of the trainer and which
// sequences a rank takes. Losses do not depend on the number of ranks but for the last digits.
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "smelt/host.hpp"
#include "smelt/mpi.hpp"

using namespace smelt;

namespace {
// A looped MoE over bytes.
using model = language_model<
    transformer<hidden<64>, gqa<4, 2, 16>, moe<8, 2, 48>, stack<plain<1>, looped<2, 2>, plain<1>>>,
    vocabulary<256>, tied>;
constexpr std::int64_t sequences = 8;  // of a step, over all ranks
constexpr std::int64_t context = 64;
constexpr std::int64_t steps = 40;

// Sequence `index` of a text that anyone can continue.
std::vector<std::int32_t> text(std::int64_t index) {
  const std::string line = "sequence " + std::to_string(index % 97) + " of many; ";
  std::vector<std::int32_t> tokens;
  while (static_cast<std::int64_t>(tokens.size()) < context)
    tokens.push_back(static_cast<unsigned char>(line[tokens.size() % line.size()]));
  return tokens;
}

int train(mpi& ranks, std::int64_t expert_ranks) {
  training_options options;
  options.batch_tokens = sequences * context;
  options.schedule = {.peak = 3e-3, .warmup_steps = 10, .decay_steps = 20, .steps = steps};
  // Experts balance within each sequence: whom a rank shares a batch with does not matter then.
  options.balance_group_tokens = context;
  // The moments of AdamW are divided among the ranks as well.
  const parallel_setting how{.expert_ranks = expert_ranks, .sharded_optimizer = true};
  trainer<model, host<>, mpi> run(host<>(1), options, /*seed=*/1, ranks, how);

  const element_range own = shards{sequences, ranks.size()}.of(ranks.rank());
  token_batch batch(sequences * context);
  for (std::int64_t step = 0; step < steps; ++step) {
    batch.clear();
    for (std::int64_t i = own.begin; i < own.end; ++i)
      batch.add_segment(text(step * sequences + i).data(), context, no_target);
    const batch_view view = batch.view();
    // A rank without a sequence gives no micro-batch, which data parallelism allows.
    const step_report report = run.step(std::span(&view, own.count() > 0 ? 1 : 0));
    // The report is of the whole step, the same on every rank.
    if (ranks.rank() == 0 && (step % 10 == 0 || step + 1 == steps))
      std::printf("step %2d  loss %.4f  tokens %d\n", static_cast<int>(step), report.loss,
                  static_cast<int>(report.tokens));
  }
  if (ranks.rank() == 0) {
    const sent_bytes sent = run.team().sent();
    std::printf(
        "%d ranks, %d of them per expert group: this one kept %.2f MB of weights and %.2f MB "
        "of moments and sent %.2f MB of activations, %.2f MB of gradients and weights\n",
        static_cast<int>(ranks.size()), static_cast<int>(expert_ranks),
        static_cast<double>(run.weight_bytes()) * 1e-6,
        static_cast<double>(run.optimizer_bytes()) * 1e-6,
        static_cast<double>(sent.of(collective::all_to_all)) * 1e-6,
        static_cast<double>(sent.of(collective::reduce_scatter_sum) +
                            sent.of(collective::all_gather)) *
            1e-6);
  }
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  return run_ranks(argc, argv, [&](mpi& ranks) {
    std::int64_t expert_ranks = 1;
    if (argc > 1) {
      const std::string_view word = argv[1];
      const auto read = std::from_chars(word.data(), word.data() + word.size(), expert_ranks);
      if (argc > 2 || read.ec != std::errc() || read.ptr != word.data() + word.size())
        throw agreed_error("many_ranks: expected one number of expert ranks, found '" +
                           std::string(word) + "'");
    }
    return train(ranks, expert_ranks);
  });
}
