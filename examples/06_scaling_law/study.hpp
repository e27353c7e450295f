// SPDX-License-Identifier: Apache-2.0
//
// The study itself: which endpoints, the fits, the draws, the gains. No output, no files.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "settings.hpp"
#include "smelt/error.hpp"
#include "smelt/law/bootstrap.hpp"
#include "smelt/law/domain.hpp"
#include "smelt/law/endpoint.hpp"
#include "smelt/law/fit.hpp"
#include "smelt/law/gain_interval.hpp"
#include "smelt/law/residual.hpp"

namespace scaling_law {

namespace law = smelt::law;
using law::endpoint;

/// One architecture: its endpoints and what came of them.
struct side {
  std::string name;
  std::vector<endpoint> points;   // overall loss, after leaving out
  std::vector<endpoint> domains;  // by domain, after leaving out
  std::int64_t left_out = 0;
  law::fitted_surface fitted;
  std::array<law::estimate, law::coefficient_count> estimates;
  std::vector<law::residual_row> residuals;
  std::vector<law::domain_law> domain_laws;
};

struct domain_gain {
  std::string domain;
  std::optional<double> gain;  // nothing where the reference never gets there
};

struct study {
  settings asked;
  std::string source;
  std::vector<side> sides;  // reference, target; or one alone
  law::paired_draws draws;
  std::vector<law::gain_estimate> gains;               // compute by compute, each at every sparsity
  std::vector<std::string> no_gain;                    // why some are missing
  std::vector<std::vector<law::gain_estimate>> bands;  // one per sparsity
  std::vector<domain_gain> domain_gains;
  double least_compute = 0;  // over the endpoints, F D
  double most_compute = 0;

  bool pair() const { return sides.size() == 2; }
  const law::surface& reference() const { return sides[0].fitted.coefficients; }
  const law::surface& target() const { return sides[1].fitted.coefficients; }
};

namespace detail {

/// Runs `work`, putting the source's name before an error that speaks of a row of it.
template <class Work>
auto naming(const std::string& source, const Work& work) {
  try {
    return work();
  } catch (const smelt::error& failure) {
    const std::string text = failure.what();
    const bool of_source = text.starts_with("row ") || text.starts_with("endpoint ");
    throw smelt::error(of_source ? source + ": " + text : text);
  }
}

inline std::vector<std::string> architectures_of(const std::vector<endpoint>& points) {
  std::vector<std::string> names;
  for (const endpoint& point : points) {
    if (std::find(names.begin(), names.end(), point.architecture) == names.end()) {
      names.push_back(point.architecture);
    }
  }
  return names;
}

/// Reference first, target second; or the one architecture there is.
inline std::vector<std::string> choose_sides(const std::vector<endpoint>& points,
                                             const settings& asked, const std::string& source) {
  const std::vector<std::string> names = architectures_of(points);
  std::string known;
  for (const std::string& name : names) known += (known.empty() ? "" : ", ") + name;
  for (const std::string& name : {asked.reference, asked.target}) {
    if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end()) {
      throw smelt::error(source + ": no endpoint of architecture '" + name + "', found " + known);
    }
  }
  if (!asked.reference.empty() && asked.reference == asked.target) {
    throw smelt::error("--reference and --target are both '" + asked.target +
                       "', expected two architectures");
  }
  if (names.size() == 1) return names;
  if (names.size() > 2 && (asked.reference.empty() || asked.target.empty())) {
    throw smelt::error(source + ": " + std::to_string(names.size()) + " architectures (" + known +
                       "); choose two with --reference and --target");
  }
  std::string reference = asked.reference;
  std::string target = asked.target;
  const auto other = [&](const std::string& one) { return names[0] == one ? names[1] : names[0]; };
  if (reference.empty() && target.empty()) {
    const bool has_baseline = std::find(names.begin(), names.end(), "baseline") != names.end();
    reference = has_baseline ? "baseline" : names[0];
  }
  if (reference.empty()) reference = other(target);
  if (target.empty()) target = other(reference);
  return {reference, target};
}

}  // namespace detail

/// Fits, resamples and compares. `progress` is told of the bootstrap's draws.
inline study make_study(const settings& asked, const std::string& source,
                        const std::vector<endpoint>& all, const law::progress_function& progress) {
  study result;
  result.asked = asked;
  result.source = source;
  // Before anything is left out: a negative number of tokens must not pass for a short run.
  detail::naming(source, [&] {
    for (std::size_t i = 0; i < all.size(); ++i) {
      law::check_endpoint(all[i], static_cast<std::int64_t>(i));
    }
  });
  for (const std::string& cell : asked.leave_out) {
    if (std::none_of(all.begin(), all.end(),
                     [&](const endpoint& point) { return point.cell == cell; })) {
      throw smelt::error(source + ": no cell '" + cell + "' to leave out");
    }
  }
  const auto unwanted = [&](const endpoint& point) {
    return (!asked.keep_dense && law::dense(point)) || point.tokens < asked.least_tokens ||
           std::find(asked.leave_out.begin(), asked.leave_out.end(), point.cell) !=
               asked.leave_out.end();
  };
  const law::fit_options options{asked.huber_delta, asked.threads, {}};

  for (const std::string& name : detail::choose_sides(all, asked, source)) {
    side one;
    one.name = name;
    for (const endpoint& point : all) {
      if (point.architecture != name) continue;
      if (unwanted(point)) {
        one.left_out += point.domain.empty();
        continue;
      }
      (point.domain.empty() ? one.points : one.domains).push_back(point);
    }
    if (one.points.empty()) {
      throw smelt::error(source + ": no endpoint of '" + name + "' with the overall loss " +
                         "(domain empty or 'all') is left to fit");
    }
    one.fitted = detail::naming(source, [&] { return law::fit(one.points, options); });
    one.residuals = law::residuals(one.points, one.fitted.coefficients);
    one.domain_laws = detail::naming(
        source, [&] { return law::fit_domains(one.domains, one.fitted.coefficients, options); });
    result.sides.push_back(std::move(one));
  }

  const law::bootstrap_options drawing{asked.draws, asked.seed, asked.threads, progress};
  if (result.pair()) {
    result.draws = law::bootstrap_pair(result.sides[0].points, result.sides[0].fitted,
                                       result.sides[1].points, result.sides[1].fitted, drawing);
  } else {
    result.draws.reference =
        law::bootstrap(result.sides[0].points, result.sides[0].fitted, drawing);
  }
  for (std::size_t i = 0; i < result.sides.size(); ++i) {
    result.sides[i].estimates = law::coefficient_estimates(
        result.sides[i].fitted.coefficients, i == 0 ? result.draws.reference : result.draws.target,
        asked.confidence, asked.interval_rule());
    for (const endpoint& point : result.sides[i].points) {
      const double compute = point.flops_per_token * point.tokens;
      if (result.least_compute == 0 || compute < result.least_compute) {
        result.least_compute = compute;
      }
      result.most_compute = std::max(result.most_compute, compute);
    }
  }
  if (!result.pair()) return result;

  for (const double compute : asked.compute_flops) {
    for (const double sparsity : asked.sparsities) {
      try {
        result.gains.push_back(law::gain_with_interval(result.reference(), result.target(),
                                                       result.draws, compute, sparsity,
                                                       asked.confidence, asked.interval_rule()));
      } catch (const smelt::error& failure) {
        // One compute beyond reach must not cost the user the rest of the table.
        result.no_gain.emplace_back(failure.what());
      }
    }
  }
  const double lowest =
      std::min(result.least_compute,
               *std::min_element(asked.compute_flops.begin(), asked.compute_flops.end()));
  const double highest =
      std::max(result.most_compute,
               *std::max_element(asked.compute_flops.begin(), asked.compute_flops.end()));
  const auto range = law::compute_range(lowest, highest, 60);
  for (const double sparsity : asked.sparsities) {
    result.bands.push_back(law::gain_band(result.reference(), result.target(), result.draws, range,
                                          sparsity, asked.confidence, asked.interval_rule()));
  }
  for (const law::domain_law& left : result.sides[0].domain_laws) {
    for (const law::domain_law& right : result.sides[1].domain_laws) {
      if (left.domain != right.domain) continue;
      domain_gain found{left.domain, std::nullopt};
      try {
        found.gain = law::gain(left.fitted.coefficients, right.fitted.coefficients,
                               asked.middle_compute(), asked.middle_sparsity());
      } catch (const smelt::error& failure) {
        result.no_gain.emplace_back("domain '" + left.domain + "': " + failure.what());
      }
      result.domain_gains.push_back(found);
    }
  }
  return result;
}

}  // namespace scaling_law
