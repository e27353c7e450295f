// SPDX-License-Identifier: Apache-2.0
// expect: needs Preferred >= AtLeast >= 1
#include <smelt/arch/recipe.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::recipe::experts_multiple<8, 4>;
#else
template struct smelt::recipe::experts_multiple<4, 8>;
#endif
