// SPDX-License-Identifier: Apache-2.0
//
// Matrix products in the shapes of a training step: what every other figure is held against.
//
//   Arg: threads. Counter GFLOP/s: 2 m n k over time. accumulate, and both transposes that backward
//   needs, so that a slow corner of the library shows.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "smelt/exec/matmul.hpp"

namespace {
using namespace smelt;

enum class form { forward, input_gradient, weight_gradient };

// forward  [n, k] [m, k]^T,  input gradient  [n, m] [m, k],  weight gradient  [n, m]^T [n, k]
template <class Compute, form Form>
void matmul(benchmark::State& state) {
  using real = real_of<Compute>;
  constexpr std::int64_t n = 4096, m = 512, k = 512;
  const host<Compute> run(static_cast<int>(state.range(0)));
  const std::vector<Compute> x(n * k, Compute(1.0F)), w(m * k, Compute(1.0F)),
      dy(n * m, Compute(1.0F));
  std::vector<real> out(n * (m > k ? m : k));
  const matrix_view<const Compute> xs(x.data(), n, k), ws(w.data(), m, k), dys(dy.data(), n, m);
  for (auto _ : state) {
    if constexpr (Form == form::forward)
      product(run, xs, transposed(ws), matrix_view<real>(out.data(), n, m));
    else if constexpr (Form == form::input_gradient)
      product(run, dys, ws, matrix_view<real>(out.data(), n, k));
    else
      product(run, transposed(dys), xs, matrix_view<real>(out.data(), m, k), into::accumulate);
    benchmark::ClobberMemory();
  }
  state.counters["GFLOP/s"] = benchmark::Counter(
      2e-9 * n * m * k * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

BENCHMARK(matmul<float, form::forward>)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK(matmul<float, form::input_gradient>)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK(matmul<float, form::weight_gradient>)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK(matmul<bf16, form::forward>)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK(matmul<bf16, form::input_gradient>)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK(matmul<bf16, form::weight_gradient>)->Arg(1)->Arg(2)->UseRealTime();
}  // namespace
