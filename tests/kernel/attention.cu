// SPDX-License-Identifier: Apache-2.0
//
// The suite of attention on CUDA, and what only a device can be asked: a graph that is captured and
// replayed, also over other documents, head sizes it has no kernel for, and documents whose totals
// nobody knows.
#include "op/attention.hpp"

#include "smelt/exec/cuda/buffer.cuh"
#include "smelt/kernel/attention.cuh"

namespace smelt::test {

TEST_CASE_TEMPLATE_INVOKE(attention_values, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(attention_far_scores, cuda<>);
TEST_CASE_TEMPLATE_INVOKE(attention_gradients, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(attention_head_sizes, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(attention_groups, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(attention_one_token, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(attention_packed_documents, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(attention_nan, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(attention_views, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(attention_modes, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(attention_scratch, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(attention_empty_segments, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(attention_flops, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(attention_empty, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(attention_misfits, cuda<>, cuda<bf16>);

// A graph of what `body` asks of the policy.
template <class Policy, class Body>
cudaGraphExec_t captured(const Policy& run, Body&& body) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  REQUIRE(cudaStreamBeginCapture(run.stream(), cudaStreamCaptureModeRelaxed) == cudaSuccess);
  body();
  REQUIRE(cudaStreamEndCapture(run.stream(), &graph) == cudaSuccess);
  REQUIRE(cudaGraphInstantiate(&replay, graph, 0) == cudaSuccess);
  REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
  return replay;
}

TEST_CASE_TEMPLATE("attention: the same bits twice, and in a replayed graph over other documents",
                   Policy, cuda<>, cuda<bf16>) {
  using real = typename Policy::real;
  const Policy& run = policy<Policy>();
  // The graph is captured over one batch; replays meet two others of as many tokens and segments,
  // padded with empty ones.
  attention_case<Policy> c(4, 2, 40, {60, 80, 10, 0, 0, 0});
  c.both();  // scratch grows here
  const cudaGraphExec_t replay = captured(run, [&] { c.both(); });
  for (const std::vector<std::int64_t>& lengths : std::vector<std::vector<std::int64_t>>{
           {60, 80, 10, 0, 0, 0}, {150, 0, 0, 0, 0, 0}, {1, 64, 1, 65, 2, 17}}) {
    CAPTURE(lengths[0]);
    attention_case<Policy> plain(4, 2, 40, lengths);
    plain.both();
    const auto expected = results_of(plain);
    plain.both();
    CHECK(results_of(plain) == expected);
    c.offsets.set(plain.offset_values);
    for (int time = 0; time < 2; ++time) {
      for (auto* output : {&c.dq, &c.dk, &c.dv}) output->set(poisoned<real>(output->count()));
      REQUIRE(cudaGraphLaunch(replay, run.stream()) == cudaSuccess);
      CHECK(results_of(c) == expected);
    }
  }
  REQUIRE(cudaGraphExecDestroy(replay) == cudaSuccess);
}

TEST_CASE_TEMPLATE("attention: head sizes above 128 and unknown totals are refused in words",
                   Policy, cuda<>, cuda<bf16>) {
  attention_case<Policy> wide(1, 1, 129, {2});
  CHECK_THROWS_WITH_AS(wide.forward(), doctest::Contains("head size 129, expected at most 128"),
                       error);
  CHECK_THROWS_WITH_AS(wide.backward(), doctest::Contains("attention_backward: head size 129"),
                       error);
  attention_case<Policy> c(1, 1, 4, {2});
  segments unknown = c.documents();
  unknown.known_pairs = -1;
  const auto call = [&] {
    attention_forward(policy<Policy>(), c.shape, unknown, c.of_q(c.q), c.of_kv(c.k), c.of_kv(c.v),
                      c.out.view(2, 4), c.logsumexp.data());
  };
  CHECK_THROWS_WITH_AS(call(), doctest::Contains("known_pairs -1"), error);
  unknown = {c.offsets.data(), 1};
  CHECK_THROWS_WITH_AS(call(), doctest::Contains("known_tokens -1"), error);
}

}  // namespace smelt::test
