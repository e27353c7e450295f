// SPDX-License-Identifier: Apache-2.0
//
// Translates and compiles a unit of PTX, or finds it in the cache.
#pragma once
#include <string>

struct Compiled {
  void* handle = nullptr;
  std::string unit_path;
  std::string error;
};
Compiled compile_unit(const std::string& name, const std::string& unit);
