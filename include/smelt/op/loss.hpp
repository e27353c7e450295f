// SPDX-License-Identifier: Apache-2.0
//
// Output head and cross-entropy in one, chunked over the vocabulary:
//
//   logits = x W^T,   loss[n] = logsumexp(logits[n]) - logits[n, target[n]],
//   dlogits = (softmax - onehot) * scale,   dx = dlogits W,   dW += dlogits^T x
//
// Shapes: x [N, H], W [V, H], targets [N] with -1 for positions that do not count.
// Never more than N * chunk logits in memory. A vocabulary of one chunk keeps its logits for the
// gradient; a larger one computes them again (2 N H V FLOPs, counted as recomputed): the price of
// not storing N * V. FLOPs of the model: 2 N H V forward, 4 N H V backward.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "smelt/exec/host_device.hpp"
#include "smelt/exec/matmul.hpp"
#include "smelt/exec/matrix.hpp"
#include "smelt/exec/policy.hpp"
#include "smelt/op/exponential.hpp"
#include "smelt/op/lane_sum.hpp"

namespace smelt {

/// Entries of the vocabulary whose logits exist at one time.
inline constexpr std::int64_t head_chunk = 2048;

/// Memory that the head borrows: with c = min(V, head_chunk).
template <class Compute>
struct head_workspace {
  real_of<Compute>* logits = nullptr;        // [N, c]
  Compute* dlogits = nullptr;                // [N, c]; the same memory as logits unless bf16
  real_of<Compute>* maximum = nullptr;       // [N]
  real_of<Compute>* sum = nullptr;           // [N]
  real_of<Compute>* target_logit = nullptr;  // [N]
};

/// One element of dlogits: factor is scale / sum of the row, at_target is scale at the target and 0
/// elsewhere.
template <class Real>
SMELT_HD Real head_gradient(Real logit, Real maximum, Real factor, Real at_target) {
  return exponential(logit - maximum) * factor - at_target;
}

inline namespace host_backend {

namespace host_detail {
// Running maximum and sum of exponentials of one row, as in an online softmax.
template <class Real>
void extend_row(const Real* logits, std::int64_t count, Real& maximum, Real& sum) {
  Real top = maximum;
  for (std::int64_t j = 0; j < count; ++j) top = logits[j] > top ? logits[j] : top;
  const Real added =
      lane_sum<Real>(count, [=](std::int64_t j) { return exponential(logits[j] - top); });
  sum = sum * exponential(maximum - top) + added;
  maximum = top;
}
}  // namespace host_detail

/// Cross-entropy (nats) summed over the positions that count, added to *loss_sum. With a gradient,
/// dx [N, H] is overwritten and dweights [V, H] added to, both for the sum times *scale; without,
/// scale is null and the two may be empty.
template <class Compute, class Real = real_of<Compute>>
void head_loss(const host<Compute>& run, matrix_view<const Compute> x,
               matrix_view<const Compute> weights, const std::int32_t* targets,
               const real_of<Compute>* scale, const head_workspace<Compute>& work,
               matrix_view<real_of<Compute>> dx, matrix_view<real_of<Compute>> dweights,
               typename host<Compute>::statistic* loss_sum) {
  const std::int64_t tokens = x.rows;
  const std::int64_t vocabulary = weights.rows;
  const std::int64_t chunk = std::min(vocabulary, head_chunk);
  std::fill_n(work.maximum, tokens, -std::numeric_limits<Real>::infinity());
  std::fill_n(work.sum, tokens, Real{});

  const auto logits_of = [&](std::int64_t first, std::int64_t last) {
    const matrix_view<Real> logits(work.logits, tokens, last - first);
    product(run, x, transposed(weights.rows_between(first, last)), logits);
    return logits;
  };
  for (std::int64_t first = 0; first < vocabulary; first += chunk) {
    const std::int64_t last = std::min(vocabulary, first + chunk);
    const matrix_view<Real> logits = logits_of(first, last);
    for_each_block(run, tokens, 32, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) {
        if (targets[n] < 0) continue;
        host_detail::extend_row(logits.row(n), last - first, work.maximum[n], work.sum[n]);
        if (targets[n] >= first && targets[n] < last)
          work.target_logit[n] = logits(n, targets[n] - first);
      }
    });
  }
  *loss_sum +=
      sum_over_blocks<double>(run.threads(), tokens, [&](std::int64_t begin, std::int64_t end) {
        double part = 0.0;
        for (std::int64_t n = begin; n < end; ++n)
          if (targets[n] >= 0)
            part += static_cast<double>(work.maximum[n]) +
                    std::log(static_cast<double>(work.sum[n])) -
                    static_cast<double>(work.target_logit[n]);
        return part;
      });
  if (scale == nullptr) return;

  for (std::int64_t first = 0; first < vocabulary; first += chunk) {
    const std::int64_t last = std::min(vocabulary, first + chunk);
    matrix_view<Real> logits(work.logits, tokens, last - first);
    if (vocabulary > chunk) {
      logits = logits_of(first, last);
      // logits_of counted model FLOPs once more; they belong to the recomputed ones.
      run.recount_product(tokens, last - first, x.columns);
    }
    const matrix_view<Compute> dlogits(work.dlogits, tokens, last - first);
    for_each_block(run, tokens, 32, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) {
        const Real* row = logits.row(n);
        Compute* out = dlogits.row(n);
        if (targets[n] < 0) {
          std::fill_n(out, last - first, Compute{});
          continue;
        }
        const Real top = work.maximum[n];
        const Real factor = *scale / work.sum[n];
        // The target is singled out before the row is overwritten: dlogits may be logits.
        const std::int64_t hit = targets[n] - first;
        const bool has_target = hit >= 0 && hit < last - first;
        const Real at_target = has_target ? head_gradient(row[hit], top, factor, *scale) : Real{};
        for (std::int64_t j = 0; j < last - first; ++j)
          out[j] = static_cast<Compute>(head_gradient(row[j], top, factor, Real(0)));
        if (has_target) out[hit] = static_cast<Compute>(at_target);
      }
    });
    product(run, dlogits, weights.rows_between(first, last), dx,
            first == 0 ? into::overwrite : into::accumulate);
    product(run, transposed(dlogits), x, dweights.rows_between(first, last), into::accumulate);
  }
}

}  // namespace host_backend
}  // namespace smelt
