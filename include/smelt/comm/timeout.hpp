// SPDX-License-Identifier: Apache-2.0
//
// How long the ranks of a job wait for each other before the job ends.
#pragma once

#include <cstdlib>
#include <string>

#include "smelt/error.hpp"

namespace smelt {

/// SMELT_COMM_TIMEOUT_SECONDS of the environment, or 300. Whatever one rank does while the others
/// wait, such as writing a checkpoint, must fit into it.
inline double comm_timeout_seconds() {
  const char* text = std::getenv("SMELT_COMM_TIMEOUT_SECONDS");
  if (text == nullptr) return 300.0;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (end == text || *end != '\0' || !(seconds > 0.0))
    throw error(std::string("SMELT_COMM_TIMEOUT_SECONDS: expected seconds above 0, found '") +
                text + "'");
  return seconds;
}

}  // namespace smelt
