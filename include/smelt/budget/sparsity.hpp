// SPDX-License-Identifier: Apache-2.0
//
// Compute-equivalent sparsity against a control with all experts active (F0, N0):
//
//   N_active_equivalent = (F / F0) N0,     S = 1 - N_active_equivalent / N
//
// The paper measures a Baseline against its Baseline control and a SMELT row against its own.
// Source: paper section 3, equation 1.
#pragma once

#include "smelt/budget/flops.hpp"
#include "smelt/budget/parameters.hpp"

namespace smelt {

/// S as a fraction (0.95, not 95). F is the training FLOPs per token under Mask, N the parameters
/// of the bodies, so an embedding never dilutes it.
template <countable A, countable Control, attention_mask Mask = attended<391>>
inline constexpr double sparsity =
    1.0 - static_cast<double>(flops_per_sequence<body_of<A>, Mask>) /
              static_cast<double>(flops_per_sequence<body_of<Control>, Mask>) *
              static_cast<double>(parameters<body_of<Control>>) /
              static_cast<double>(parameters<body_of<A>>);

}  // namespace smelt
