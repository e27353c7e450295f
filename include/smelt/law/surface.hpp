// SPDX-License-Identifier: Apache-2.0
//
// The two laws as values.
//
//   surface     L(F, S, D) = E + A (1 - S)^b / F^a + K / D^c      (paper, section 5)
//   chinchilla  L(N, D)    = E + A / N^alpha + B / D^beta         (Hoffmann et al. 2022)
//
// The letters are the papers' own, so that a coefficient can be compared with a table at sight.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <string_view>

namespace smelt::law {

/// Coefficients of the loss surface of one architecture.
struct surface {
  double E = 0;  ///< irreducible loss, nats per token
  double A = 0;  ///< nats times (FLOPs per token)^a
  double K = 0;  ///< nats times tokens^c
  double a = 0;  ///< exponent of FLOPs per token
  double b = 0;  ///< exponent of 1 - S: what sparsity buys at the same F
  double c = 0;  ///< exponent of tokens

  friend bool operator==(const surface&, const surface&) = default;

  /// The loss in nats per token at F FLOPs per token, sparsity S in [0, 1), D tokens; F, D > 0.
  double loss(double flops_per_token, double sparsity, double tokens) const {
    return E + model_term(flops_per_token, sparsity) + data_term(tokens);
  }

  /// A (1 - S)^b / F^a in nats: what a larger or sparser model would still gain.
  double model_term(double flops_per_token, double sparsity) const {
    return A * std::pow(1 - sparsity, b) / std::pow(flops_per_token, a);
  }

  /// K / D^c in nats: what more tokens would still gain.
  double data_term(double tokens) const { return K / std::pow(tokens, c); }
};

inline constexpr std::size_t coefficient_count = 6;

/// Names of the coefficients in the order of `coefficients_of`.
inline constexpr std::array<std::string_view, coefficient_count> coefficient_names{"E", "A", "K",
                                                                                   "a", "b", "c"};

/// The coefficients as a row, for tables and intervals; units as in `surface`.
inline std::array<double, coefficient_count> coefficients_of(const surface& law) {
  return {law.E, law.A, law.K, law.a, law.b, law.c};
}

/// Coefficients of the plain form in parameters and tokens.
struct chinchilla {
  double E = 0;      ///< irreducible loss, nats per token
  double A = 0;      ///< nats times parameters^alpha
  double B = 0;      ///< nats times tokens^beta
  double alpha = 0;  ///< exponent of parameters
  double beta = 0;   ///< exponent of tokens

  friend bool operator==(const chinchilla&, const chinchilla&) = default;

  /// The loss in nats per token at N parameters and D tokens, both positive.
  double loss(double parameters, double tokens) const {
    return E + A / std::pow(parameters, alpha) + B / std::pow(tokens, beta);
  }
};

}  // namespace smelt::law
