// SPDX-License-Identifier: Apache-2.0
//
// model_numbers: what the compiler knows of a listed model, as values, so that what prints them is
// compiled once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model_list.hpp"
#include "smelt/train/run_endpoint.hpp"

namespace smelt_tool {

/// Parameters, layers, FLOPs and KV cache are the body's, without embedding and head.
struct model_numbers {
  std::string name{};
  std::string architecture{};
  std::int64_t vocabulary = 0;
  std::int64_t end_of_text = 0;
  std::int64_t parameters = 0;
  std::int64_t active_parameters = 0;
  std::int64_t layers = 0;
  std::int64_t executed_layers = 0;
  std::int64_t kv_elements_per_token = 0;
  double flops_per_token = 0;  // training, one document per sequence
  double sparsity = 0;
  std::vector<std::int64_t> experts{};  // of each span that has some
};

/// @param context  tokens of a sequence.
template <listed_model Model>
model_numbers numbers_of(std::int64_t context) {
  using body = smelt::body_of<Model>;
  model_numbers numbers{std::string(Model::name),
                        std::string(Model::architecture),
                        Model::vocabulary_size,
                        Model::end_of_text,
                        smelt::parameters<body>,
                        smelt::active_parameters<body>,
                        smelt::layers<body>,
                        smelt::executed_layers<body>,
                        smelt::kv_elements_per_token<body>,
                        smelt::law_flops_per_token<Model>(context),
                        smelt::law_sparsity<Model>(context)};
  for (const smelt::span_shape& span : body::spans)
    if (!span.ffn.is_dense()) numbers.experts.push_back(span.ffn.experts);
  return numbers;
}

}  // namespace smelt_tool
