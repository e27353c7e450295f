// SPDX-License-Identifier: Apache-2.0
// expect: the second argument must be vocabulary<Size>
#include <smelt/smelt.hpp>

using namespace smelt;

struct body : transformer<hidden<64>, gqa<4, 2, 16>, moe<8, 2, 32>, stack<plain<4>>> {};

#ifdef REPAIRED
template struct smelt::language_model<::body, vocabulary<256>, tied>;
#else
template struct smelt::language_model<::body, hidden<256>, tied>;
#endif
