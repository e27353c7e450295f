// SPDX-License-Identifier: Apache-2.0
// expect: the share of the layers must be 1 to 100 percent
#include <smelt/arch/recipe.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::recipe::looped_middle<recipe::span_percent<100>>;
#else
template struct smelt::recipe::looped_middle<recipe::span_percent<0>>;
#endif
