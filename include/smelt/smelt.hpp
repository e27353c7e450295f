// SPDX-License-Identifier: Apache-2.0
//
// smelt: Mixture-of-Experts Transformers as C++ types, with exact budgets known to the compiler.
//
// This header needs a C++20 compiler and nothing else. It brings the types (arch/), their
// accounting (budget/) and the comparison of two of them (match/). To run a model include
// smelt/host.hpp.
#pragma once

#include "smelt/arch/language_model.hpp"
#include "smelt/arch/prior.hpp"
#include "smelt/arch/recipe.hpp"
#include "smelt/arch/scales.hpp"
#include "smelt/arch/transformer.hpp"
#include "smelt/budget/convention.hpp"
#include "smelt/budget/flops.hpp"
#include "smelt/budget/kv_cache.hpp"
#include "smelt/budget/memory.hpp"
#include "smelt/budget/parameters.hpp"
#include "smelt/budget/sparsity.hpp"
#include "smelt/budget/traffic.hpp"
#include "smelt/match/assert_matched.hpp"
#include "smelt/match/budget_matched.hpp"
#include "smelt/match/search.hpp"
#include "smelt/match/tolerance.hpp"
