// SPDX-License-Identifier: Apache-2.0
//
// One of two translation units that include every header: a function that is neither inline nor a
// template would be defined twice, and the linker would say so.
#include <cstdio>

#include "every_header.hpp"

int in_the_other_unit();

int main() {
  std::puts("every header, in two translation units, in one program");
  return in_the_other_unit();
}
