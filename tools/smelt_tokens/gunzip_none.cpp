// SPDX-License-Identifier: Apache-2.0
//
// Stands in where zlib was not found.
#include "gunzip.hpp"
#include "smelt/io/message.hpp"

namespace smelt_tokens {

bool can_gunzip() {
  return false;
}

std::string gunzip(std::string_view, const std::string& place) {
  throw smelt::detail::io_error(place, "plain text", "gzip, and a smelt-tokens without zlib",
                                "unpack it, or install zlib1g-dev and build again");
}

}  // namespace smelt_tokens
