// SPDX-License-Identifier: Apache-2.0
//
// kernel_costs: FLOPs and bytes of every kernel of a training step on CUDA in bf16, counted by hand
// from what each must read and write; roofline.cpp puts peaks beside them, device.cu times.
//
// Bytes are those that must cross the device's memory once: operands and results, a weight once per
// product, gathered rows once per token (their repeats hit the second-level cache), scratch that
// one kernel writes and another reads. FLOPs are the model's; what attention's backward pass
// computes again is in `executed`. The sum of the model's equals the accounting of the type, which
// roofline.cpp demands.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "smelt/smelt.hpp"

namespace smelt::bench {

/// What a step looks like to its kernels.
struct step_shape {
  std::int64_t tokens = 0;
  std::int64_t pairs = 0;  // (query, attended position) pairs of the batch
  std::int64_t hidden = 0, query_heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t experts = 0, top_k = 0, width = 0;
  std::int64_t visits = 0;      // executed layers, all of them MoE
  std::int64_t vocabulary = 0;  // of the head
  std::int64_t parameters = 0;  // of all layers, embedding and head

  std::int64_t query_width() const { return query_heads * head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }
  std::int64_t slots() const { return tokens * top_k; }
};

/// A language model whose layers are all MoE, on sequences of `context` tokens.
template <has_head Model>
step_shape shape_of(std::int64_t sequences, std::int64_t context) {
  using body = typename Model::body;
  const attention_shape& a = body::attention;
  const ffn_shape& ffn = body::spans[0].ffn;
  return {.tokens = sequences * context,
          .pairs = sequences * (context * (context + 1) / 2),
          .hidden = body::hidden_size,
          .query_heads = a.query_heads,
          .kv_heads = a.kv_heads,
          .head_dim = a.head_dim,
          .experts = ffn.experts,
          .top_k = ffn.top_k,
          .width = ffn.width,
          .visits = executed_layers<body>,
          .vocabulary = Model::vocabulary_size,
          .parameters = parameters<Model>};
}

/// One kernel, or a few that belong together, in one call.
struct kernel_cost {
  std::string name;
  std::int64_t calls = 0;     // in a step
  double flops = 0;           // of the model, one call
  double executed = 0;        // with what is computed again
  double bytes = 0;           // one call
  bool tensor_cores = false;  // whether the FLOPs run there, or as float32
};

/// Every kernel of a step, in the order of its first call.
inline std::vector<kernel_cost> kernel_costs(const step_shape& s) {
  const auto n = static_cast<double>(s.tokens), h = static_cast<double>(s.hidden);
  const auto q = static_cast<double>(s.query_width()), kv = static_cast<double>(s.kv_width());
  const auto e = static_cast<double>(s.experts), f = static_cast<double>(s.width);
  const auto k = static_cast<double>(s.top_k), slots = static_cast<double>(s.slots());
  const auto v = static_cast<double>(s.vocabulary), p = static_cast<double>(s.parameters);
  const auto heads = static_cast<double>(s.query_heads), pairs = static_cast<double>(s.pairs);
  std::vector<kernel_cost> all;
  const auto add = [&all](const char* name, std::int64_t calls, double flops, double bytes,
                          bool tensor_cores = false, double executed = 0) {
    all.push_back({name, calls, flops, executed > 0 ? executed : flops, bytes, tensor_cores});
  };
  // A dense product of a [rows, inner] and b [inner, columns], in bytes an element.
  const auto dense = [](double rows, double columns, double inner, double in, double out) {
    return in * (rows * inner + inner * columns) + out * rows * columns;
  };
  const std::int64_t visits = s.visits;
  constexpr double b = 2, r = 4;  // bytes of bf16 and of float32

  add("embed_forward", 1, 0, n * (4 + 2 * r * h));
  add("rms_norm_forward", 2 * visits + 1, 0, n * (r * h + b * h + r));
  add("product: q, k, v", visits, 2 * n * h * (q + 2 * kv), dense(n, q + 2 * kv, h, b, r), true);
  add("rope_rotate", 2 * visits, 0, n * 2 * r * (q + kv));  // q and k, forward and back
  add("attention_forward", visits, 4 * q * pairs,
      n * ((r + 2 * b) * (q + 2 * kv) + b * q + r * heads), true);
  add("product: output", visits, 2 * n * q * h, dense(n, h, q, b, r), true);
  add("residual_add", 2 * visits, 0, 3 * r * n * h);
  add("product: router", visits, 2 * n * h * e, dense(n, e, h, r, r));
  add("route_forward", visits, 0, n * (2 * r * e + k * (4 + r) + r));
  add("dispatch_forward", visits, 0, slots * (2 * 4 + 8 + 8 + 4));
  add("expert_ffn_forward", visits, 6 * slots * h * f,
      n * b * h + 3 * e * h * f * b + slots * (2 * f * b + 2 * f * b + b * h), true);
  add("combine_forward", 2 * visits, 0, slots * (b * h + 8) + n * r * h);
  add("head_loss", 1, 6 * n * h * v, 3 * n * v * (r + b) + 2 * b * v * h + 2 * r * v * h, true,
      (v > 2048 ? 8 : 6) * n * h * v);
  add("rms_norm_backward", 2 * visits + 1, 0, n * (4 * r * h + r));
  add("scaled: gradient of a residual", 2 * visits, 0, n * h * (r + r));
  add("expert_ffn_backward", visits, 12 * slots * h * f,
      n * h * (r + 4 * b) + 3 * e * h * f * b + 3 * e * h * f * 2 * r +
          slots * (2 * f * b + 2 * 2 * f * b + 2 * f * b + b * h + 2 * r),
      true);
  add("balance_forward", visits, 0, n * (r * e + 4 * k + r));
  add("route_backward", visits, 0, n * (2 * r * e + k * (4 + 2 * r)));
  add("product: router, backward", visits, 4 * n * h * e,
      2 * dense(n, e, h, r, r) + r * n * h + r * e * h);
  add("product: output, backward", visits, 4 * n * q * h,
      b * (2 * n * h + n * q + h * q) + r * n * q + 2 * r * h * q, true);
  // Keys and queries each recompute the scores: 14 instead of 8 query widths a pair.
  add("attention_backward", visits, 8 * q * pairs,
      n * ((r + 3 * b) * (q + 2 * kv) + (r + 2 * b) * q + b * q + r * (q + 2 * kv) + 3 * r * heads),
      true, 14 * q * pairs);
  add("scaled: operand of a product", 3 * visits, 0, n * (q + 2 * kv) / 3 * (r + b));
  add("product: q, k, v, backward", visits, 4 * n * h * (q + 2 * kv),
      b * (2 * n * (q + 2 * kv) + n * h + h * (q + 2 * kv)) + 2 * r * h * (q + 2 * kv) +
          5 * r * n * h,
      true);
  add("embed_backward", 1, 0, n * (4 * 4 + r * h) + 2 * r * n * h);
  add("sum_of_squares", 1, 0, r * p);
  add("adamw_update", 1, 0, (7 * r + b) * p);
  return all;
}

}  // namespace smelt::bench
