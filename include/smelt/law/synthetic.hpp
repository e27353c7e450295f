// SPDX-License-Identifier: Apache-2.0
//
// Endpoints drawn from a known surface: the truth is then known, and a fit, an interval or a
// figure can be judged against it. Used by tests, benchmarks and the example's demonstration.
//
//   log loss = log L(F, S, D) + cell_noise * u_cell + noise * v,   u, v standard normal
//
// u is shared by the endpoints of one cell (the luck of one run), v is each endpoint's own.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "smelt/law/endpoint.hpp"
#include "smelt/law/paper.hpp"
#include "smelt/law/surface.hpp"

namespace smelt::law {

/// Noise of synthetic endpoints, as standard deviations of log loss (0.003 is 0.3 %).
struct synthetic_noise {
  double endpoint = 0.002;  ///< each endpoint's own
  double cell = 0;          ///< shared by a cell's endpoints
};

/// One endpoint per cell and horizon, from `law` with noise. The same seed gives the same values
/// on every platform with IEEE doubles and the same math library.
inline std::vector<endpoint> synthetic_endpoints(const surface& law,
                                                 std::span<const paper::cell> cells,
                                                 std::span<const double> horizons_tokens,
                                                 const std::string& architecture,
                                                 const synthetic_noise& noise, std::uint64_t seed) {
  std::mt19937_64 bits(seed);
  // Box and Muller by hand: std::normal_distribution differs between standard libraries.
  const auto uniform = [&] { return (static_cast<double>(bits() >> 11) + 0.5) * 0x1p-53; };
  const auto normal = [&] {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(2 * std::acos(-1.0) * uniform());
  };
  std::vector<endpoint> points;
  for (const paper::cell& cell : cells) {
    const double shared = noise.cell * normal();
    for (const double tokens : horizons_tokens) {
      const double own = noise.endpoint * normal();
      const double loss = law.loss(cell.flops_per_token, cell.sparsity, tokens);
      points.push_back({cell.flops_per_token, cell.sparsity, tokens, loss * std::exp(shared + own),
                        architecture, std::string(cell.name), "", 0});
    }
  }
  return points;
}

}  // namespace smelt::law
