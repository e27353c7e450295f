// SPDX-License-Identifier: Apache-2.0
//
// Minimisation of a smooth function of a few variables by L-BFGS: a thin value-type face of
// liblbfgs. The only header of the room that knows that library.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include <lbfgs.h>

namespace smelt::law {

/// When a minimisation ends.
struct stop_rule {
  double gradient = 1e-8;  ///< |g| <= gradient * max(1, |x|) ends it, Euclidean norms
  int iterations = 500;    ///< at most this many; then it is not converged
  int line_searches = 40;  ///< function evaluations per iteration, at most
};

/// Where a minimisation ended.
struct minimum {
  std::vector<double> x;   ///< the variables
  double value = 0;        ///< the function there; the largest double where it was not finite
  double gradient = 0;     ///< Euclidean norm of the gradient there
  bool converged = false;  ///< the gradient rule was met, or no step could lower the value
};

/// Minimises `function(x, gradient) -> double` from `start`; the function must fill `gradient`
/// (both spans have start.size() elements) and must not throw, since C code calls it.
/// A point where the function or its gradient is not finite counts as infinitely bad.
template <class Function>
minimum minimise(const Function& function, std::span<const double> start,
                 const stop_rule& stop = {}) {
  struct call {
    const Function* function;
    std::size_t variables;

    static double evaluate(void* instance, const double* x, double* gradient, const int padded,
                           const double) {
      const call& self = *static_cast<const call*>(instance);
      // Builds of liblbfgs with SSE pad the variables: padding must have no slope.
      std::fill(gradient, gradient + padded, 0.0);
      const double value = (*self.function)(std::span<const double>(x, self.variables),
                                            std::span<double>(gradient, self.variables));
      const bool usable =
          std::isfinite(value) && std::all_of(gradient, gradient + self.variables,
                                              [](double slope) { return std::isfinite(slope); });
      if (usable) return value;
      std::fill(gradient, gradient + padded, 0.0);
      return std::numeric_limits<double>::max();
    }
  };

  call context{&function, start.size()};
  const int variables = static_cast<int>(start.size());
  const std::unique_ptr<double, decltype(&lbfgs_free)> x(lbfgs_malloc(variables), &lbfgs_free);
  if (!x) throw std::bad_alloc();
  std::copy(start.begin(), start.end(), x.get());

  lbfgs_parameter_t parameters;
  lbfgs_parameter_init(&parameters);
  // As many corrections as a quadratic of this size needs, and some to forget bad ones.
  parameters.m = std::max(8, 2 * variables);
  parameters.epsilon = stop.gradient;
  parameters.max_iterations = stop.iterations;
  parameters.max_linesearch = stop.line_searches;
  const int status =
      lbfgs(variables, x.get(), nullptr, &call::evaluate, nullptr, &context, &parameters);

  minimum result;
  result.x.assign(x.get(), x.get() + start.size());
  // liblbfgs leaves x at the last accepted point but not always its value: take it afresh.
  std::vector<double> slope(start.size());
  result.value = call::evaluate(&context, result.x.data(), slope.data(), variables, 0);
  for (const double s : slope) result.gradient += s * s;
  result.gradient = std::sqrt(result.gradient);
  const bool finite = result.value < std::numeric_limits<double>::max();
  // A line search that finds nothing lower is the end of what doubles can resolve, not a fault.
  const bool exhausted = status == LBFGSERR_ROUNDING_ERROR || status == LBFGSERR_MINIMUMSTEP ||
                         status == LBFGSERR_WIDTHTOOSMALL || status == LBFGSERR_MAXIMUMLINESEARCH;
  result.converged = finite && (status == LBFGS_SUCCESS || status == LBFGS_ALREADY_MINIMIZED ||
                                (exhausted && result.gradient < 1));
  return result;
}

}  // namespace smelt::law
