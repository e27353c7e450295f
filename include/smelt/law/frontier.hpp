// SPDX-License-Identifier: Apache-2.0
//
// The compute-optimal frontier of a surface: the lowest loss at a total compute C = F D, at one S.
//
//   F*(C) = [ a A (1-S)^b C^c / (c K) ]^(1/(a+c)),   D* = C / F*
//   L*(C) = E + G C^-gamma,   gamma = a c / (a + c)
//   G     = (1 + a/c) A (1-S)^b [ a A (1-S)^b / (c K) ]^(-a/(a+c))
//
// F* follows from dL/dF = 0, where a A(1-S)^b / F^a = c K / D^c; L* by putting it back. The inverse
// C(L) = (G / (L - E))^(1/gamma) is then closed too (paper, section 5).
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "smelt/error.hpp"
#include "smelt/law/message.hpp"
#include "smelt/law/surface.hpp"

namespace smelt::law {

/// The best use of a compute budget.
struct optimum {
  double flops_per_token;       ///< F*, training FLOPs per token
  double tokens;                ///< D*
  double loss;                  ///< L*, nats per token
  double tokens_per_parameter;  ///< D* / (F* / 6): tokens per compute-equivalent active parameter
};

namespace detail {

inline void check_compute(double compute_flops) {
  if (compute_flops > 0 && std::isfinite(compute_flops)) return;
  throw error("law: compute C is " + number_text(compute_flops) +
              " FLOPs, expected a positive finite number");
}

inline void check_sparsity(double sparsity) {
  if (sparsity >= 0 && sparsity < 1) return;
  throw error("law: sparsity S is " + number_text(sparsity) +
              ", expected a fraction in [0, 1); write 0.95 for 95 %");
}

}  // namespace detail

/// The frontier of one surface at one sparsity; a value, cheap to make.
class frontier {
 public:
  /// @throws smelt::error if S is outside [0, 1), or if the surface has no frontier: A, K, a and c
  ///         must be positive and finite (a term that does not fall has no optimum), E not
  ///         negative.
  frontier(const surface& law, double sparsity) : law_(law), sparsity_(sparsity) {
    detail::check_sparsity(sparsity);
    check(law.A, "A");
    check(law.K, "K");
    check(law.a, "a");
    check(law.c, "c");
    if (!(law.E >= 0) || !std::isfinite(law.E) || !std::isfinite(law.b)) {
      throw error("law: the surface has E " + number_text(law.E) + " and b " + number_text(law.b) +
                  ", expected E >= 0 and both finite; no frontier");
    }
    // In logs: A and K of a steep fit overflow long before their ratio does.
    log_model_ = std::log(law.A) + law.b * std::log1p(-sparsity);
    log_balance_ = std::log(law.a) + log_model_ - std::log(law.c) - std::log(law.K);
    gamma_ = law.a * law.c / (law.a + law.c);
    log_g_ = std::log1p(law.a / law.c) + log_model_ - law.a / (law.a + law.c) * log_balance_;
  }

  const surface& law() const { return law_; }
  double sparsity() const { return sparsity_; }

  /// gamma: how fast the reducible loss falls with compute; dimensionless.
  double exponent() const { return gamma_; }

  /// F*, training FLOPs per token, at `compute_flops` total training FLOPs.
  double flops_per_token(double compute_flops) const {
    detail::check_compute(compute_flops);
    return std::exp((log_balance_ + law_.c * std::log(compute_flops)) / (law_.a + law_.c));
  }

  /// D*, training tokens, at `compute_flops`.
  double tokens(double compute_flops) const {
    return compute_flops / flops_per_token(compute_flops);
  }

  /// L*, nats per token, at `compute_flops`.
  double loss(double compute_flops) const {
    detail::check_compute(compute_flops);
    return law_.E + std::exp(log_g_ - gamma_ * std::log(compute_flops));
  }

  /// All of it at `compute_flops` total training FLOPs.
  optimum at(double compute_flops) const {
    const double f = flops_per_token(compute_flops);
    const double d = compute_flops / f;
    return {f, d, loss(compute_flops), d / (f / 6)};
  }

  /// Whether the frontier comes down to `nats` at some finite compute.
  bool reaches(double nats) const { return nats > law_.E; }

  /// The compute in FLOPs at which the frontier has come down to `nats`.
  /// @throws smelt::error if it never does, because `nats` is not above E.
  double compute_for(double nats) const {
    if (!reaches(nats)) {
      throw error("law: loss " + number_text(nats) + " is never reached at sparsity " +
                  number_text(sparsity_) + ", the frontier ends at its irreducible loss E " +
                  number_text(law_.E) + "; ask for a loss above E");
    }
    return std::exp((log_g_ - std::log(nats - law_.E)) / gamma_);
  }

 private:
  static void check(double value, const char* name) {
    if (value > 0 && std::isfinite(value)) return;
    throw error(std::string("law: coefficient ") + name + " of the surface is " +
                number_text(value) + ", expected positive and finite; no frontier");
  }

  surface law_;
  double sparsity_;
  double gamma_ = 0;
  double log_model_ = 0;    // log of A (1-S)^b
  double log_balance_ = 0;  // log of a A (1-S)^b / (c K)
  double log_g_ = 0;        // log of G
};

/// The optimum found by walking the surface instead of solving it: golden-section search in log F
/// at constant C. Slow, and the check of the closed form. Same units and errors as `frontier::at`.
inline optimum search_optimum(const surface& law, double sparsity, double compute_flops) {
  const frontier closed(law, sparsity);  // for its checks only
  detail::check_compute(compute_flops);
  const auto loss_at = [&](double log_f) {
    return law.loss(std::exp(log_f), sparsity, compute_flops / std::exp(log_f));
  };
  // L is convex in log F: any bracket this wide holds the one minimum.
  double low = 0;
  double high = std::log(compute_flops);
  const double ratio = (std::sqrt(5.0) - 1) / 2;
  double left = high - ratio * (high - low);
  double right = low + ratio * (high - low);
  double loss_left = loss_at(left);
  double loss_right = loss_at(right);
  for (int step = 0; step < 120; ++step) {
    if (loss_left < loss_right) {
      high = right;
      right = left;
      loss_right = loss_left;
      left = high - ratio * (high - low);
      loss_left = loss_at(left);
    } else {
      low = left;
      left = right;
      loss_left = loss_right;
      right = low + ratio * (high - low);
      loss_right = loss_at(right);
    }
  }
  const double f = std::exp((low + high) / 2);
  const double d = compute_flops / f;
  return {f, d, law.loss(f, sparsity, d), d / (f / 6)};
}

}  // namespace smelt::law
