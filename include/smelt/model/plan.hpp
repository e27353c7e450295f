// SPDX-License-Identifier: Apache-2.0
//
// The plan of a language model: the type, lowered by the compiler to two tables of numbers.
//
//   layers   one entry per physical layer: where its tensors lie in the weight arena
//   visits   one entry per executed layer, in order of execution: which layer, which visit of it
//
// Forward and backward are plain functions that walk these tables. They are compiled once per
// policy and not once per architecture, so a Baseline and its looped twin share every instruction,
// and compile time does not grow with the type. A looped layer stands once in `layers` (one set of
// weights, one gradient) and once per visit in `visits` (its activations are its own).
//
// Offsets count elements from the start of the arena, and each tensor starts at a multiple of 16
// elements: the same offsets serve weights, bf16 copies, gradients and both moments. Matrices come
// first, gains last: weight decay applies to the matrices only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "smelt/arch/language_model.hpp"

namespace smelt {

/// One tensor of the weight arena: rows x columns elements from `offset`. A gain has one row; a
/// tensor that a layer does not have has no rows.
struct tensor_place {
  std::int64_t offset = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  /// The offset that the same elements have in the arena of the whole model: what their start is
  /// drawn from. Another one only on a rank that holds some of the experts.
  std::int64_t origin = 0;

  constexpr std::int64_t count() const { return rows * columns; }
  constexpr bool exists() const { return rows > 0; }
  /// Where the next tensor begins.
  constexpr std::int64_t padded_end() const { return offset + (count() + 15) / 16 * 16; }
};

/// The tensors of one physical layer. Matrices are [outputs, inputs]; experts stand one behind the
/// other, so gate_up is [experts * 2 width, hidden] (per expert: gate rows, then up rows).
struct layer_plan {
  ffn_shape ffn{};
  tensor_place query{}, key{}, value{}, output{};
  tensor_place router{}, gate_up{}, down{}, shared_gate_up{}, shared_down{};
  tensor_place attention_norm{}, ffn_norm{}, query_norm{}, key_norm{};
};

/// One executed layer.
struct visit_plan {
  std::int64_t layer = 0;       // index into `layers`
  std::int64_t visit = 0;       // 0 for the first
  std::int64_t visits = 1;      // of this layer, in all
  std::int64_t moe_visit = 0;   // how many visits with experts come before this one
  double residual_scale = 1.0;  // of both residual updates
};

/// What the walkers need of a model; a view of tables with static storage.
struct model_plan {
  std::int64_t hidden = 0;
  attention_shape attention{};
  std::int64_t vocabulary = 0;
  bool router_renormalized = true;
  std::span<const layer_plan> layers;
  std::span<const visit_plan> visits;
  tensor_place embedding{}, head{}, final_norm{};  // tied: head is embedding
  std::int64_t matrix_elements = 0;                // [0, matrix_elements) decays
  std::int64_t elements = 0;                       // the whole arena, padding included

  bool tied() const { return head.offset == embedding.offset; }
  const layer_plan& layer_of(const visit_plan& visit) const {
    return layers[static_cast<std::size_t>(visit.layer)];
  }
  std::int64_t moe_visits() const {
    if (visits.empty()) return 0;
    return visits.back().moe_visit + (layer_of(visits.back()).ffn.is_dense() ? 0 : 1);
  }
  /// Experts of the layer that has most: the stride of tables over MoE visits and experts.
  std::int64_t most_experts() const {
    std::int64_t most = 0;
    for (const layer_plan& layer : layers)
      most = layer.ffn.experts > most ? layer.ffn.experts : most;
    return most;
  }
};

namespace detail {
struct tensor_placer {
  std::int64_t next = 0;
  constexpr tensor_place operator()(std::int64_t rows, std::int64_t columns) {
    const tensor_place here{next, rows, columns, next};
    next = here.padded_end();
    return here;
  }
};

template <std::int64_t Layers, std::int64_t Visits>
struct plan_tables {
  std::array<layer_plan, static_cast<std::size_t>(Layers)> layers{};
  std::array<visit_plan, static_cast<std::size_t>(Visits)> visits{};
  tensor_place embedding{}, head{}, final_norm{};
  std::int64_t matrix_elements = 0;
  std::int64_t elements = 0;
};

template <has_head M>
consteval auto make_tables() {
  using body = typename M::body;
  constexpr std::int64_t hidden = body::hidden_size;
  constexpr attention_shape attention = body::attention;
  constexpr std::int64_t q = attention.query_width();
  constexpr std::int64_t kv = attention.kv_width();
  plan_tables<layers<body>, executed_layers<body>> tables;
  tensor_placer place;
  tables.embedding = place(M::vocabulary_size, hidden);
  tables.head = M::is_tied ? tables.embedding : place(M::vocabulary_size, hidden);
  for (const span_shape& span : body::spans) {
    for (std::int64_t i = 0; i < span.layers; ++i) {
      layer_plan& layer = tables.layers[static_cast<std::size_t>(span.first_layer + i)];
      layer.ffn = span.ffn;
      layer.query = place(q, hidden);
      layer.key = place(kv, hidden);
      layer.value = place(kv, hidden);
      layer.output = place(hidden, q);
      const std::int64_t copies = span.ffn.is_dense() ? 1 : span.ffn.experts;
      if (!span.ffn.is_dense()) layer.router = place(span.ffn.experts, hidden);
      layer.gate_up = place(copies * 2 * span.ffn.width, hidden);
      layer.down = place(copies * hidden, span.ffn.width);
      if (span.ffn.shared_width > 0) {
        layer.shared_gate_up = place(2 * span.ffn.shared_width, hidden);
        layer.shared_down = place(hidden, span.ffn.shared_width);
      }
    }
  }
  tables.matrix_elements = place.next;
  for (layer_plan& layer : tables.layers) {
    layer.attention_norm = place(1, hidden);
    layer.ffn_norm = place(1, hidden);
    if (attention.norm == qk_norm_kind::per_head) {
      layer.query_norm = place(1, attention.head_dim);
      layer.key_norm = place(1, attention.head_dim);
    } else if (attention.norm == qk_norm_kind::full_width) {
      layer.query_norm = place(1, q);
      layer.key_norm = place(1, kv);
    }
  }
  tables.final_norm = place(1, hidden);
  tables.elements = place.next;

  std::size_t next = 0;
  std::int64_t moe_visit = 0;
  for (const span_shape& span : body::spans)
    for (std::int64_t visit = 0; visit < span.visits; ++visit)
      for (std::int64_t i = 0; i < span.layers; ++i) {
        tables.visits[next++] = {
            span.first_layer + i, visit, span.visits, moe_visit,
            body::residual_scaled ? 1.0 / static_cast<double>(span.visits) : 1.0};
        moe_visit += span.ffn.is_dense() ? 0 : 1;
      }
  return tables;
}

template <has_head M>
inline constexpr auto tables_of = make_tables<M>();
}  // namespace detail

/// The plan of a language model type.
template <has_head M>
model_plan plan_of() {
  using body = typename M::body;
  constexpr const auto& tables = detail::tables_of<M>;
  return {.hidden = body::hidden_size,
          .attention = body::attention,
          .vocabulary = M::vocabulary_size,
          .router_renormalized = body::router_renormalized,
          .layers = tables.layers,
          .visits = tables.visits,
          .embedding = tables.embedding,
          .head = tables.head,
          .final_norm = tables.final_norm,
          .matrix_elements = tables.matrix_elements,
          .elements = tables.elements};
}

}  // namespace smelt
