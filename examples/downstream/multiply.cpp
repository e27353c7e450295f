// SPDX-License-Identifier: Apache-2.0
//
// The host: one product of two matrices, through the library that smelt::host was configured with.
#include <array>
#include <cstdio>
#include <smelt/exec/matmul.hpp>

int main() {
  const std::array<float, 4> left{1, 2, 3, 4};
  const std::array<float, 4> right{5, 6, 7, 8};
  std::array<float, 4> out{};
  smelt::product_serial(smelt::matrix_view<const float>(left.data(), 2, 2),
                        smelt::matrix_view<const float>(right.data(), 2, 2),
                        smelt::matrix_view<float>(out.data(), 2, 2));
  std::printf("%s: %g %g %g %g\n", smelt::matmul_library_name(), static_cast<double>(out[0]),
              static_cast<double>(out[1]), static_cast<double>(out[2]),
              static_cast<double>(out[3]));
}
