// SPDX-License-Identifier: Apache-2.0
//
// A model's type as a line of text, and the first difference between two of them in words.
//
//   hidden=1056 query_heads=12 ... spans=3 span.0.layers=3 span.0.visits=1 span.0.experts=288 ...
//
// Every number that decides what a tensor means stands in it, also those that change no shape (how
// often a span is visited, the base of the rotary embedding): the weights of a looped model fit
// into an unlooped one without a fault and mean something else there. Fields are compared in order,
// so a message names the coarsest difference first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "smelt/arch/language_model.hpp"
#include "smelt/io/message.hpp"

namespace smelt {

/// A number or a choice of a type, e.g. {"hidden", "1056"}. Neither holds a blank or '='.
struct architecture_field {
  std::string name;
  std::string value;
  bool operator==(const architecture_field&) const = default;
};

namespace detail {
// Spans that stand apart in the type and are one to the network: single visits, the same ffn.
template <has_head M>
std::vector<span_shape> joined_spans() {
  std::vector<span_shape> joined;
  for (const span_shape& span : M::body::spans) {
    if (!joined.empty() && joined.back().visits == 1 && span.visits == 1 &&
        joined.back().ffn == span.ffn)
      joined.back().layers += span.layers;
    else
      joined.push_back(span);
  }
  return joined;
}
}  // namespace detail

/// All fields of a language model, the coarse ones first. A dense layer has 0 experts.
template <has_head M>
std::vector<architecture_field> architecture_fields() {
  using body = typename M::body;
  constexpr attention_shape attention = body::attention;
  std::vector<architecture_field> fields;
  const auto number = [&](const std::string& name, std::int64_t value) {
    fields.push_back({name, std::to_string(value)});
  };
  // The residual stream and what stands at its two ends.
  number("hidden", body::hidden_size);
  number("vocabulary", M::vocabulary_size);
  fields.push_back({"head", M::is_tied ? "tied" : "untied"});
  // Attention, and the choices that leave no trace in a shape.
  number("query_heads", attention.query_heads);
  number("kv_heads", attention.kv_heads);
  number("head_dim", attention.head_dim);
  fields.push_back({"qk_norm", attention.norm == qk_norm_kind::none       ? "none"
                               : attention.norm == qk_norm_kind::per_head ? "per_head"
                                                                          : "full_width"});
  fields.push_back({"kv_cache", attention.kv_shared_by_visits ? "shared" : "per_visit"});
  number("rope_base", attention.rope_base);
  fields.push_back({"residual_scale", body::residual_scaled ? "inverse_visits" : "one"});
  fields.push_back({"router", body::router_renormalized ? "renormalized" : "plain_softmax"});
  // The stack, from input to output.
  const std::vector<span_shape> spans = detail::joined_spans<M>();
  number("spans", static_cast<std::int64_t>(spans.size()));
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const std::string prefix = "span." + std::to_string(i) + ".";
    number(prefix + "layers", spans[i].layers);
    number(prefix + "visits", spans[i].visits);
    number(prefix + "experts", spans[i].ffn.experts);
    number(prefix + "top_k", spans[i].ffn.top_k);
    number(prefix + "width", spans[i].ffn.width);
    number(prefix + "shared_width", spans[i].ffn.shared_width);
  }
  return fields;
}

/// "name=value name=value ...", as it stands in a file's metadata.
inline std::string architecture_text(const std::vector<architecture_field>& fields) {
  std::string text;
  for (const architecture_field& field : fields)
    text += (text.empty() ? "" : " ") + field.name + "=" + field.value;
  return text;
}

namespace detail {
// The text of a file, which may be anything. What is no name=value keeps an empty value.
inline std::vector<architecture_field> parse_architecture(std::string_view text) {
  std::vector<architecture_field> fields;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(word.size() < text.size() ? word.size() + 1 : text.size());
    if (word.empty()) continue;
    const std::string_view name = word.substr(0, word.find('='));
    const std::string_view value =
        name.size() < word.size() ? word.substr(name.size() + 1) : std::string_view{};
    fields.push_back({std::string(name), std::string(value)});
  }
  return fields;
}
}  // namespace detail

/// Demands that a file's text says what a type says.
/// @throws smelt::error naming `file`, the first field that differs, what the type has and what the
///         file has.
inline void expect_architecture(const std::vector<architecture_field>& expected,
                                std::string_view text, const std::string& file) {
  const std::string remedy = "load it into the type that it was saved from";
  std::map<std::string, std::string> found;
  for (const architecture_field& field : detail::parse_architecture(text))
    if (!found.emplace(field.name, field.value).second)
      throw detail::io_error(file + ": architecture", "every field once",
                             detail::quoted_name(field.name) + " a second time", remedy);
  // In the order of the type, whatever the order of the file.
  for (const architecture_field& field : expected) {
    const auto entry = found.find(field.name);
    if (entry == found.end() || entry->second != field.value)
      throw detail::io_error(
          file + ": architecture: " + field.name, field.value,
          entry == found.end() ? "no such field" : detail::quoted_name(entry->second), remedy);
    found.erase(entry);
  }
  // A field of a later version may change what all the others mean.
  if (!found.empty())
    throw detail::io_error(file + ": architecture", "the type's own fields",
                           detail::quoted_name(found.begin()->first) + " as well", remedy);
}

}  // namespace smelt
