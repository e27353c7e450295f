// SPDX-License-Identifier: Apache-2.0
//
// A unit that knows nothing of CUDA, compiled by the C++ compiler.
#include "smelt/host.hpp"
#include "both.hpp"
#include "op/gradient.hpp"

namespace smelt::test {

findings in_host_unit() {
  constexpr std::int64_t rows = 37, width = 44, experts = 5, top_k = 2;
  findings found;
  const auto x = random_values<float>(rows * width, 5), gain = random_values<float>(width, 6);
  std::vector<float> y(x.size()), rstd(rows);
  const host<float> run(2);
  rms_norm_forward(run, matrix_view<const float>(x.data(), rows, width), gain.data(), 1e-5F,
                   matrix_view<float>(y.data(), rows, width), rstd.data());
  for (const float value : y) found.host_norm.push_back(2.0F * value);
  std::vector<std::int32_t> chosen, choice_of(rows * top_k);
  for (std::int32_t n = 0; n < rows; ++n) {
    chosen.push_back(n * 7 % 5);
    chosen.push_back((n * 7 + 1 + n % 4) % 5);
  }
  std::vector<std::int64_t> offsets(experts + 1), slot_of(rows * top_k), token_of(rows * top_k);
  dispatch_forward(run, chosen.data(),
                   dispatch_plan{rows, experts, top_k, offsets.data(), slot_of.data(),
                                 token_of.data(), choice_of.data()});
  found.host_slots = slot_of;
  return found;
}

}  // namespace smelt::test
