// SPDX-License-Identifier: Apache-2.0
// expect: the same kind of part is named twice; keep one
#include <smelt/arch/recipe.hpp>

using namespace smelt;

#ifdef REPAIRED
template struct smelt::recipe::looped_middle<recipe::visits<3>, recipe::depth<8>>;
#else
template struct smelt::recipe::looped_middle<recipe::visits<3>, recipe::visits<2>>;
#endif
