// SPDX-License-Identifier: Apache-2.0
// expect: a part must be one of span_percent, visits, depth
#include <smelt/arch/recipe.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::recipe::looped_middle<recipe::visits<3>>;
#else
template struct smelt::recipe::looped_middle<hidden<64>>;
#endif
