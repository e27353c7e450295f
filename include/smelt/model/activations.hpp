// SPDX-License-Identifier: Apache-2.0
//
// Activations of a training step: what forward keeps for backward, once per visit, and the
// workspace that every visit borrows in turn.
//
// For N tokens, hidden H, query width q, key width kv, E experts, top-k K, width f, per visit:
//
//   real      residual in and middle 2 N H; q, k, v after rotation N (q + 2 kv); logsumexp
//   compute   both norm outputs 2 N H; attention output N q; gate and up N K 2f
//   routing   probabilities N E, chosen and weights N K, dispatch plan
//
// A looped layer keeps these once per visit. Laid out once for a batch size; a step allocates
// nothing. budget/memory.hpp states the same sum in closed form, and a test compares the two.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "smelt/exec/buffer.hpp"
#include "smelt/model/plan.hpp"
#include "smelt/op/dense_ffn.hpp"
#include "smelt/op/dispatch.hpp"
#include "smelt/op/loss.hpp"

namespace smelt {

/// Pointers into the activation arena for one visit. Null where a visit has no such tensor.
template <class Compute>
struct visit_activations {
  using real = real_of<Compute>;
  real* residual_in = nullptr;           // [N, H]
  real* attention_rstd = nullptr;        // [N]
  Compute* attention_input = nullptr;    // [N, H] after the norm
  real* query_raw = nullptr;             // [N, q] before query norm; null without one
  real* key_raw = nullptr;               // [N, kv]
  real* query_rstd = nullptr;            // per normalised row
  real* key_rstd = nullptr;              //
  real* query = nullptr;                 // [N, q] rotated
  real* key = nullptr;                   // [N, kv] rotated; of visit 0 where the cache is shared
  real* value = nullptr;                 // [N, kv]
  Compute* attention_output = nullptr;   // [N, q]
  real* logsumexp = nullptr;             // [heads, N]
  real* residual_middle = nullptr;       // [N, H]
  real* ffn_rstd = nullptr;              // [N]
  Compute* ffn_input = nullptr;          // [N, H] after the norm
  real* probabilities = nullptr;         // [N, E]
  real* router_logsumexp = nullptr;      // [N]
  std::int32_t* chosen = nullptr;        // [N, K]
  real* expert_weights = nullptr;        // [N, K]
  dispatch_plan dispatch{};              // where each (token, choice) went
  Compute* gate_up = nullptr;            // [N K, 2f], or [N, 2f] of a dense layer
  Compute* shared_gate_up = nullptr;     // [N, 2 f_shared]
};

/// Memory that visits borrow; nothing in it outlives the op or the sublayer that fills it.
template <class Compute>
struct model_workspace {
  using real = real_of<Compute>;
  real* update = nullptr;          // [N, H] result of a sublayer; in backward its gradient
  real* dresidual = nullptr;       // [N, H] gradient of the residual stream, carried down
  real* dnormalized = nullptr;     // [N, H] gradient of a norm's output
  real* widened = nullptr;         // [N, H] a bf16 norm output as float for the router; bf16 only
  Compute* dupdate = nullptr;      // [N, H]
  real* dattention = nullptr;      // [N, q]
  real* dquery = nullptr;          // [N, q]
  real* dkey = nullptr;            // [N, kv]
  real* dvalue = nullptr;          // [N, kv]
  Compute* narrow = nullptr;       // [N, max(q, kv)] a gradient rounded for the next product
  real* slots = nullptr;           // [N K, H] expert outputs, or gradients of their inputs
  real* dlogits = nullptr;         // [N, E]
  real* dexpert_weights = nullptr; // [N, K]
  std::byte* expert_ffn = nullptr; // backward of the experts, its own layout
  std::byte* balance = nullptr;    // statistics and gradients of the auxiliary losses
  dense_ffn_workspace<Compute> dense{};
  head_workspace<Compute> head{};
};

}  // namespace smelt
