// SPDX-License-Identifier: Apache-2.0
//
// gzip, as documentation is installed with: gunzip_zlib.cpp where zlib was found at configure time,
// gunzip_none.cpp where not.
#pragma once

#include <string>
#include <string_view>

namespace smelt_tokens {

/// Whether this program can read gzip.
bool can_gunzip();

inline bool is_gzip(std::string_view bytes) {
  return bytes.size() > 2 && bytes[0] == '\x1f' && bytes[1] == '\x8b';
}

/// The contents of all members of a gzip file (dictzip writes several).
/// @throws smelt::error naming `place` where they are damaged, or where zlib is missing.
std::string gunzip(std::string_view bytes, const std::string& place);

}  // namespace smelt_tokens
