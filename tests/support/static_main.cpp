// SPDX-License-Identifier: Apache-2.0
//
// The assertions of tests/static held when they compiled; this program only says how many files.
#include <cstdio>

int main() {
  std::printf("%d files of static assertions compiled\n", SMELT_STATIC_FILES);
}
