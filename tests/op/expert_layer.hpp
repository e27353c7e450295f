// SPDX-License-Identifier: Apache-2.0
//
// A layer of experts for tests: its inputs, what it computes by definition in loops over tokens in
// double, and the ops of any backend with all the memory they read and write.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "gradient.hpp"
#include "smelt/op/dispatch.hpp"
#include "smelt/op/expert_ffn.hpp"
#include "support/tensor.hpp"

namespace smelt::test {

template <class To, class From>
std::vector<To> converted(const std::vector<From>& from) {
  std::vector<To> to(from.size());
  std::transform(from.begin(), from.end(), to.begin(),
                 [](From value) { return static_cast<To>(static_cast<real_of<To>>(value)); });
  return to;
}

// Everything that a layer's experts read, in double. Values that bf16 holds exactly, so that every
// precision starts from the same numbers.
struct problem {
  std::int64_t tokens;
  expert_ffn_shape shape;
  std::vector<std::int32_t> chosen;
  std::vector<double> x, weights, gate_up, down, dout;

  // top_k distinct ones of the first `spread` experts for each token.
  problem(std::int64_t tokens_, expert_ffn_shape shape_, std::int64_t spread, std::uint32_t seed)
      : tokens(tokens_), shape(shape_) {
    std::mt19937 generator(seed);
    std::vector<std::int32_t> all(static_cast<std::size_t>(spread));
    std::iota(all.begin(), all.end(), 0);
    for (std::int64_t n = 0; n < tokens; ++n) {
      for (std::size_t k = 0; k < static_cast<std::size_t>(shape.top_k); ++k)
        std::swap(all[k], all[k + generator() % (all.size() - k)]);
      chosen.insert(chosen.end(), all.begin(), all.begin() + shape.top_k);
    }
    const double hidden_scale = 2.0 / std::sqrt(static_cast<double>(shape.hidden));
    const double width_scale = 2.0 / std::sqrt(static_cast<double>(shape.width));
    x = values(tokens * shape.hidden, seed + 1, 1.5);
    weights = values(tokens * shape.top_k, seed + 2, 1.0);
    gate_up = values(shape.gate_up_size(), seed + 3, hidden_scale);
    down = values(shape.down_size(), seed + 4, width_scale);
    dout = values(tokens * shape.hidden, seed + 5, 1.0);
  }
  static std::vector<double> values(std::int64_t count, std::uint32_t seed, double scale) {
    std::vector<double> exact;
    for (double value : random_values<double>(count, seed, scale))
      exact.push_back(static_cast<double>(static_cast<float>(bf16(static_cast<float>(value)))));
    return exact;
  }
};

// What the experts compute, in whatever precision.
template <class Real>
struct outcome {
  std::vector<Real> out, dx, dweights, dgate_up, ddown;

  bool operator==(const outcome&) const = default;
};

// The definition: token by token, choice by choice, element by element.
inline outcome<double> expert_reference(const problem& p) {
  const std::size_t hidden = static_cast<std::size_t>(p.shape.hidden);
  const std::size_t width = static_cast<std::size_t>(p.shape.width);
  outcome<double> r{std::vector<double>(p.x.size()), std::vector<double>(p.x.size()),
                    std::vector<double>(p.weights.size()), std::vector<double>(p.gate_up.size()),
                    std::vector<double>(p.down.size())};
  std::vector<double> g(width), u(width), h(width);
  for (std::size_t i = 0; i < p.chosen.size(); ++i) {
    const std::size_t n = i / static_cast<std::size_t>(p.shape.top_k);
    const std::size_t e = static_cast<std::size_t>(p.chosen[i]);
    const double* x = p.x.data() + n * hidden;
    const double* dout = p.dout.data() + n * hidden;
    const std::size_t gate_row = e * 2 * width * hidden;
    const std::size_t up_row = gate_row + width * hidden;
    const std::size_t down_row = e * hidden * width;
    for (std::size_t j = 0; j < width; ++j) {
      g[j] = u[j] = 0.0;
      for (std::size_t c = 0; c < hidden; ++c) {
        g[j] += p.gate_up[gate_row + j * hidden + c] * x[c];
        u[j] += p.gate_up[up_row + j * hidden + c] * x[c];
      }
      h[j] = g[j] / (1.0 + std::exp(-g[j])) * u[j];
    }
    for (std::size_t c = 0; c < hidden; ++c)
      for (std::size_t j = 0; j < width; ++j) {
        r.out[n * hidden + c] += p.weights[i] * p.down[down_row + c * width + j] * h[j];
        r.ddown[down_row + c * width + j] += p.weights[i] * dout[c] * h[j];
        r.dweights[i] += dout[c] * p.down[down_row + c * width + j] * h[j];
      }
    for (std::size_t j = 0; j < width; ++j) {
      double dh = 0.0;
      for (std::size_t c = 0; c < hidden; ++c)
        dh += p.weights[i] * dout[c] * p.down[down_row + c * width + j];
      const double s = 1.0 / (1.0 + std::exp(-g[j]));
      const double dg = dh * u[j] * (s + g[j] * s * (1.0 - s));
      const double du = dh * g[j] * s;
      for (std::size_t c = 0; c < hidden; ++c) {
        r.dgate_up[gate_row + j * hidden + c] += dg * x[c];
        r.dgate_up[up_row + j * hidden + c] += du * x[c];
        r.dx[n * hidden + c] +=
            dg * p.gate_up[gate_row + j * hidden + c] + du * p.gate_up[up_row + j * hidden + c];
      }
    }
  }
  return r;
}

// The ops, with their memory on the policy's side: everything that is overwritten begins as NaN,
// gradients of weights begin at 0, since they are added to. `behind` elements follow the last slot
// of whatever the ops write slot by slot.
template <class Policy>
struct layer {
  using compute = typename Policy::compute;
  using real = typename Policy::real;
  const problem& p;
  tensor<compute, Policy> x, gate_up, down, saved, y_slots, dx_slots;
  tensor<real, Policy> weights, dout, out, dx, dweights, dgate_up, ddown;
  tensor<std::int32_t, Policy> chosen, choice_of;
  tensor<std::int64_t, Policy> offsets, slot_of, token_of;

  explicit layer(const problem& problem_, std::int64_t behind = 0)
      : p(problem_),
        x(converted<compute>(p.x)),
        gate_up(converted<compute>(p.gate_up)),
        down(converted<compute>(p.down)),
        saved(poisoned<compute>(slots() * 2 * p.shape.width + behind)),
        y_slots(poisoned<compute>(slots() * p.shape.hidden + behind)),
        dx_slots(poisoned<compute>(slots() * p.shape.hidden + behind)),
        weights(converted<real>(p.weights)),
        dout(converted<real>(p.dout)),
        out(poisoned<real>(p.tokens * p.shape.hidden)),
        dx(poisoned<real>(p.tokens * p.shape.hidden)),
        dweights(poisoned<real>(p.tokens * p.shape.top_k)),
        dgate_up(std::vector<real>(p.gate_up.size(), real(0))),
        ddown(std::vector<real>(p.down.size(), real(0))),
        chosen(p.chosen),
        choice_of(std::vector<std::int32_t>(p.chosen.size(), -1)),
        offsets(std::vector<std::int64_t>(static_cast<std::size_t>(p.shape.experts + 1), -1)),
        slot_of(std::vector<std::int64_t>(p.chosen.size(), -1)),
        token_of(std::vector<std::int64_t>(p.chosen.size(), -1)) {}
  layer(const layer&) = delete;
  layer& operator=(const layer&) = delete;

  std::int64_t slots() const { return p.tokens * p.shape.top_k; }
  dispatch_plan plan() const {
    return {p.tokens,       p.shape.experts, p.shape.top_k,   offsets.data(),
            slot_of.data(), token_of.data(), choice_of.data()};
  }
  void forward(const Policy& run = policy<Policy>()) {
    const std::int64_t hidden = p.shape.hidden;
    dispatch_forward(run, chosen.data(), plan());
    expert_ffn_forward(run, p.shape, x.constant(p.tokens, hidden), plan(), weights.data(),
                       gate_up.data(), down.data(), saved.data(), y_slots.view(slots(), hidden));
    combine_forward(run, y_slots.constant(slots(), hidden), slot_of.data(), p.shape.top_k, real(1),
                    into::overwrite, out.view(p.tokens, hidden));
  }
  void backward(const Policy& run = policy<Policy>()) {
    const std::int64_t hidden = p.shape.hidden;
    expert_ffn_backward(run, p.shape, x.constant(p.tokens, hidden), plan(), weights.data(),
                        gate_up.data(), down.data(), saved.data(), dout.constant(p.tokens, hidden),
                        dgate_up.data(), ddown.data(), dweights.data(),
                        dx_slots.view(slots(), hidden));
    combine_forward(run, dx_slots.constant(slots(), hidden), slot_of.data(), p.shape.top_k, real(1),
                    into::overwrite, dx.view(p.tokens, hidden));
  }
  outcome<real> result() const {
    return {out.values(), dx.values(), dweights.values(), dgate_up.values(), ddown.values()};
  }
};

template <class Policy>
outcome<typename Policy::real> compute_experts(const problem& p,
                                               const Policy& run = policy<Policy>()) {
  layer<Policy> l(p);
  l.forward(run);
  l.backward(run);
  return l.result();
}

}  // namespace smelt::test
