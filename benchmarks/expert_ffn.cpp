// SPDX-License-Identifier: Apache-2.0
//
// Grouped experts, forward and backward, beside one plain product of the same FLOPs.
//
//   32 experts of 64 to 256 tokens each (ragged, drawn once), hidden 512, width 256
//   tokens choose 8 distinct experts each, so every token's row is gathered 8 times
//   experts:  18 slots H f FLOPs    plain: [slots, H] x [H, 9 f], the same number
//
// Both are timed in turn inside one run, so that whatever else the machine does falls on both, and
// the counter `ratio` is the quotient of their best times. "layer" adds dispatch and combine, which
// move data and count no FLOPs.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>
#include <vector>

#include "smelt/exec/matmul.hpp"
#include "smelt/op/dispatch.hpp"
#include "smelt/op/expert_ffn.hpp"

namespace {

using namespace smelt;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Numbers in the library's own memory, as the arenas of a model hold them.
template <class T>
class numbers {
 public:
  numbers() = default;
  explicit numbers(std::int64_t count) : memory_(count * static_cast<std::int64_t>(sizeof(T))) {
    memory_.zero();
  }
  numbers(std::int64_t count, std::mt19937& generator, float scale) : numbers(count) {
    for (std::int64_t i = 0; i < count; ++i)
      data()[i] = static_cast<T>(scale * (static_cast<float>(generator() % 2001) / 1000.0F - 1.0F));
  }
  T* data() const { return reinterpret_cast<T*>(memory_.data()); }

 private:
  host_buffer memory_;
};

template <class Compute>
struct layer {
  using Real = real_of<Compute>;
  static constexpr std::int64_t experts = 32, top_k = 8, hidden = 512, width = 256;
  expert_ffn_shape shape{experts, top_k, hidden, width};
  std::int64_t tokens = 0;
  std::vector<std::int32_t> chosen;
  numbers<Compute> x, gate_up, down, saved, y_slots, dx_slots, plain_a, plain_b;
  numbers<Real> weights, dout, out, dx, dweights, dgate_up, ddown, plain_c;
  std::vector<std::int64_t> offsets, slot_of, token_of;
  std::vector<std::int32_t> choice_of;
  dispatch_plan plan;

  explicit layer(bool one_expert) {
    std::mt19937 generator(7);
    std::vector<std::int64_t> counts(experts);
    std::int64_t slots = 0;
    for (std::int64_t& count : counts) slots += count = 64 + generator() % 193;
    while (slots % top_k != 0) {  // a last correction makes whole tokens of them
      std::int64_t& count = counts[generator() % experts];
      if (count < 256) ++count, ++slots;
    }
    tokens = slots / top_k;
    if (one_expert) {
      shape.top_k = 1;
      tokens = slots;
    }
    chosen.resize(static_cast<std::size_t>(slots));
    // Slot j goes to token j mod tokens: an expert has fewer slots than there are tokens, so no
    // token meets the same expert twice.
    std::int64_t slot = 0;
    for (std::int64_t e = 0; e < experts; ++e)
      for (std::int64_t i = 0; i < counts[static_cast<std::size_t>(e)]; ++i, ++slot) {
        const std::int64_t place = slot % tokens * shape.top_k + slot / tokens;
        chosen[static_cast<std::size_t>(place)] = one_expert ? 5 : static_cast<std::int32_t>(e);
      }
    x = numbers<Compute>(tokens * hidden, generator, 1.0F);
    gate_up = numbers<Compute>(shape.gate_up_size(), generator, 0.05F);
    down = numbers<Compute>(shape.down_size(), generator, 0.05F);
    weights = numbers<Real>(slots, generator, 0.5F);
    dout = numbers<Real>(tokens * hidden, generator, 1.0F);
    plain_a = numbers<Compute>(slots * hidden, generator, 1.0F);
    plain_b = numbers<Compute>(hidden * 9 * width, generator, 0.05F);
    plain_c = numbers<Real>(slots * 9 * width);
    saved = numbers<Compute>(slots * 2 * width);
    y_slots = numbers<Compute>(slots * hidden);
    dx_slots = numbers<Compute>(slots * hidden);
    out = numbers<Real>(tokens * hidden);
    dx = numbers<Real>(tokens * hidden);
    dweights = numbers<Real>(slots);
    dgate_up = numbers<Real>(shape.gate_up_size());
    ddown = numbers<Real>(shape.down_size());
    offsets.resize(experts + 1);
    slot_of.resize(chosen.size());
    token_of = slot_of;
    choice_of = chosen;
    plan = {tokens,         experts,         shape.top_k,     offsets.data(),
            slot_of.data(), token_of.data(), choice_of.data()};
  }

  std::int64_t slots() const { return plan.slots(); }
  double flops() const { return 18.0 * static_cast<double>(slots() * hidden * width); }

  void dispatch(const host<Compute>& run) { dispatch_forward(run, chosen.data(), plan); }
  void forward(const host<Compute>& run) {
    expert_ffn_forward(run, shape, matrix_view<const Compute>(x.data(), tokens, hidden), plan,
                       weights.data(), gate_up.data(), down.data(), saved.data(),
                       matrix_view<Compute>(y_slots.data(), slots(), hidden));
  }
  void backward(const host<Compute>& run) {
    expert_ffn_backward(run, shape, matrix_view<const Compute>(x.data(), tokens, hidden), plan,
                        weights.data(), gate_up.data(), down.data(), saved.data(),
                        matrix_view<const Real>(dout.data(), tokens, hidden), dgate_up.data(),
                        ddown.data(), dweights.data(),
                        matrix_view<Compute>(dx_slots.data(), slots(), hidden));
  }
  void combine(const host<Compute>& run, const numbers<Compute>& from, const numbers<Real>& to) {
    combine_forward(run, matrix_view<const Compute>(from.data(), slots(), hidden), slot_of.data(),
                    shape.top_k, Real(1), into::overwrite,
                    matrix_view<Real>(to.data(), tokens, hidden));
  }
  void plain(const host<Compute>& run) {
    product(run, matrix_view<const Compute>(plain_a.data(), slots(), hidden),
            matrix_view<const Compute>(plain_b.data(), hidden, 9 * width),
            matrix_view<Real>(plain_c.data(), slots(), 9 * width));
  }
};

template <class Compute, bool OneExpert>
void expert_ffn(benchmark::State& state) {
  const host<Compute> run(static_cast<int>(state.range(0)));
  if (std::is_same_v<Compute, bf16> && !bf16_is_fast()) {
    state.SkipWithError("no AMX here: bf16 products run in float32");
    return;
  }
  layer<Compute> l(OneExpert);
  l.dispatch(run);
  double best_plain = 1e30, best_forward = 1e30, best_backward = 1e30, best_around = 1e30;
  const auto timed = [](double& best, auto&& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    best = std::min(best, seconds_since(start));
  };
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    timed(best_forward, [&] { l.forward(run); });
    timed(best_backward, [&] { l.backward(run); });
    state.SetIterationTime(seconds_since(start));
    timed(best_around, [&] {
      l.dispatch(run);
      l.combine(run, l.y_slots, l.out);
      l.combine(run, l.dx_slots, l.dx);
    });
    timed(best_plain, [&] { l.plain(run); });
  }
  const double best = best_forward + best_backward;
  state.counters["slots"] = static_cast<double>(l.slots());
  state.counters["plain_gflops"] = l.flops() / best_plain * 1e-9;
  state.counters["forward_gflops"] = l.flops() / 3.0 / best_forward * 1e-9;
  state.counters["backward_gflops"] = l.flops() * 2.0 / 3.0 / best_backward * 1e-9;
  state.counters["ratio"] = best_plain / best;
  state.counters["layer_ratio"] = best_plain / (best + best_around);
}

constexpr int repeats = 40;
BENCHMARK(expert_ffn<float, false>)
    ->Name("expert_ffn/float/ragged")
    ->ArgName("threads")
    ->Arg(1)
    ->Arg(2)
    ->Iterations(repeats / 2)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(expert_ffn<bf16, false>)
    ->Name("expert_ffn/bf16/ragged")
    ->ArgName("threads")
    ->Arg(1)
    ->Arg(2)
    ->Iterations(repeats * 2)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(expert_ffn<float, true>)
    ->Name("expert_ffn/float/one_expert")
    ->ArgName("threads")
    ->Arg(2)
    ->Iterations(repeats / 2)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(expert_ffn<bf16, true>)
    ->Name("expert_ffn/bf16/one_expert")
    ->ArgName("threads")
    ->Arg(2)
    ->Iterations(repeats * 2)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
