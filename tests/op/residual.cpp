// SPDX-License-Identifier: Apache-2.0
//
// The suite of the residual stream on the host, and a case by hand.
#include "residual.hpp"

using namespace smelt;
using namespace smelt::test;

TEST_CASE_TEMPLATE_INVOKE(residual_values, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(residual_scaled, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(residual_strides, host<double>, host<>, host<bf16>);

TEST_CASE("residual: an update is scaled, and may write over its input") {
  std::vector<double> x{1.0, 2.0, 3.0, 4.0};
  const std::vector<double> update{10.0, 20.0, 30.0, 40.0};
  const matrix_view<double> stream(x.data(), 2, 2);
  residual_add(host<double>(1), matrix_view<const double>(stream), 0.5,
               matrix_view<const double>(update.data(), 2, 2), stream);
  CHECK(x == std::vector<double>{6.0, 12.0, 18.0, 24.0});
  std::vector<bf16> narrow(4);
  const std::vector<float> wide{1, 2, 3, 4};
  scaled(host<bf16>(1), matrix_view<const float>(wide.data(), 2, 2), 0.5F,
         matrix_view<bf16>(narrow.data(), 2, 2));
  CHECK(static_cast<float>(narrow[3]) == 2.0F);
}
