// SPDX-License-Identifier: Apache-2.0
//
// smelt models: what the compiler knows of each model, as a table.
#pragma once

#include <cstdint>

namespace smelt_tool {

/// Prints the models of this program; attention for documents of `context` tokens.
void describe_models(std::int64_t context);

}  // namespace smelt_tool
