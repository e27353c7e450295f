// SPDX-License-Identifier: Apache-2.0
//
// An architecture is a type, and what it costs are constants of that type. This program prints
// them; it computes nothing. Change the type and build again.
#include <fmt/format.h>

#include <cstdint>

#include "smelt/report.hpp"
#include "smelt/smelt.hpp"

using namespace smelt;

// The worked example of the paper: 200M scale, 95 % sparsity, the middle six layers visited twice.
struct body : transformer<hidden<1056>, gqa<12, 2, 88>, moe<288, 8, 352>,
                          stack<plain<3>, looped<6, 2>, plain<3>>> {};
struct model : language_model<body, vocabulary<50'304>, untied> {};

using context = causal<4096>;

// A test of the figures below, made by the compiler.
static_assert(parameters<model> == parameters<body> + 2 * 50'304 * 1056 + 1056);
static_assert(executed_layers<body> == 18);

int main() {
  const auto share = [](std::int64_t part, std::int64_t whole) {
    return percent(static_cast<double>(part) / static_cast<double>(whole));
  };

  constexpr parameter_split stored = parameters_split<model>;
  table weights({{"parameters", align::left}, {"of them"}, {"share"}});
  const auto weight = [&](const char* name, std::int64_t count) {
    if (count > 0) weights.row({name, grouped(count), share(count, stored.total())});
  };
  weight("experts", stored.experts);
  weight("shared experts", stored.shared_experts);
  weight("attention", stored.attention);
  weight("router", stored.router);
  weight("norms", stored.norms);
  weight("embedding and head", stored.embedding);
  weights.rule();
  weight("all", stored.total());
  weight("without embedding and head", non_embedding_parameters<model>);
  weight("active per token", active_parameters<model>);
  weight("active, each visit counted", active_parameters<model, convention::per_execution>);

  // Over a sequence every count is whole; per token only the attention may not be.
  constexpr flop_split flops = flops_per_sequence_split<model, context, convention::head_in>;
  table work({{"training FLOPs per token", align::left}, {"mean"}, {"share"}});
  const auto cost = [&](const char* name, std::int64_t count) {
    work.row({name, scaled(static_cast<double>(count) / static_cast<double>(context::tokens)),
              share(count, flops.total())});
  };
  cost("experts", flops.experts);
  cost("projections", flops.projections);
  cost("attention", flops.attention);
  cost("router", flops.router);
  cost("head", flops.head);
  work.rule();
  cost("all", flops.total());

  table rest({{"", align::left}, {""}});
  rest.row({"layers", grouped(layers<body>)});
  rest.row({"layers executed", grouped(executed_layers<body>)});
  rest.row({"KV cache per token", grouped(kv_elements_per_token<model>) + " elements"});
  rest.row({"in bf16", scaled(static_cast<double>(kv_bytes_per_token<model>), "B")});
  rest.row({fmt::format("for {} tokens", context::tokens),
            scaled(static_cast<double>(kv_bytes_per_token<model> * context::tokens), "B")});
  constexpr memory_bytes memory = memory_plan<model, 1, context::tokens, storage::bf16>;
  rest.rule();
  const auto held = [&](const char* name, std::int64_t bytes) {
    rest.row({name, scaled(static_cast<double>(bytes), "B")});
  };
  held("training a sequence in bf16 holds", memory.total());
  held("weights and their bf16 copy", memory.weights + memory.copies);
  held("gradients", memory.gradients);
  held("optimizer", memory.optimizer);
  held("activations", memory.activations);

  fmt::print("{}\n{}\n{}", weights.text(), work.text(), rest.text());
}
