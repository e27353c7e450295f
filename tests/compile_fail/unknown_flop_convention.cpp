// SPDX-License-Identifier: Apache-2.0
// expect: a convention must be one of
// expect: router_in, router_out
#include <smelt/smelt.hpp>

using namespace smelt;

struct body : transformer<hidden<64>, gqa<4, 2, 16>, moe<8, 2, 32>, stack<plain<4>>> {};

#ifdef REPAIRED
static_assert(flops_per_token<body, attended<391>, convention::router_out> > 0);
#else
static_assert(flops_per_token<body, attended<391>, convention::per_execution> > 0);
#endif
