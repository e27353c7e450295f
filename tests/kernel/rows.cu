// SPDX-License-Identifier: Apache-2.0
//
// The suites of the ops that work row by row or element by element, on CUDA: embedding, rotary
// embedding, the residual stream, dense SwiGLU, head and loss, AdamW. And what only CUDA can be
// asked: the same bits every time, directly and from a captured graph, which must also follow what
// its inputs have become.
#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "op/adamw.hpp"
#include "op/dense_ffn.hpp"
#include "op/embed.hpp"
#include "op/loss.hpp"
#include "op/residual.hpp"
#include "op/rope.hpp"
#include "smelt/kernel/adamw.cuh"
#include "smelt/kernel/dense_ffn.cuh"
#include "smelt/kernel/embed.cuh"
#include "smelt/kernel/loss.cuh"
#include "smelt/kernel/residual.cuh"
#include "smelt/kernel/rope.cuh"

namespace smelt::test {

TEST_CASE_TEMPLATE_INVOKE(embed_values, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(embed_gradients, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(embed_long_runs, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(embed_all_runs, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(embed_strides, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(embed_nan, cuda<>);

TEST_CASE_TEMPLATE_INVOKE(rope_values, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(rope_inverse, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(rope_distance, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(rope_gradient, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(rope_strides, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(rope_refused, cuda<>);

TEST_CASE_TEMPLATE_INVOKE(residual_values, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(residual_scaled, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(residual_strides, cuda<>, cuda<bf16>);

TEST_CASE_TEMPLATE_INVOKE(dense_ffn_values, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(dense_ffn_gradients, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(dense_ffn_modes, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(dense_ffn_strides, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(dense_ffn_extremes, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(dense_ffn_counts, cuda<>, cuda<bf16>);

TEST_CASE_TEMPLATE_INVOKE(loss_values, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(loss_sums, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(loss_gradients, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(loss_without_target, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(loss_counts, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(loss_huge_logits, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(loss_nan, cuda<>, cuda<bf16>);

TEST_CASE_TEMPLATE_INVOKE(adamw_values, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(adamw_first_step, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(adamw_by_hand, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(adamw_clipping, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(adamw_not_finite, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(adamw_copy, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(sum_of_squares_values, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(sum_of_squares_not_finite, cuda<>);

namespace {
// What a stream is asked for between the two calls, to be asked again by replay().
class captured {
 public:
  template <class Policy, class Body>
  captured(const Policy& run, Body&& body) : stream_(run.stream()) {
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal) == cudaSuccess);
    body();
    REQUIRE(cudaStreamEndCapture(stream_, &graph) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&executable_, graph, 0) == cudaSuccess);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  }
  captured(const captured&) = delete;
  captured& operator=(const captured&) = delete;
  ~captured() { static_cast<void>(cudaGraphExecDestroy(executable_)); }
  void replay() const { REQUIRE(cudaGraphLaunch(executable_, stream_) == cudaSuccess); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
};

using bits = std::vector<double>;

// op() with the inputs of set(0) and of set(1), read back by found(): the same bits from a second
// call, and from a graph that is captured with the one and replayed with either.
template <class Policy>
void check_repeats(const std::function<void(int)>& set, const std::function<void()>& op,
                   const std::function<bits()>& found) {
  const Policy& run = policy<Policy>();
  bits expected[2];
  for (const int which : {0, 1}) {
    set(which);
    op();
    expected[which] = found();
    set(which);
    op();
    CHECK(found() == expected[which]);
  }
  CHECK(expected[0] != expected[1]);
  set(0);
  const std::int64_t scratch = run.context().scratch_bytes();
  const captured graph(run, op);
  CHECK(run.context().scratch_bytes() == scratch);
  for (const int which : {0, 1, 0}) {
    set(which);
    graph.replay();
    CHECK(found() == expected[which]);
  }
}

void append(bits& all, const std::vector<float>& more) {
  all.insert(all.end(), more.begin(), more.end());
}
}  // namespace

TEST_CASE("embed: the same bits again and from a graph, which follows its tokens") {
  using run_on = cuda<>;
  constexpr std::int64_t count = 300, hidden = 40, vocabulary = 30;
  const auto spread = [&](int which) {
    return spread_tokens(count, vocabulary, which == 0 ? token_spread::random : token_spread::two);
  };
  tensor<std::int32_t, run_on> tokens(spread(0));
  const auto table = random_values<float>(vocabulary * hidden, 1);
  const tensor<float, run_on> weights(table), x(poisoned<float>(count * hidden)), dweights(table);
  check_repeats<run_on>(
      [&](int which) {
        tokens.set(spread(which));
        upload(policy<run_on>(), table.data(), dweights.count(), dweights.data());
      },
      [&] {
        embed_forward(policy<run_on>(), tokens.data(), weights.constant(vocabulary, hidden),
                      x.view(count, hidden));
        embed_backward(policy<run_on>(), tokens.data(), x.constant(count, hidden),
                       dweights.view(vocabulary, hidden));
      },
      [&] {
        bits all;
        append(all, x.values());
        append(all, dweights.values());
        return all;
      });
}

TEST_CASE("embed: a row is added to once, by all of its tokens together") {
  // Gradients so small that beside 1 only the sum of many shows: whoever adds a part of them to the
  // row loses it. First one token over many windows, then tokens that differ in high bits alone.
  const std::vector<float> tiny(8192, 0x1p-30F);
  const auto one = embed_gradient<cuda<>>(std::vector<std::int32_t>(8192, 2), tiny, 1, 4, 1.0F);
  CHECK(one == std::vector<float>{1.0F, 1.0F, 1.0F + 0x1p-17F, 1.0F});

  std::vector<std::int32_t> tokens(600);
  const std::int32_t alike[] = {5, 5 + 256, 5 + 65536};
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = alike[i % 3];
  const auto three =
      embed_gradient<cuda<>>(tokens, std::vector<float>(600, 0x1p-25F), 1, 65600, 1.0F);
  for (const std::int32_t token : alike)
    CHECK(three[static_cast<std::size_t>(token)] == 1.0F + 200 * 0x1p-25F);
}

TEST_CASE("rope and residual: the same bits again and from a graph") {
  using run_on = cuda<bf16>;
  constexpr std::int64_t rows = 21, columns = 24;
  const rope_tables<run_on> tables(64, 8, rope_base_of_test);
  tensor<std::int32_t, run_on> positions(std::vector<std::int32_t>(rows, 0));
  tensor<float, run_on> x(poisoned<float>(rows * columns));
  const tensor<float, run_on> wide(random_values<float>(rows * 31, 2)),
      y(poisoned<float>(rows * 31));
  const tensor<bf16, run_on> narrow(poisoned<bf16>(rows * columns));
  check_repeats<run_on>(
      [&](int which) {
        positions.set(spread_tokens(rows, which == 0 ? 64 : 20, token_spread::random));
        x.set(random_values<float>(rows * columns, 1));
      },
      [&] {
        const auto& run = policy<run_on>();
        rope_rotate(run, x.view(rows, columns), 8, positions.data(), tables.cosines.data(),
                    tables.sines.data(), rope_direction::forward);
        residual_add(run, x.constant(rows, columns), 0.5F, x.constant(rows, columns),
                     x.view(rows, columns));
        residual_add(run, x.constant(rows, columns), 0.5F,
                     matrix_view<const float>(wide.data(), rows, columns, 31),
                     matrix_view<float>(y.data(), rows, columns, 31));
        scaled(run, matrix_view<const float>(y.data(), rows, columns, 31), 0.5F,
               narrow.view(rows, columns));
        scaled(run, narrow.constant(rows, columns), 0.5F, x.view(rows, columns));
      },
      [&] {
        bits all = as_double(narrow.values());
        append(all, x.values());
        return all;
      });
}

TEST_CASE_TEMPLATE("dense_ffn: the same bits again and from a graph", Policy, cuda<>, cuda<bf16>) {
  dense_problem<Policy> p(20, 12, 18);
  check_repeats<Policy>(
      [&](int which) {
        p.x.set(random_values<typename Policy::compute>(20 * 12, which == 0 ? 1 : 9));
        clear(policy<Policy>(), p.ddown.data(), p.ddown.count());
        clear(policy<Policy>(), p.dgate_up.data(), p.dgate_up.count());
      },
      [&] {
        p.forward();
        p.backward();
      },
      [&] {
        bits all;
        for (const auto* result : {&p.y, &p.dx, &p.ddown, &p.dgate_up})
          append(all, result->values());
        return all;
      });
}

TEST_CASE_TEMPLATE("loss: the same bits again and from a graph, which follows targets and scale",
                   Policy, cuda<>, cuda<bf16>) {
  head_problem<Policy> p(7, 5, head_chunk + 30);
  check_repeats<Policy>(
      [&](int which) {
        p.targets.set(which == 0 ? p.target_values
                                 : std::vector<std::int32_t>{3, -1, -1, 9, 1, 0, 2});
        p.scale.set({which == 0 ? 0.5F : 2.0F});
        p.loss_sum.set({1.0F});
        clear(policy<Policy>(), p.dweights.data(), p.dweights.count());
      },
      [&] { p.call(true, policy<Policy>()); },
      [&] {
        bits all;
        for (const auto* result : {&p.loss_sum, &p.dx, &p.dweights}) append(all, result->values());
        return all;
      });
}

TEST_CASE("adamw: a graph follows gradient and rates, and leaves a step alone that is not finite") {
  using run_on = cuda<bf16>;
  adamw_case<run_on> c(3001);
  const auto weights = c.weights.values(), first = c.first.values(), second = c.second.values();
  const adamw_setting setting;
  const tensor<adamw_rates<float>, run_on> rates(
      std::vector<adamw_rates<float>>{{setting, 0.1, 1}});
  const auto step = [&] {
    sum_of_squares(policy<run_on>(), c.gradients.data(), c.count, c.squares.data());
    adamw_update(policy<run_on>(), setting, rates.data(), c.squares.data(), c.loss_sum.data(),
                 c.count, c.weights.data(), c.gradients.data(), c.first.data(), c.second.data(),
                 c.copy.data());
  };
  const auto set = [&](int which) {
    auto gradients = random_values<float>(c.gradients.count(), 2, which == 0 ? 1.0 : 0.001);
    if (which == 2) gradients[1234] = std::numeric_limits<float>::infinity();
    const std::vector<adamw_rates<float>> now{{setting, which == 0 ? 0.1 : 0.05, 1 + which}};
    upload(policy<run_on>(), now.data(), 1, rates.data());
    c.gradients.set(gradients);
    c.weights.set(weights);
    c.first.set(first);
    c.second.set(second);
  };
  const auto found = [&] { return c.everything(); };
  check_repeats<run_on>(set, step, found);
  set(0);
  const auto before = found();
  const captured graph(policy<run_on>(), step);
  set(2);
  graph.replay();
  CHECK(found() == before);
}

TEST_CASE("sum_of_squares: long chains of one thread") {
  // 32 elements a thread, the first of them 1, the others lost by a plain sum: 1.8e-6 of it.
  std::vector<float> values(std::size_t{1} << 25);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = i % 8192 < 256 ? 1.0F : 0.99F / 4096.0F;
  check_squares<cuda<>>(values, 1.5e-7);
}

}  // namespace smelt::test
