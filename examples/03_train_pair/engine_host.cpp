// SPDX-License-Identifier: Apache-2.0
//
// The pair on the CPU.
#include "policy_engine.hpp"
#include "smelt/host.hpp"

namespace pair {
namespace {
template <class Compute>
std::unique_ptr<engine> on_host(const std::string& precision, int threads) {
  const smelt::host<Compute> run(threads);
  return std::make_unique<policy_engine<smelt::host<Compute>>>(
      run, std::to_string(run.threads()) + " threads, " + precision + " products by " +
               smelt::matmul_library_name());
}
}  // namespace

std::unique_ptr<engine> host_engine(const std::string& precision, int threads) {
  return precision == "bf16" ? on_host<smelt::bf16>(precision, threads)
                             : on_host<float>(precision, threads);
}

bool host_prefers_bf16() {
  return smelt::bf16_is_fast();
}

}  // namespace pair
