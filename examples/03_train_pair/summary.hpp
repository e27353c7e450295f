// SPDX-License-Identifier: Apache-2.0
//
// What is shown at the end: budgets, held-out losses and speed side by side, and the two curves.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "contender.hpp"
#include "options.hpp"
#include "pair.hpp"
#include "smelt/report.hpp"
#include "smelt/train/byte_counts.hpp"
#include "smelt/train/data.hpp"

namespace pair {

/// The bytes of the training text and of each held-out source, counted.
struct unigram {
  smelt::byte_counts training;
  std::vector<smelt::byte_counts> held_out;

  unigram(const smelt::text_corpus& corpus, const smelt::text_split& split) {
    for (const smelt::text_range& range : split.training)
      training.add(corpus.bytes() + range.begin, range.size());
    for (const auto& held : split.held_out) {
      held_out.emplace_back();
      for (const smelt::text_range& range : held.pieces)
        held_out.back().add(corpus.bytes() + range.begin, range.size());
    }
  }
};

/// Every figure here is a constant of the types; nothing was run to know it.
inline smelt::table budget_table() {
  using smelt::grouped;
  smelt::table t({{"known to the compiler", smelt::align::left},
                  {"Baseline"},
                  {"SMELT"},
                  {"permille off"},
                  {"allowed"}});
  // First what the two must agree in, then how they came to.
  const auto row = [&t](const char* name, std::int64_t a, std::int64_t b, std::int64_t allowed) {
    t.row({name, grouped(a), grouped(b),
           smelt::signed_permille(static_cast<double>(b), static_cast<double>(a)),
           allowed > 0 ? fmt::format("{}", allowed) : ""});
  };
  const auto plain = [&t](const char* name, std::int64_t a, std::int64_t b) {
    t.row({name, grouped(a), grouped(b), "", ""});
  };
  using baseline = baseline_body;
  using looped = smelt_body;
  using allowed = smelt::tolerance<>;
  const auto flops = smelt::flops_per_sequence<baseline, mask>;
  row(fmt::format("training FLOPs / token at {}", context).c_str(), flops / context,
      smelt::flops_per_sequence<looped, mask> / context, allowed::flops_permille);
  row("parameters", smelt::parameters<baseline>, smelt::parameters<looped>,
      allowed::parameters_permille);
  row("KV elements / token", smelt::kv_elements_per_token<baseline>,
      smelt::kv_elements_per_token<looped>, allowed::kv_permille);
  row("active parameters", smelt::active_parameters<baseline>, smelt::active_parameters<looped>, 0);
  t.rule();
  plain("hidden", baseline::hidden_size, looped::hidden_size);
  plain("layers", smelt::layers<baseline>, smelt::layers<looped>);
  plain("layers executed", smelt::executed_layers<baseline>, smelt::executed_layers<looped>);
  plain("query heads", baseline::attention.query_heads, looped::attention.query_heads);
  plain("key-value heads", baseline::attention.kv_heads, looped::attention.kv_heads);
  plain("head size", baseline::attention.head_dim, looped::attention.head_dim);
  plain("experts", baseline::spans[0].ffn.experts, looped::spans[0].ffn.experts);
  plain("experts per token", baseline::spans[0].ffn.top_k, looped::spans[0].ffn.top_k);
  plain("expert width", baseline::spans[0].ffn.width, looped::spans[0].ffn.width);
  return t;
}

/// The token-weighted mean over all sources.
inline held_out_loss overall(const std::vector<held_out_loss>& losses) {
  held_out_loss all{"all"};
  for (const held_out_loss& loss : losses) {
    all.sum += loss.sum;
    all.tokens += loss.tokens;
  }
  return all;
}

/// A line per source. Unigram is what the byte counts of the training text reach there: a model
/// that is not clearly below it has learned nothing from context.
inline smelt::table loss_table(const unigram& bytes, const std::vector<held_out_loss>& baseline,
                               const std::vector<held_out_loss>& looped) {
  smelt::table t({{"held-out loss, nats per byte", smelt::align::left},
                  {"tokens"},
                  {"unigram"},
                  {"Baseline"},
                  {"SMELT"},
                  {"difference"}});
  const auto row = [&t](const held_out_loss& a, const held_out_loss& b, double unigram_loss) {
    t.row({a.source, smelt::grouped(a.tokens), fmt::format("{:.4f}", unigram_loss),
           fmt::format("{:.4f}", a.mean()), fmt::format("{:.4f}", b.mean()),
           fmt::format("{:+.4f}", b.mean() - a.mean())});
  };
  held_out_loss without_context;
  for (std::size_t s = 0; s < baseline.size(); ++s) {
    const double loss = bytes.training.cross_entropy(bytes.held_out[s]);
    without_context.sum += loss * static_cast<double>(baseline[s].tokens);
    without_context.tokens += baseline[s].tokens;
    row(baseline[s], looped[s], loss);
  }
  t.rule();
  row(overall(baseline), overall(looped), without_context.mean());
  return t;
}

/// What the machine made of it.
inline smelt::table speed_table(const training_speed& baseline, const training_speed& looped) {
  smelt::table t({{"training", smelt::align::left}, {"Baseline"}, {"SMELT"}});
  const auto row = [&](const char* name, auto&& show) {
    t.row({name, show(baseline), show(looped)});
  };
  row("tokens", [](const training_speed& s) { return smelt::grouped(s.tokens); });
  row("time", [](const training_speed& s) { return smelt::clock_time(s.seconds); });
  row("tokens / s", [](const training_speed& s) { return smelt::scaled(s.tokens_per_second()); });
  row("MFU", [](const training_speed& s) { return smelt::percent(s.mfu()); });
  return t;
}

/// The curve as a running mean over a twentieth of the run, without the first steps, where the
/// mean still looks back at random weights.
inline loss_curve smoothed(const loss_curve& curve) {
  const std::size_t width = std::max<std::size_t>(1, curve.loss.size() / 20);
  loss_curve smooth;
  double sum = 0;
  for (std::size_t i = 0; i < curve.loss.size(); ++i) {
    sum += curve.loss[i];
    if (i >= width) sum -= curve.loss[i - width];
    if (i + 1 < width) continue;
    smooth.tokens.push_back(curve.tokens[i]);
    smooth.loss.push_back(sum / static_cast<double>(width));
  }
  return smooth;
}

/// Above the two curves, below what separates them.
inline smelt::figure loss_figure(double entropy, const loss_curve& baseline,
                                 const loss_curve& looped) {
  using stroke = smelt::figure::stroke;
  const loss_curve left = smoothed(baseline);
  const loss_curve right = smoothed(looped);
  const double begin = baseline.tokens.empty() ? 0 : baseline.tokens.front();
  const double end = baseline.tokens.empty() ? 1 : baseline.tokens.back();

  smelt::figure_panel losses;
  losses.title = "Baseline and SMELT at the same training FLOPs, parameters and KV cache";
  losses.y_label = "training loss, nats per byte";
  losses.y_highest = 1.2 * entropy;  // the first steps, from random weights, would take all room
  losses.curves = {{"", baseline.tokens, baseline.loss, 0, stroke::faint},
                   {"", looped.tokens, looped.loss, 1, stroke::faint},
                   {"Baseline", left.tokens, left.loss, 0, stroke::line},
                   {"SMELT", right.tokens, right.loss, 1, stroke::line},
                   {"unigram entropy", {begin, end}, {entropy, entropy}, 4, stroke::dashes}};

  // Both saw the same tokens, so that what was hard in a batch drops out of the difference.
  smelt::figure_panel gap;
  gap.x_label = "tokens seen by each model";
  gap.y_label = "SMELT - Baseline";
  std::vector<double> difference;
  for (std::size_t i = 0; i < std::min(left.loss.size(), right.loss.size()); ++i)
    difference.push_back(right.loss[i] - left.loss[i]);
  // The first quarter, where both still fall fast, may leave the picture.
  double widest = 0.05;
  for (std::size_t i = difference.size() / 4; i < difference.size(); ++i)
    widest = std::max(widest, 1.3 * std::abs(difference[i]));
  gap.y_highest = widest;
  gap.y_lowest = -widest;
  gap.curves = {{"", {begin, end}, {0, 0}, 4, stroke::dashes},
                {"", left.tokens, difference, 2, stroke::line}};
  return {{losses, gap}};
}

/// The same for programs, with what is needed to repeat the run.
inline nlohmann::ordered_json summary_of(const options& chosen, double hardware,
                                         const unigram& bytes, const contender& baseline,
                                         const contender& looped) {
  const auto model = [&](const contender& one, auto* body) {
    using A = std::remove_pointer_t<decltype(body)>;
    nlohmann::ordered_json losses = nlohmann::ordered_json::array();
    for (const held_out_loss& loss : one.held_out())
      losses.push_back({{"source", loss.source}, {"tokens", loss.tokens}, {"loss", loss.mean()}});
    return nlohmann::ordered_json{
        {"name", one.name()},
        {"parameters", smelt::parameters<A>},
        {"active_parameters", smelt::active_parameters<A>},
        {"training_flops_per_token",
         static_cast<double>(smelt::flops_per_sequence<A, mask>) / static_cast<double>(context)},
        {"kv_elements_per_token", smelt::kv_elements_per_token<A>},
        {"training_tokens", one.speed().tokens},
        {"training_seconds", one.speed().seconds},
        {"tokens_per_second", one.speed().tokens_per_second()},
        {"mfu", one.speed().mfu()},
        {"held_out_loss", overall(one.held_out()).mean()},
        {"held_out", losses}};
  };
  return {{"steps", chosen.steps},
          {"batch", chosen.batch},
          {"context", chosen.tokens},
          {"seed", chosen.seed},
          {"device", chosen.device},
          {"precision", chosen.precision},
          {"learning_rate", chosen.learning_rate},
          {"product_flops_per_second", hardware},
          {"unigram_entropy", bytes.training.entropy()},
          {"models",
           {model(baseline, static_cast<baseline_body*>(nullptr)),
            model(looped, static_cast<smelt_body*>(nullptr))}}};
}

}  // namespace pair
