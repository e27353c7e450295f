// SPDX-License-Identifier: Apache-2.0
//
// The suite of packing and accumulation on the host.
#include "packing.hpp"

using namespace smelt;
using namespace smelt::test;

TEST_CASE_TEMPLATE_INVOKE(model_packing, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(model_accumulation, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(model_unequal, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(model_from_zero, host<double>, host<>, host<bf16>);
