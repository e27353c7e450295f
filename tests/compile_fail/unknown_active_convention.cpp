// SPDX-License-Identifier: Apache-2.0
// expect: convention::per_traversal or convention::per_execution
#include <smelt/smelt.hpp>

using namespace smelt;

struct body : transformer<hidden<64>, gqa<4, 2, 16>, moe<8, 2, 32>, stack<plain<4>>> {};

#ifdef REPAIRED
static_assert(active_parameters<body, convention::per_execution> > 0);
#else
static_assert(active_parameters<body, convention::forward> > 0);
#endif
