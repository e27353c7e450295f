// SPDX-License-Identifier: Apache-2.0
//
// Attention on any backend against its definition: the whole T x T matrix of one document at a
// time, softmax over complete rows, in double. Gradients against the double ones of the host (and
// those against central differences, in attention.cpp). Then what tiles could break: head sizes,
// lengths around a tile, packing, strides, NaN next door, accumulation, counted FLOPs.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "gradient.hpp"
#include "smelt/op/attention.hpp"
#include "support/tensor.hpp"

namespace smelt::test {

inline std::vector<std::int64_t> offsets_of(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> offsets{0};
  for (const std::int64_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

/// Visible (query, key) pairs, one by one.
inline std::int64_t pairs_of(const std::vector<std::int64_t>& lengths) {
  std::int64_t pairs = 0;
  for (const std::int64_t length : lengths)
    for (std::int64_t query = 0; query < length; ++query) pairs += query + 1;
  return pairs;
}

template <class Policy>
inline constexpr bool runs_on_host = std::is_constructible_v<Policy, int>;

// Everything one call reads and writes, in the memory of the policy. Outputs start as NaN.
template <class Policy>
struct attention_case {
  using compute = typename Policy::compute;
  using real = typename Policy::real;
  attention_shape shape;
  std::vector<std::int64_t> lengths, offset_values;
  std::int64_t tokens, q_width, kv_width;
  std::vector<real> q_values, k_values, v_values, dout_values;
  tensor<std::int64_t, Policy> offsets;
  tensor<real, Policy> q, k, v, dout, dq, dk, dv, logsumexp;
  tensor<compute, Policy> out;

  attention_case(std::int64_t query_heads, std::int64_t kv_heads, std::int64_t head_dim,
                 const std::vector<std::int64_t>& lengths_, double scale = 1.5)
      : shape{query_heads, kv_heads, head_dim},
        lengths(lengths_),
        offset_values(offsets_of(lengths)),
        tokens(offset_values.back()),
        q_width(query_heads * head_dim),
        kv_width(kv_heads * head_dim),
        q_values(random_values<real>(tokens * q_width, 1, scale)),
        k_values(random_values<real>(tokens * kv_width, 2, scale)),
        v_values(random_values<real>(tokens * kv_width, 3)),
        dout_values(random_values<real>(tokens * q_width, 4)),
        offsets(offset_values),
        q(q_values),
        k(k_values),
        v(v_values),
        dout(dout_values),
        dq(poisoned<real>(tokens * q_width)),
        dk(poisoned<real>(tokens * kv_width)),
        dv(poisoned<real>(tokens * kv_width)),
        logsumexp(poisoned<real>(query_heads * tokens)),
        out(poisoned<compute>(tokens * q_width)) {}

  /// A device's segments know their totals; the host's are left to find them.
  segments documents() const {
    const auto count = static_cast<std::int64_t>(lengths.size());
    if (runs_on_host<Policy>) return {offsets.data(), count};
    return {offsets.data(), count, tokens, pairs_of(lengths)};
  }
  matrix_view<const real> of_q(const tensor<real, Policy>& x) const {
    return x.constant(tokens, q_width);
  }
  matrix_view<const real> of_kv(const tensor<real, Policy>& x) const {
    return x.constant(tokens, kv_width);
  }
  void forward(const Policy& run = policy<Policy>()) {
    attention_forward(run, shape, documents(), of_q(q), of_kv(k), of_kv(v),
                      out.view(tokens, q_width), logsumexp.data());
  }
  void backward(into mode = into::overwrite, const Policy& run = policy<Policy>()) {
    attention_backward(run, shape, documents(), of_q(dout), of_q(q), of_kv(k), of_kv(v),
                       out.constant(tokens, q_width), logsumexp.data(), dq.view(tokens, q_width),
                       dk.view(tokens, kv_width), dv.view(tokens, kv_width), mode);
  }
  void both() {
    forward();
    backward();
  }
};

/// The bits of values: NaN equals itself, and bf16 has an order.
template <class T>
std::vector<std::uint64_t> bits_of(const std::vector<T>& values) {
  std::vector<std::uint64_t> bits;
  bits.reserve(values.size());
  for (const T& value : values) {
    if constexpr (std::is_same_v<T, bf16>)
      bits.push_back(value.bits);
    else if constexpr (sizeof(T) == 4)
      bits.push_back(__builtin_bit_cast(std::uint32_t, value));
    else
      bits.push_back(__builtin_bit_cast(std::uint64_t, value));
  }
  return bits;
}

/// All that a forward and a backward pass leave behind, as bits.
template <class Policy>
std::vector<std::vector<std::uint64_t>> results_of(const attention_case<Policy>& c) {
  return {bits_of(c.out.values()), bits_of(c.logsumexp.values()), bits_of(c.dq.values()),
          bits_of(c.dk.values()), bits_of(c.dv.values())};
}

struct plain_attention_result {
  std::vector<double> out, logsumexp;
};

// The definition: scores of every pair, mask, softmax, weighted sum; nothing shared with the op.
template <class Policy>
plain_attention_result plain_attention(const attention_case<Policy>& c) {
  const std::int64_t d = c.shape.head_dim;
  plain_attention_result result{
      std::vector<double>(static_cast<std::size_t>(c.tokens * c.q_width)),
      std::vector<double>(static_cast<std::size_t>(c.tokens * c.shape.query_heads))};
  for (std::size_t s = 0; s + 1 < c.offset_values.size(); ++s)
    for (std::int64_t h = 0; h < c.shape.query_heads; ++h) {
      const std::int64_t g = h * c.shape.kv_heads / c.shape.query_heads;
      const std::int64_t begin = c.offset_values[s];
      for (std::int64_t i = begin; i < c.offset_values[s + 1]; ++i) {
        std::vector<double> score(static_cast<std::size_t>(i - begin + 1));
        double top = -std::numeric_limits<double>::infinity();
        for (std::size_t j = 0; j < score.size(); ++j) {
          const std::int64_t key = begin + static_cast<std::int64_t>(j);
          for (std::int64_t e = 0; e < d; ++e)
            score[j] +=
                static_cast<double>(c.q_values.at(std::size_t(i * c.q_width + h * d + e))) *
                static_cast<double>(c.k_values.at(std::size_t(key * c.kv_width + g * d + e)));
          score[j] /= std::sqrt(static_cast<double>(d));
          top = std::max(top, score[j]);
        }
        double sum = 0.0;
        for (const double x : score) sum += std::exp(x - top);
        result.logsumexp.at(std::size_t(h * c.tokens + i)) = top + std::log(sum);
        for (std::size_t j = 0; j < score.size(); ++j) {
          const std::int64_t key = begin + static_cast<std::int64_t>(j);
          const double weight = std::exp(score[j] - top) / sum;
          for (std::int64_t e = 0; e < d; ++e)
            result.out.at(std::size_t(i * c.q_width + h * d + e)) +=
                weight *
                static_cast<double>(c.v_values.at(std::size_t(key * c.kv_width + g * d + e)));
        }
      }
    }
  return result;
}

template <class Policy>
void check_values(const attention_shape& shape, const std::vector<std::int64_t>& lengths,
                  double bound, double scale = 1.5) {
  CAPTURE(shape.query_heads);
  CAPTURE(shape.head_dim);
  CAPTURE(lengths.size());
  CAPTURE(lengths.front());
  attention_case<Policy> c(shape.query_heads, shape.kv_heads, shape.head_dim, lengths, scale);
  c.forward();
  const plain_attention_result plain = plain_attention(c);
  CHECK(relative_error(as_double(c.out.values()), plain.out) < bound);
  CHECK(relative_error(c.logsumexp.values(), plain.logsumexp) < bound);
}

/// Both passes against those of host<double>, from the same numbers: random_values rounds to float
/// in every type.
template <class Policy>
void check_against_double(const attention_shape& shape, const std::vector<std::int64_t>& lengths) {
  CAPTURE(shape.query_heads);
  CAPTURE(shape.kv_heads);
  CAPTURE(shape.head_dim);
  CAPTURE(lengths.size());
  CAPTURE(lengths.front());
  const double bound = tolerance<Policy>(1e-5);
  attention_case<host<double>> exact(shape.query_heads, shape.kv_heads, shape.head_dim, lengths,
                                     0.7);
  attention_case<Policy> c(shape.query_heads, shape.kv_heads, shape.head_dim, lengths, 0.7);
  exact.both();
  c.both();
  CHECK(relative_error(as_double(c.out.values()), exact.out.values()) < bound);
  CHECK(relative_error(c.logsumexp.values(), exact.logsumexp.values()) < bound);
  CHECK(relative_error(c.dv.values(), exact.dv.values()) < bound);
  // One key: no gradient of scores, nothing to be relative to.
  if (*std::max_element(lengths.begin(), lengths.end()) == 1) return;
  CHECK(relative_error(c.dq.values(), exact.dq.values()) < bound);
  CHECK(relative_error(c.dk.values(), exact.dk.values()) < bound);
}

}  // namespace smelt::test
