// SPDX-License-Identifier: Apache-2.0
//
// Do two architectures cost the same? The compiler answers, and where there is no second one it
// finds it. This program prints what was known before it ran.
#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "smelt/report.hpp"
#include "smelt/smelt.hpp"

using namespace smelt;

struct baseline : transformer<hidden<1280>, gqa<10, 2, 128>, moe<192, 8, 432>, stack<plain<12>>> {};

// The paper's twin: narrower, with its middle half executed twice.
struct printed : transformer<hidden<1056>, gqa<12, 2, 88>, moe<288, 8, 352>,
                             stack<plain<3>, looped<6, 2>, plain<3>>> {};

// 4 % of training FLOPs, 1 % of parameters, 4 % of KV cache. Set the experts to 240 and this line
// does not compile: the error names the budget, both values and the remedy.
static_assert(assert_matched<baseline, printed>);

// The same, found by the compiler among all widths, heads and numbers of experts.
using found = matched<baseline, recipe::smelt>;

// A sharper demand, as a concept: it can choose an overload, too.
using sharp = tolerance<20, 2, 10>;
static_assert(!budget_matched<baseline, printed, sharp>);

int main() {
  table t({{"", align::left}, {"Baseline"}, {"printed"}, {"permille"}, {"found"}, {"permille"}});
  const auto off = [](std::int64_t base, std::int64_t other) {
    return signed_permille(static_cast<double>(other), static_cast<double>(base));
  };
  const auto budget = [&](const char* name, std::int64_t a, std::int64_t b, std::int64_t c) {
    t.row({name, grouped(a), grouped(b), off(a, b), grouped(c), off(a, c)});
  };
  const auto shape = [&](const char* name, std::int64_t a, std::int64_t b, std::int64_t c) {
    t.row({name, grouped(a), grouped(b), "", grouped(c), ""});
  };
  using ell = attended<391>;  // mean attended positions of the paper's documents
  budget("training FLOPs / token", flops_per_token<baseline, ell>, flops_per_token<printed, ell>,
         flops_per_token<found, ell>);
  budget("parameters", parameters<baseline>, parameters<printed>, parameters<found>);
  budget("KV elements / token", kv_elements_per_token<baseline>, kv_elements_per_token<printed>,
         kv_elements_per_token<found>);
  t.rule();
  shape("hidden", baseline::hidden_size, printed::hidden_size, found::hidden_size);
  shape("query heads", baseline::attention.query_heads, printed::attention.query_heads,
        found::attention.query_heads);
  shape("head size", baseline::attention.head_dim, printed::attention.head_dim,
        found::attention.head_dim);
  shape("experts", baseline::spans[0].ffn.experts, printed::spans[0].ffn.experts,
        found::spans[0].ffn.experts);
  shape("expert width", baseline::spans[0].ffn.width, printed::spans[0].ffn.width,
        found::spans[0].ffn.width);
  shape("layers executed", executed_layers<baseline>, executed_layers<printed>,
        executed_layers<found>);

  // The worst of the three mismatches, each as a share of its tolerance.
  const auto worst = [](std::int64_t millionths) {
    return percent(static_cast<double>(millionths) / 1e6);
  };
  fmt::print("{}\nworst mismatch, of what is allowed: printed {}, found {}\n", t.text(),
             worst(mismatch_of<baseline, printed>.worst()),
             worst(mismatch_of<baseline, found>.worst()));
}
