// SPDX-License-Identifier: Apache-2.0
//
// Attention against its definition: the whole T x T matrix of one document at a time, softmax over
// complete rows, in double. Gradients against central differences. Then what tiles could break:
// packing, strides, NaN next door, threads, accumulation, counted FLOPs.
#include "smelt/op/attention.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include "gradient.hpp"

using namespace smelt;
using namespace smelt::test;

namespace {
std::vector<std::int64_t> offsets_of(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> offsets{0};
  for (const std::int64_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

// Everything one call reads and writes, with the policy as the parameter. Outputs start as NaN.
template <class Policy>
struct attention_case {
  using compute = typename Policy::compute;
  using real = typename Policy::real;
  attention_shape shape;
  std::vector<std::int64_t> offsets;
  std::int64_t tokens, q_width, kv_width;
  std::vector<real> q, k, v, dout, dq, dk, dv, logsumexp;
  std::vector<compute> out;

  attention_case(std::int64_t query_heads, std::int64_t kv_heads, std::int64_t head_dim,
                 const std::vector<std::int64_t>& lengths, double scale = 1.5)
      : shape{query_heads, kv_heads, head_dim},
        offsets(offsets_of(lengths)),
        tokens(offsets.back()),
        q_width(query_heads * head_dim),
        kv_width(kv_heads * head_dim),
        q(random_values<real>(tokens * q_width, 1, scale)),
        k(random_values<real>(tokens * kv_width, 2, scale)),
        v(random_values<real>(tokens * kv_width, 3)),
        dout(random_values<real>(tokens * q_width, 4)),
        dq(poisoned<real>(tokens * q_width)),
        dk(poisoned<real>(tokens * kv_width)),
        dv(poisoned<real>(tokens * kv_width)),
        logsumexp(poisoned<real>(query_heads * tokens)),
        out(poisoned<compute>(tokens * q_width)) {}

  segments documents() const { return {offsets.data(), std::ssize(offsets) - 1}; }
  template <class T>
  matrix_view<T> of_q(std::vector<std::remove_const_t<T>>& x) const {
    return {x.data(), tokens, q_width};
  }
  template <class T>
  matrix_view<T> of_kv(std::vector<std::remove_const_t<T>>& x) const {
    return {x.data(), tokens, kv_width};
  }
  void forward(const Policy& run) {
    attention_forward(run, shape, documents(), of_q<const real>(q), of_kv<const real>(k),
                      of_kv<const real>(v), of_q<compute>(out), logsumexp.data());
  }
  void backward(const Policy& run, into mode = into::overwrite) {
    attention_backward(run, shape, documents(), of_q<const real>(dout), of_q<const real>(q),
                       of_kv<const real>(k), of_kv<const real>(v), of_q<const compute>(out),
                       logsumexp.data(), of_q<real>(dq), of_kv<real>(dk), of_kv<real>(dv), mode);
  }
};

struct plain_result {
  std::vector<double> out, logsumexp;
};

// The definition: scores of every pair, mask, softmax, weighted sum; nothing shared with the op.
template <class Policy>
plain_result plain_attention(const attention_case<Policy>& c) {
  const std::int64_t d = c.shape.head_dim;
  plain_result result{std::vector<double>(c.out.size()), std::vector<double>(c.logsumexp.size())};
  for (std::size_t s = 0; s + 1 < c.offsets.size(); ++s)
    for (std::int64_t h = 0; h < c.shape.query_heads; ++h) {
      const std::int64_t g = h * c.shape.kv_heads / c.shape.query_heads;
      for (std::int64_t i = c.offsets[s]; i < c.offsets[s + 1]; ++i) {
        std::vector<double> score(static_cast<std::size_t>(i - c.offsets[s] + 1));
        double top = -std::numeric_limits<double>::infinity();
        for (std::size_t j = 0; j < score.size(); ++j) {
          const std::int64_t key = c.offsets[s] + static_cast<std::int64_t>(j);
          for (std::int64_t e = 0; e < d; ++e)
            score[j] += static_cast<double>(c.q.at(std::size_t(i * c.q_width + h * d + e))) *
                        static_cast<double>(c.k.at(std::size_t(key * c.kv_width + g * d + e)));
          score[j] /= std::sqrt(static_cast<double>(d));
          top = std::max(top, score[j]);
        }
        double sum = 0.0;
        for (const double x : score) sum += std::exp(x - top);
        result.logsumexp.at(std::size_t(h * c.tokens + i)) = top + std::log(sum);
        for (std::int64_t e = 0; e < d; ++e) {
          double mean = 0.0;
          for (std::size_t j = 0; j < score.size(); ++j) {
            const std::int64_t key = c.offsets[s] + static_cast<std::int64_t>(j);
            mean += std::exp(score[j] - top) / sum *
                    static_cast<double>(c.v.at(std::size_t(key * c.kv_width + g * d + e)));
          }
          result.out.at(std::size_t(i * c.q_width + h * d + e)) = mean;
        }
      }
    }
  return result;
}

template <class Policy>
void check_values(std::int64_t query_heads, std::int64_t kv_heads, std::int64_t head_dim,
                  const std::vector<std::int64_t>& lengths, double tolerance, double scale = 1.5) {
  CAPTURE(query_heads);
  CAPTURE(head_dim);
  CAPTURE(lengths.size());
  CAPTURE(lengths.front());
  attention_case<Policy> c(query_heads, kv_heads, head_dim, lengths, scale);
  c.forward(Policy(1));
  const plain_result plain = plain_attention(c);
  std::vector<double> out;
  for (const auto x : c.out) out.push_back(static_cast<double>(static_cast<float>(x)));
  if constexpr (std::is_same_v<typename Policy::compute, double>)
    CHECK(relative_error(c.out, plain.out) < tolerance);
  else
    CHECK(relative_error(out, plain.out) < tolerance);
  CHECK(relative_error(c.logsumexp, plain.logsumexp) < tolerance);
}

using tuning = attention_tuning;
// Lengths below, at and above every tile size, odd ones, empty documents, one-token documents.
const std::vector<std::vector<std::int64_t>> batches = {{1},
                                                        {7},
                                                        {tuning::query_tile},
                                                        {tuning::query_tile + 1},
                                                        {129},
                                                        {tuning::square_tile},
                                                        {300},
                                                        {tuning::key_tile + 1},
                                                        {2 * tuning::key_tile + 77},
                                                        {1, 1, 1, 0, 2, 129, 7, 0, 64, 1},
                                                        {300, 5, tuning::square_tile + 1}};

template <class Policy>
void check_gradients(std::int64_t query_heads, std::int64_t kv_heads, std::int64_t head_dim,
                     const std::vector<std::int64_t>& lengths) {
  attention_case<Policy> c(query_heads, kv_heads, head_dim, lengths);
  const Policy run(1);
  c.forward(run);
  c.backward(run);
  const auto loss = [&] {
    c.forward(run);
    return dot(c.dout, c.out);
  };
  CHECK(relative_error(c.dq, central_differences(c.q, loss)) < 1e-6);
  CHECK(relative_error(c.dk, central_differences(c.k, loss)) < 1e-6);
  CHECK(relative_error(c.dv, central_differences(c.v, loss)) < 1e-6);
}
}  // namespace

TEST_CASE("attention: values are those of the definition, in double") {
  for (const auto& lengths : batches) check_values<host<double>>(2, 1, 4, lengths, 1e-12);
  check_values<host<double>>(1, 1, 1, {129, 3}, 1e-12);
  check_values<host<double>>(7, 1, 5, {70, 3}, 1e-12);
}

TEST_CASE("attention: values are those of the definition, in float, for head sizes in use") {
  for (const auto& lengths : batches) check_values<host<>>(2, 1, 44, lengths, 1e-5);
  for (const std::int64_t head_dim : {4, 64, 72, 88, 112, 128})
    check_values<host<>>(12, 2, head_dim, {7, 129, 1, 64}, 1e-5);
  check_values<host<>>(1, 1, 64, {300}, 1e-5);
  check_values<host<>>(7, 1, 72, {129}, 1e-5);
}

TEST_CASE("attention: scores far apart (a softmax of nearly one key) stay exact and finite") {
  check_values<host<double>>(2, 1, 8, {600, 65}, 1e-12, 30.0);
  check_values<host<>>(2, 1, 8, {600, 65}, 1e-4, 30.0);
}

TEST_CASE("attention: bf16 outputs within their precision") {
  for (const auto& lengths : batches) check_values<host<bf16>>(2, 1, 44, lengths, 1e-2);
}

TEST_CASE("attention: gradients by central differences") {
  check_gradients<host<double>>(1, 1, 1, {1});
  check_gradients<host<double>>(4, 2, 3, {1, 5, 3, 0, 2});
  check_gradients<host<double>>(6, 2, 8, {7, 11});
  check_gradients<host<double>>(7, 1, 4, {17});
  // Strips that are not whole, and a second step of the backward pass.
  check_gradients<host<double>>(2, 1, 2, {149, 3});
  check_gradients<host<double>>(1, 1, 1, {tuning::square_tile + 5});
}

TEST_CASE("attention: the float path follows the double path, values and gradients") {
  const std::vector<attention_shape> shapes = {{1, 1, 64}, {4, 2, 44},  {12, 2, 88},
                                               {7, 1, 72}, {2, 2, 112}, {2, 1, 128}};
  for (const attention_shape& shape : shapes)
    for (const auto& lengths : batches) {
      const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
      // Keeps the plain loops of the double path below a second.
      if (shape.query_width() * tokens > 64 * 1200) continue;
      CAPTURE(shape.query_heads);
      CAPTURE(shape.head_dim);
      CAPTURE(tokens);
      // The same numbers: random_values rounds to float in every type.
      attention_case<host<double>> exact(shape.query_heads, shape.kv_heads, shape.head_dim, lengths,
                                         0.7);
      attention_case<host<>> narrow(shape.query_heads, shape.kv_heads, shape.head_dim, lengths,
                                    0.7);
      exact.forward(host<double>(1));
      exact.backward(host<double>(1));
      narrow.forward(host<>(1));
      narrow.backward(host<>(1));
      CHECK(relative_error(narrow.out, exact.out) < 1e-5);
      CHECK(relative_error(narrow.dv, exact.dv) < 1e-5);
      if (tokens == 1) continue;  // one key: no gradient of scores, nothing to be relative to
      CHECK(relative_error(narrow.dq, exact.dq) < 1e-5);
      CHECK(relative_error(narrow.dk, exact.dk) < 1e-5);
    }
}

TEST_CASE("attention: a bf16 policy's gradients within its precision") {
  attention_case<host<double>> exact(4, 2, 44, {129, 1, 30}, 0.7);
  attention_case<host<bf16>> narrow(4, 2, 44, {129, 1, 30}, 0.7);
  exact.forward(host<double>(1));
  exact.backward(host<double>(1));
  narrow.forward(host<bf16>(1));
  narrow.backward(host<bf16>(1));
  CHECK(relative_error(narrow.dq, exact.dq) < 1e-2);
  CHECK(relative_error(narrow.dk, exact.dk) < 1e-2);
  CHECK(relative_error(narrow.dv, exact.dv) < 1e-2);
}

TEST_CASE("attention: a document of one token returns its value and has no score gradient") {
  attention_case<host<>> c(6, 2, 16, {1, 1, 1});
  c.forward(host<>(1));
  c.backward(host<>(1));
  for (std::size_t i = 0; i < c.out.size(); ++i) {
    const std::size_t token = i / 96;
    const std::size_t head = i % 96 / 16;
    CHECK(c.out[i] == doctest::Approx(c.v[token * 32 + head / 3 * 16 + i % 16]).epsilon(1e-6));
    CHECK(std::abs(c.dq[i]) < 1e-5F);
  }
}

TEST_CASE_TEMPLATE("attention: packed documents equal each document alone", Policy, host<double>,
                   host<>) {
  const std::vector<std::int64_t> lengths{1, 7, 129, 64, 1, 1, 50, 555, 3};
  attention_case<Policy> packed(4, 2, 12, lengths);
  packed.forward(Policy(2));
  packed.backward(Policy(2));
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    CAPTURE(s);
    attention_case<Policy> alone(4, 2, 12, {lengths[s]});
    const auto part = [&](const auto& all, std::int64_t width) {
      return std::vector(all.begin() + packed.offsets[s] * width,
                         all.begin() + packed.offsets[s + 1] * width);
    };
    alone.q = part(packed.q, alone.q_width);
    alone.k = part(packed.k, alone.kv_width);
    alone.v = part(packed.v, alone.kv_width);
    alone.dout = part(packed.dout, alone.q_width);
    alone.forward(Policy(1));
    alone.backward(Policy(1));
    // Bit for bit: the tiles of a document do not depend on where it lies.
    CHECK(alone.out == part(packed.out, alone.q_width));
    CHECK(alone.dq == part(packed.dq, alone.q_width));
    CHECK(alone.dk == part(packed.dk, alone.kv_width));
    CHECK(alone.dv == part(packed.dv, alone.kv_width));
  }
}

TEST_CASE_TEMPLATE("attention: 1, 2 and 3 threads give the same bits", Policy, host<double>,
                   host<>) {
  const std::vector<std::int64_t> lengths{555, 1, 50, 7, 129, 2, 2, 64};
  attention_case<Policy> one(6, 2, 20, lengths);
  one.forward(Policy(1));
  one.backward(Policy(1));
  for (const int threads : {2, 3}) {
    attention_case<Policy> more(6, 2, 20, lengths);
    more.forward(Policy(threads));
    more.backward(Policy(threads));
    CHECK(one.out == more.out);
    CHECK(one.logsumexp == more.logsumexp);
    CHECK(one.dq == more.dq);
    CHECK(one.dk == more.dk);
    CHECK(one.dv == more.dv);
  }
}

TEST_CASE("attention: NaN and infinity stay in their document") {
  const std::vector<std::int64_t> lengths{3, 40, 129, 1};
  attention_case<host<>> clean(4, 2, 16, lengths);
  clean.forward(host<>(1));
  clean.backward(host<>(1));
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {nan, infinity, -infinity}) {
    attention_case<host<>> spoilt(4, 2, 16, lengths);
    for (auto* tensor : {&spoilt.q, &spoilt.k, &spoilt.v, &spoilt.dout}) {
      const std::size_t width = tensor->size() / std::size_t(spoilt.tokens);
      std::fill(tensor->begin() + std::ptrdiff_t(3 * width),
                tensor->begin() + std::ptrdiff_t(43 * width), bad);
    }
    spoilt.forward(host<>(1));
    spoilt.backward(host<>(1));
    const auto check = [](const std::vector<float>& found, const std::vector<float>& expected,
                          std::size_t width) {
      bool equal = true;
      bool poisoned_inside = false;
      for (std::size_t i = 0; i < found.size(); ++i) {
        const bool inside = i / width >= 3 && i / width < 43;
        if (inside)
          poisoned_inside = poisoned_inside || std::isnan(found[i]);
        else
          equal = equal && found[i] == expected[i];
      }
      CHECK(equal);
      CHECK(poisoned_inside);
    };
    check(spoilt.out, clean.out, 64);
    check(spoilt.dq, clean.dq, 64);
    check(spoilt.dk, clean.dk, 32);
    check(spoilt.dv, clean.dv, 32);
  }
}

TEST_CASE("attention: views into one qkv matrix give the same bits as separate tensors") {
  const std::vector<std::int64_t> lengths{130, 1, 33};
  attention_case<host<>> c(6, 2, 12, lengths);
  const host<> run(2);
  c.forward(run);
  c.backward(run);
  const std::int64_t stride = c.q_width + 2 * c.kv_width + 5;  // 5 columns that nobody may write
  std::vector<float> qkv(std::size_t(c.tokens * stride), 0.0F);
  std::vector<float> gradient(qkv.size(), 42.0F);
  const auto view = [&](std::vector<float>& all, std::int64_t begin, std::int64_t width) {
    return matrix_view<float>(all.data() + begin, c.tokens, width, stride);
  };
  const auto copy = [&](const std::vector<float>& from, matrix_view<float> to) {
    for (std::int64_t i = 0; i < to.rows; ++i)
      std::copy_n(from.data() + i * to.columns, to.columns, to.row(i));
  };
  const auto q = view(qkv, 0, c.q_width);
  const auto k = view(qkv, c.q_width, c.kv_width);
  const auto v = view(qkv, c.q_width + c.kv_width, c.kv_width);
  copy(c.q, q);
  copy(c.k, k);
  copy(c.v, v);
  std::vector<float> out = poisoned<float>(c.tokens * (c.q_width + 3));
  const matrix_view<float> wide_out(out.data(), c.tokens, c.q_width, c.q_width + 3);
  std::vector<float> logsumexp = poisoned<float>(6 * c.tokens);
  attention_forward<float>(run, c.shape, c.documents(), q, k, v, wide_out, logsumexp.data());
  attention_backward<float>(run, c.shape, c.documents(), {c.dout.data(), c.tokens, c.q_width}, q, k,
                            v, wide_out, logsumexp.data(), view(gradient, 0, c.q_width),
                            view(gradient, c.q_width, c.kv_width),
                            view(gradient, c.q_width + c.kv_width, c.kv_width), into::overwrite);
  bool same = true;
  for (std::int64_t i = 0; i < c.tokens; ++i) {
    for (std::int64_t j = 0; j < c.q_width; ++j)
      same = same && wide_out(i, j) == c.out[std::size_t(i * c.q_width + j)] &&
             gradient[std::size_t(i * stride + j)] == c.dq[std::size_t(i * c.q_width + j)];
    for (std::int64_t j = 0; j < c.kv_width; ++j) {
      const std::size_t at = std::size_t(i * stride + c.q_width + j);
      same = same && gradient[at] == c.dk[std::size_t(i * c.kv_width + j)] &&
             gradient[at + std::size_t(c.kv_width)] == c.dv[std::size_t(i * c.kv_width + j)];
    }
    for (std::int64_t j = 0; j < 5; ++j)
      same = same && gradient[std::size_t((i + 1) * stride - 5 + j)] == 42.0F;
    for (std::int64_t j = c.q_width; j < c.q_width + 3; ++j)
      same = same && std::isnan(out[std::size_t(i * (c.q_width + 3) + j)]);
  }
  CHECK(same);
}

TEST_CASE("attention: gradients of shared keys and values add up over visits") {
  attention_case<host<double>> first(4, 2, 6, {150, 1, 20});
  attention_case<host<double>> second = first;
  second.q = random_values<double>(second.tokens * second.q_width, 9);
  const host<double> run(1);
  first.forward(run);
  first.backward(run);
  second.forward(run);
  second.backward(run);
  std::vector<double> expected_k = first.dk;
  std::vector<double> expected_v = first.dv;
  for (std::size_t i = 0; i < expected_k.size(); ++i) {
    expected_k[i] += second.dk[i];
    expected_v[i] += second.dv[i];
  }
  const std::vector<double> expected_q = second.dq;
  second.dk = first.dk;
  second.dv = first.dv;
  second.backward(run, into::accumulate);
  CHECK(second.dq == expected_q);  // overwritten, not added to
  CHECK(relative_error(second.dk, expected_k) < 1e-13);
  CHECK(relative_error(second.dv, expected_v) < 1e-13);
}

TEST_CASE("attention: a second backward pass equals the first, whatever is left in scratch") {
  attention_case<host<>> c(4, 2, 16, {200, 3});
  c.forward(host<>(1));
  c.backward(host<>(1));
  const auto dq = c.dq;
  const auto dk = c.dk;
  // A run full of NaN in between leaves NaN in every scratch of this thread.
  attention_case<host<>> spoilt(4, 2, 16, {200, 3});
  std::fill(spoilt.q.begin(), spoilt.q.end(), std::numeric_limits<float>::quiet_NaN());
  spoilt.forward(host<>(1));
  spoilt.backward(host<>(1));
  c.forward(host<>(1));
  c.backward(host<>(1));
  CHECK(c.dq == dq);
  CHECK(c.dk == dk);
}

TEST_CASE("attention: counted FLOPs") {
  // 3 documents: 5 + 1 + 4 tokens = 15 + 1 + 10 = 26 pairs. 8 heads of 4 = query width 32.
  const auto counted = [](std::int64_t kv_heads) {
    attention_case<host<>> c(8, kv_heads, 4, {5, 1, 4});
    flop_counter counter;
    host<> run(2);
    run.count_into(&counter);
    c.forward(run);
    CHECK(counter.attention == 4 * 32 * 26);
    CHECK(counter.recomputed == 0);
    c.backward(run);
    CHECK(counter.attention == 12 * 32 * 26);
    CHECK(counter.recomputed == 2 * 32 * 26);
    CHECK(counter.products == 0);
  };
  counted(8);
  // Fewer key-value heads cut the cache and the projections, never these FLOPs.
  counted(2);
  counted(1);
}

TEST_CASE("attention: an empty batch is no work") {
  attention_case<host<>> nothing(2, 1, 4, {0, 0});
  nothing.forward(host<>(2));
  nothing.backward(host<>(2));
  const segments none;
  attention_forward<float>(host<>(1), {2, 1, 4}, none, {nullptr, 0, 8}, {nullptr, 0, 4},
                           {nullptr, 0, 4}, {nullptr, 0, 8}, nullptr);
  CHECK(none.tokens() == 0);
}

TEST_CASE("attention: views that do not fit are refused with what was expected") {
  attention_case<host<>> c(2, 1, 4, {5});
  const auto call = [&](matrix_view<const float> k) {
    attention_forward<float>(host<>(1), c.shape, c.documents(), {c.q.data(), 5, 8}, k,
                             {c.v.data(), 5, 4}, {c.out.data(), 5, 8}, c.logsumexp.data());
  };
  CHECK_THROWS_WITH_AS(call({c.k.data(), 4, 4}), doctest::Contains("k: expected a row-major view"),
                       error);
  CHECK_THROWS_AS(call({c.k.data(), 5, 5}), error);
  CHECK_THROWS_AS(call({c.k.data(), 5, 4, 1, 5}), error);
}
