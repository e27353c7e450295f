// SPDX-License-Identifier: Apache-2.0
// expect: recipe::visits<Visits>: Visits must be at least 1
#include <smelt/arch/recipe.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::recipe::looped_middle<recipe::visits<1>>;
#else
template struct smelt::recipe::looped_middle<recipe::visits<0>>;
#endif
