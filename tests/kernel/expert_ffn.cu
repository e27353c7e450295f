// SPDX-License-Identifier: Apache-2.0
//
// The suite of the experts on CUDA, and what only CUDA can be asked: cuBLAS as a second opinion on
// the grouped product, the same bits twice, one graph for every routing, tokens past 2^31
// elements, more experts than the scheduler's table holds.
#include "op/expert_ffn.hpp"

#include "smelt/exec/cuda/buffer.cuh"
#include "smelt/kernel/dispatch.cuh"
#include "smelt/kernel/expert_ffn.cuh"

namespace smelt::test {

TEST_CASE_TEMPLATE_INVOKE(experts_values, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(experts_tiles, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(experts_wide, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(experts_again, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(experts_by_hand, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(experts_not_numbers, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(experts_without_tokens, cuda<>, cuda<bf16>);
TEST_CASE_TEMPLATE_INVOKE(experts_strides, cuda<>, cuda<bf16>);

// What a layer leaves behind, as bits that compare.
template <class Policy>
auto everything(const layer<Policy>& l) {
  std::vector<std::vector<double>> all{as_double(l.saved.values()), as_double(l.y_slots.values()),
                                       as_double(l.dx_slots.values())};
  const auto result = l.result();
  for (const auto* part :
       {&result.out, &result.dx, &result.dweights, &result.dgate_up, &result.ddown})
    all.push_back(as_double(*part));
  return all;
}

template <class Policy>
void both(layer<Policy>& l) {
  l.forward();
  l.backward();
}

// Gradients to begin with, which a backward pass adds to.
template <class Policy>
void clear_gradients(layer<Policy>& l) {
  clear(policy<Policy>(), l.dgate_up.data(), l.dgate_up.count());
  clear(policy<Policy>(), l.ddown.data(), l.ddown.count());
}

TEST_CASE_TEMPLATE("experts: the same bits twice", Policy, cuda<>, cuda<bf16>) {
  for (const expert_size& size :
       {expert_size{300, {5, 2, 72, 40}, 4}, expert_size{150, {3, 1, 67, 131}, 3}}) {
    const problem p(size.tokens, size.shape, size.spread, 31);
    layer<Policy> one(p), two(p);
    both(one);
    both(two);
    CHECK(everything(one) == everything(two));
  }
}

TEST_CASE_TEMPLATE("experts: one graph, captured once, serves every routing", Policy, cuda<>,
                   cuda<bf16>) {
  const Policy& run = policy<Policy>();
  constexpr std::int64_t tokens = 200;
  const expert_ffn_shape shape{7, 2, 40, 24};
  const problem p(tokens, shape, 7, 5);
  layer<Policy> l(p);
  both(l);  // scratch grows here
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  REQUIRE(cudaStreamBeginCapture(run.stream(), cudaStreamCaptureModeRelaxed) == cudaSuccess);
  both(l);
  REQUIRE(cudaStreamEndCapture(run.stream(), &graph) == cudaSuccess);
  REQUIRE(cudaGraphInstantiate(&replay, graph, 0) == cudaSuccess);
  REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
  // All experts, all tokens on two of them, and others again: offsets that the graph never saw.
  for (const std::int64_t spread : {7, 2, 5}) {
    CAPTURE(spread);
    problem moved(tokens, shape, spread, 60 + static_cast<std::uint32_t>(spread));
    moved.x = p.x;
    moved.weights = p.weights;
    moved.gate_up = p.gate_up;
    moved.down = p.down;
    moved.dout = p.dout;
    layer<Policy> direct(moved);
    both(direct);
    l.chosen.set(moved.chosen);
    clear_gradients(l);
    REQUIRE(cudaGraphLaunch(replay, run.stream()) == cudaSuccess);
    run.synchronize();
    CHECK(everything(l) == everything(direct));
  }
  REQUIRE(cudaGraphExecDestroy(replay) == cudaSuccess);
}

// Pointers in device memory, as a grouped product of cuBLAS takes them.
template <class T, class Policy>
tensor<std::uintptr_t, Policy> pointers(const std::vector<T*>& from) {
  std::vector<std::uintptr_t> addresses;
  for (T* one : from) addresses.push_back(reinterpret_cast<std::uintptr_t>(one));
  return tensor<std::uintptr_t, Policy>(addresses);
}

TEST_CASE_TEMPLATE("experts: gate and up are the grouped product of cuBLAS", Policy, cuda<>,
                   cuda<bf16>) {
  using compute = typename Policy::compute;
  const Policy& run = policy<Policy>();
  const expert_ffn_shape shape{5, 2, 136, 72};
  const problem p(150, shape, 4, 12);
  layer<Policy> l(p);
  l.forward();
  const auto offsets = l.offsets.values();
  const auto token_of = l.token_of.values();
  const std::int64_t pair = 2 * shape.width;
  // Rows in slot order, which smelt never makes: the plain product has to be given them.
  const auto x = l.x.values();
  std::vector<compute> rows;
  for (const std::int64_t token : token_of)
    rows.insert(rows.end(), x.begin() + token * shape.hidden,
                x.begin() + (token + 1) * shape.hidden);
  const tensor<compute, Policy> gathered(rows), product(poisoned<compute>(l.slots() * pair));
  std::vector<int> m, n, k, lda, ldb, ldc, sizes;
  std::vector<float> alpha, beta;
  std::vector<cublasOperation_t> transpose, plain;
  std::vector<compute*> a, b, c;
  for (std::int64_t e = 0; e < shape.experts; ++e) {
    const auto first = offsets[static_cast<std::size_t>(e)];
    const auto count = offsets[static_cast<std::size_t>(e + 1)] - first;
    if (count == 0) continue;
    // Column-major, C^T [2f, count] = gate_up [2f, H] rows^T [H, count].
    m.push_back(static_cast<int>(pair));
    n.push_back(static_cast<int>(count));
    k.push_back(static_cast<int>(shape.hidden));
    lda.push_back(static_cast<int>(shape.hidden));
    ldb.push_back(static_cast<int>(shape.hidden));
    ldc.push_back(static_cast<int>(pair));
    sizes.push_back(1);
    alpha.push_back(1.0F);
    beta.push_back(0.0F);
    transpose.push_back(CUBLAS_OP_T);
    plain.push_back(CUBLAS_OP_N);
    a.push_back(l.gate_up.data() + e * pair * shape.hidden);
    b.push_back(gathered.data() + first * shape.hidden);
    c.push_back(product.data() + first * pair);
  }
  const auto at_a = pointers<compute, Policy>(a), at_b = pointers<compute, Policy>(b),
             at_c = pointers<compute, Policy>(c);
  const cudaDataType_t type = std::is_same_v<compute, bf16> ? CUDA_R_16BF : CUDA_R_32F;
  REQUIRE(cublasGemmGroupedBatchedEx(
              run.context().cublas(), transpose.data(), plain.data(), m.data(), n.data(), k.data(),
              alpha.data(), reinterpret_cast<const void* const*>(at_a.data()), type, lda.data(),
              reinterpret_cast<const void* const*>(at_b.data()), type, ldb.data(), beta.data(),
              reinterpret_cast<void* const*>(at_c.data()), type, ldc.data(),
              static_cast<int>(sizes.size()), sizes.data(),
              CUBLAS_COMPUTE_32F) == CUBLAS_STATUS_SUCCESS);
  run.synchronize();
  // Both sum in float32 and round once: bf16 may differ where the sums straddle a rounding.
  CHECK(relative_error(as_double(l.saved.values()), as_double(product.values())) <
        tolerance<Policy>(1e-6, 1e-3));
}

// A pointer `count` elements before `first`: element count of it is first's element 0. Only an
// index of 64 bits finds it, and no memory is spent.
template <class T>
T* elements_before(T* first, std::int64_t count) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(first) -
                              static_cast<std::uintptr_t>(count) * sizeof(T));
}

TEST_CASE_TEMPLATE("experts: case 18: tokens past 2^31 and 2^32 elements are reached, not wrapped",
                   Policy, cuda<>, cuda<bf16>) {
  using compute = typename Policy::compute;
  const Policy& run = policy<Policy>();
  for (const std::int64_t hidden : {32, 27})  // in chunks and element by element
    for (const std::int64_t elements : {std::int64_t{1} << 31, std::int64_t{5} << 32}) {
      const std::int64_t shift = elements / hidden;
      const problem p(20, {2, 1, hidden, 16}, 2, 3);
      layer<Policy> near_by(p), far_off(p);
      both(near_by);
      auto token_of = near_by.token_of.values();
      for (auto& token : token_of) token += shift;
      far_off.token_of.set(token_of);
      far_off.choice_of.set(near_by.choice_of.values());
      far_off.offsets.set(near_by.offsets.values());
      const matrix_view<const compute> x(elements_before(far_off.x.data(), shift * hidden),
                                         p.tokens, hidden);
      float* weights = elements_before(far_off.weights.data(), shift);
      const auto& shape = p.shape;
      expert_ffn_forward(run, shape, x, far_off.plan(), weights, far_off.gate_up.data(),
                         far_off.down.data(), far_off.saved.data(),
                         far_off.y_slots.view(20, hidden));
      CHECK(as_double(far_off.saved.values()) == as_double(near_by.saved.values()));
      CHECK(as_double(far_off.y_slots.values()) == as_double(near_by.y_slots.values()));
      // bf16 first rounds all rows of dout, which are not there; its gathers are the same code.
      if constexpr (std::is_same_v<compute, float>) {
        const matrix_view<const float> dout(elements_before(far_off.dout.data(), shift * hidden),
                                            p.tokens, hidden);
        expert_ffn_backward(
            run, shape, x, far_off.plan(), weights, far_off.gate_up.data(), far_off.down.data(),
            far_off.saved.data(), dout, far_off.dgate_up.data(), far_off.ddown.data(),
            elements_before(far_off.dweights.data(), shift), far_off.dx_slots.view(20, hidden));
        CHECK(far_off.dx_slots.values() == near_by.dx_slots.values());
        CHECK(far_off.dweights.values() == near_by.dweights.values());
        CHECK(far_off.dgate_up.values() == near_by.dgate_up.values());
        CHECK(far_off.ddown.values() == near_by.ddown.values());
      }
    }
}

TEST_CASE_TEMPLATE("experts: slots of no expert are left alone, and their weights have gradient 0",
                   Policy, cuda<>, cuda<bf16>) {
  constexpr std::int64_t hidden = 24, tokens = 70;
  problem p(tokens, {3, 2, hidden, 16}, 3, 4);
  const auto clean = compute_experts<Policy>(p);
  for (std::size_t i = 0; i < p.chosen.size(); i += 5) p.chosen[i] = -1;
  layer<Policy> l(p);
  both(l);
  const auto slots = l.offsets.values().back();
  REQUIRE(slots == 2 * tokens - 28);
  const auto y = as_double(l.y_slots.values()), dx = as_double(l.dx_slots.values());
  bool right = true;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const bool behind = i >= static_cast<std::size_t>(slots * hidden);
    right = right && std::isnan(y[i]) == behind && std::isnan(dx[i]) == behind;
  }
  const auto dweights = l.dweights.values();
  for (std::size_t i = 0; i < dweights.size(); ++i)
    right = right && dweights[i] == (i % 5 == 0 ? 0.0F : clean.dweights[i]);
  CHECK(right);
}

TEST_CASE("experts: more of them than the scheduler's table holds are refused in words") {
  const problem p(3, {1025, 1, 2, 2}, 4, 1);
  layer<cuda<>> l(p);
  CHECK_THROWS_WITH_AS(l.forward(), doctest::Contains("expected at most 1024 experts, found 1025"),
                       error);
}

}  // namespace smelt::test
