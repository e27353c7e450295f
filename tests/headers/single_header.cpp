// SPDX-License-Identifier: Apache-2.0
//
// The generated single header as somebody would paste it: no include folder but the file's own.
#include <smelt.hpp>

#include <cstdio>

using namespace smelt;

struct baseline : transformer<hidden<1280>, gqa<10, 2, 128>, moe<192, 8, 432>, stack<plain<12>>> {};

static_assert(parameters<baseline> == 3'872'225'280);

int main() {
  std::printf("%lld parameters\n", static_cast<long long>(parameters<baseline>));
}
