// SPDX-License-Identifier: Apache-2.0
//
// roofline: what a training step on CUDA must do, kernel by kernel, and the least time it can take
// on a machine of stated peaks: time >= max(FLOPs / peak, bytes / bandwidth). Nothing is measured
// here; `benchmarks/device.sh` measures where there is a GPU.
//
//   roofline [PAIR | MOE]...   without arguments both
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>

#include "../../examples/03_train_pair/pair.hpp"
#include "kernel_costs.hpp"
#include "smelt/report.hpp"

namespace {

// A chip's stated peaks: dense, without sparsity.
struct machine {
  const char* name;
  double tensor_flops;  // bf16
  double vector_flops;  // float32
  double bytes;         // of device memory, a second
};
constexpr machine machines[] = {{"A100 80GB", 312e12, 19.5e12, 2.039e12},
                                {"H200", 989e12, 66.9e12, 4.8e12}};

// The MoE shape that grouped products are usually shown with; one layer of it.
struct wide_body : smelt::transformer<smelt::hidden<4096>, smelt::gqa<32, 8, 128>,
                                      smelt::moe<128, 8, 1024>, smelt::stack<smelt::plain<1>>> {};
struct wide : smelt::language_model<wide_body, smelt::vocabulary<32768>, smelt::untied> {};

template <class Model>
bool show(const char* title, std::int64_t sequences, std::int64_t context) {
  using namespace smelt;
  const bench::step_shape s = bench::shape_of<Model>(sequences, context);
  table t({{"kernel", align::left},
           {"calls"},
           {"GFLOP"},
           {"MB"},
           {"FLOP/B"},
           {"us, A100", align::right},
           {"bound", align::left},
           {"us, H200", align::right},
           {"bound", align::left}});
  double flops = 0, floor[2] = {0, 0};
  for (const bench::kernel_cost& cost : bench::kernel_costs(s)) {
    const auto calls = static_cast<double>(cost.calls);
    flops += calls * cost.flops;
    std::vector<std::string> row{
        cost.name, grouped(cost.calls), fmt::format("{:.2f}", cost.executed / 1e9),
        fmt::format("{:.2f}", cost.bytes / 1e6), fmt::format("{:.0f}", cost.executed / cost.bytes)};
    for (std::size_t m = 0; m < 2; ++m) {
      const double peak = cost.tensor_cores ? machines[m].tensor_flops : machines[m].vector_flops;
      const double arithmetic = cost.executed / peak, memory = cost.bytes / machines[m].bytes;
      floor[m] += calls * std::max(arithmetic, memory);
      row.push_back(fmt::format("{:.2f}", 1e6 * std::max(arithmetic, memory)));
      row.push_back(arithmetic > memory ? "FLOPs" : "bytes");
    }
    t.row(row);
  }
  const auto expected = static_cast<double>(flops_per_step<Model>(s.tokens, s.pairs).total());
  fmt::print(
      "{}: {} tokens in sequences of {}, hidden {}, {} experts of {}, top-{}; one call each\n\n{}",
      title, grouped(s.tokens), context, s.hidden, s.experts, s.width, s.top_k, t.text());
  for (std::size_t m = 0; m < 2; ++m)
    fmt::print("{}: a step takes at least {:.3f} ms, at most {:.1f} % of {:.0f} TFLOP/s bf16\n",
               machines[m].name, 1e3 * floor[m],
               100 * expected / floor[m] / machines[m].tensor_flops,
               machines[m].tensor_flops / 1e12);
  const bool equal = flops == expected;
  fmt::print(
      "FLOPs of the model in this table {:.0f}, by the accounting of the type {:.0f}: {}\n\n",
      flops, expected, equal ? "equal" : "NOT EQUAL");
  return equal;
}

}  // namespace

int main(int count, char** arguments) {
  bool equal = true;
  bool known = true;
  const auto wanted = [&](std::string_view name) {
    return count == 1 || std::any_of(arguments + 1, arguments + count,
                                     [&](const char* argument) { return argument == name; });
  };
  for (int i = 1; i < count; ++i)
    known = known &&
            (std::string_view(arguments[i]) == "PAIR" || std::string_view(arguments[i]) == "MOE");
  if (!known) {
    fmt::print(stderr, "roofline: expected PAIR or MOE, or nothing for both\n");
    return 1;
  }
  if (wanted("PAIR")) {
    equal = show<pair::baseline_model>("Baseline of train_pair", 4, pair::context) && equal;
    equal = show<pair::smelt_model>("SMELT of train_pair", 4, pair::context) && equal;
  }
  if (wanted("MOE")) equal = show<wide>("wide MoE layer", 8, 4096) && equal;
  return equal ? 0 : 1;
}
