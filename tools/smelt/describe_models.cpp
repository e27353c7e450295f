// SPDX-License-Identifier: Apache-2.0
//
// smelt models: what the compiler knows of each model, as a table.
#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <string>

#include "describe_models.hpp"
#include "model_numbers.hpp"
#include "smelt/report/quantity.hpp"
#include "smelt/report/table.hpp"
#if defined(SMELT_MODELS)
#include SMELT_MODELS
#else
#include "models.hpp"
#endif

namespace smelt_tool {

void describe_models(std::int64_t context) {
  using smelt::align;
  smelt::table table({{"model", align::left},
                      {"architecture", align::left},
                      {"vocabulary"},
                      {"parameters"},
                      {"active"},
                      {"layers"},
                      {"executed"},
                      {fmt::format("FLOPs / token at {}", context)},
                      {"KV / token"},
                      {"sparsity"}});
  smelt_models::all::each([&]<class Model>() {
    const model_numbers model = numbers_of<Model>(context);
    table.row({model.name, model.architecture, smelt::grouped(model.vocabulary),
               smelt::grouped(model.parameters), smelt::grouped(model.active_parameters),
               smelt::grouped(model.layers), smelt::grouped(model.executed_layers),
               smelt::scaled(model.flops_per_token), smelt::grouped(model.kv_elements_per_token),
               smelt::percent(model.sparsity)});
  });
  fmt::print(
      "{}Parameters and FLOPs are the body's, without embedding and head; FLOPs are those of "
      "training.\n",
      table.text());
}

}  // namespace smelt_tool
