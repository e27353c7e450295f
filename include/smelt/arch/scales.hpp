// SPDX-License-Identifier: Apache-2.0
//
// The paper's grid: 16 Baselines and the 12 sparse SMELT rows, each a named type.
//
//   paper::baseline_200m_s95    200M scale, compute-equivalent sparsity of about 95 %
//   paper::smelt_200m_s95       its looped twin: middle half of the layers, executed twice
//   paper::baseline_200m<512>   the same shape with any other number of experts
//
// Every row routes to its top 8 experts. S = 0/85/95/97 % are 8/64/192/336 experts in a Baseline
// and 96/288/504 in a SMELT row. The SMELT rows of S = 0 are absent: their shape is not printed and
// does not follow from the rest of their column.
//
// Printed: hidden sizes, layers, experts, spans. Derived, and confirmed by every printed total:
// expert widths and key widths. Chosen: how a width splits into heads (two key-value heads).
// Source: paper section 2.
#pragma once

#include <cstdint>

#include "smelt/arch/transformer.hpp"

namespace smelt::paper {

// Shapes of a scale; what varies along a row of the paper's table is the number of experts.

template <std::int64_t Experts>
using baseline_100m =
    transformer<hidden<672>, gqa<6, 2, 112>, moe<Experts, 8, 544>, stack<plain<10>>>;
template <std::int64_t Experts>
using baseline_200m =
    transformer<hidden<1280>, gqa<10, 2, 128>, moe<Experts, 8, 432>, stack<plain<12>>>;
template <std::int64_t Experts>
using baseline_600m =
    transformer<hidden<1792>, gqa<14, 2, 128>, moe<Experts, 8, 600>, stack<plain<20>>>;
template <std::int64_t Experts>
using baseline_1600m =
    transformer<hidden<2304>, gqa<18, 2, 128>, moe<Experts, 8, 768>, stack<plain<30>>>;

template <std::int64_t Experts>
using smelt_100m = transformer<hidden<576>, gqa<8, 2, 72>, moe<Experts, 8, 424>,
                               stack<plain<2>, looped<5, 2>, plain<3>>>;
template <std::int64_t Experts>
using smelt_200m = transformer<hidden<1056>, gqa<12, 2, 88>, moe<Experts, 8, 352>,
                               stack<plain<3>, looped<6, 2>, plain<3>>>;
// The 600M scale has two shapes: the paper widens it from S = 95 % on.
template <std::int64_t Experts>
using smelt_600m_narrow = transformer<hidden<1408>, gqa<16, 2, 88>, moe<Experts, 8, 520>,
                                      stack<plain<5>, looped<10, 2>, plain<5>>>;
template <std::int64_t Experts>
using smelt_600m_wide = transformer<hidden<1512>, gqa<18, 2, 84>, moe<Experts, 8, 472>,
                                    stack<plain<5>, looped<10, 2>, plain<5>>>;
template <std::int64_t Experts>
using smelt_1600m = transformer<hidden<1848>, gqa<22, 2, 84>, moe<Experts, 8, 640>,
                                stack<plain<7>, looped<15, 2>, plain<8>>>;

// The cells. A struct of its own for each, so that a diagnostic prints the short name.

struct baseline_100m_s0 : baseline_100m<8> {};
struct baseline_100m_s85 : baseline_100m<64> {};
struct baseline_100m_s95 : baseline_100m<192> {};
struct baseline_100m_s97 : baseline_100m<336> {};

struct baseline_200m_s0 : baseline_200m<8> {};
struct baseline_200m_s85 : baseline_200m<64> {};
struct baseline_200m_s95 : baseline_200m<192> {};
struct baseline_200m_s97 : baseline_200m<336> {};

struct baseline_600m_s0 : baseline_600m<8> {};
struct baseline_600m_s85 : baseline_600m<64> {};
struct baseline_600m_s95 : baseline_600m<192> {};
struct baseline_600m_s97 : baseline_600m<336> {};

struct baseline_1600m_s0 : baseline_1600m<8> {};
struct baseline_1600m_s85 : baseline_1600m<64> {};
struct baseline_1600m_s95 : baseline_1600m<192> {};
struct baseline_1600m_s97 : baseline_1600m<336> {};

struct smelt_100m_s85 : smelt_100m<96> {};
struct smelt_100m_s95 : smelt_100m<288> {};
struct smelt_100m_s97 : smelt_100m<504> {};

struct smelt_200m_s85 : smelt_200m<96> {};
struct smelt_200m_s95 : smelt_200m<288> {};
struct smelt_200m_s97 : smelt_200m<504> {};

struct smelt_600m_s85 : smelt_600m_narrow<96> {};
struct smelt_600m_s95 : smelt_600m_wide<288> {};
struct smelt_600m_s97 : smelt_600m_wide<504> {};

struct smelt_1600m_s85 : smelt_1600m<96> {};
struct smelt_1600m_s95 : smelt_1600m<288> {};
struct smelt_1600m_s97 : smelt_1600m<504> {};

/// A sparse cell: two bodies of one budget, and the fully active Baseline of their scale, against
/// which sparsity is measured.
template <class Baseline, class Smelt, class Control>
struct cell {
  using baseline = Baseline;
  using smelt = Smelt;
  using control = Control;
};

/// Cells as a list, for whoever asks something of all of them.
template <class... Cells>
struct cell_list {
  /// Calls `visit(cell<...>{})` for each, in order.
  template <class Visit>
  static constexpr void for_each(Visit visit) {
    (visit(Cells{}), ...);
  }
};

/// The 12 sparse cells, by scale, then by sparsity.
using sparse_cells = cell_list<cell<baseline_100m_s85, smelt_100m_s85, baseline_100m_s0>,
                               cell<baseline_100m_s95, smelt_100m_s95, baseline_100m_s0>,
                               cell<baseline_100m_s97, smelt_100m_s97, baseline_100m_s0>,
                               cell<baseline_200m_s85, smelt_200m_s85, baseline_200m_s0>,
                               cell<baseline_200m_s95, smelt_200m_s95, baseline_200m_s0>,
                               cell<baseline_200m_s97, smelt_200m_s97, baseline_200m_s0>,
                               cell<baseline_600m_s85, smelt_600m_s85, baseline_600m_s0>,
                               cell<baseline_600m_s95, smelt_600m_s95, baseline_600m_s0>,
                               cell<baseline_600m_s97, smelt_600m_s97, baseline_600m_s0>,
                               cell<baseline_1600m_s85, smelt_1600m_s85, baseline_1600m_s0>,
                               cell<baseline_1600m_s95, smelt_1600m_s95, baseline_1600m_s0>,
                               cell<baseline_1600m_s97, smelt_1600m_s97, baseline_1600m_s0>>;

}  // namespace smelt::paper
