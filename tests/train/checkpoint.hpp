// SPDX-License-Identifier: Apache-2.0
//
// What the tests of checkpoints share: all that a trainer's next step depends on, files as texts,
// and messages.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "smelt/train/step.hpp"

namespace smelt::test {

// Everything that the next step reads.
template <class Model, class Policy>
std::vector<double> everything(trainer<Model, Policy>& t) {
  std::vector<double> all{static_cast<double>(t.steps())};
  const auto add = [&](auto* data) {
    for (std::int64_t i = 0; i < t.plan().elements; ++i)
      all.push_back(static_cast<double>(static_cast<typename Policy::real>(data[i])));
  };
  add(t.state().weights.data());
  add(t.team().first_moment(0));
  add(t.team().second_moment(0));
  add(t.state().copy_data());
  return all;
}

inline std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void put(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

inline std::string message_of(const std::function<void()>& what) {
  try {
    what();
  } catch (const error& e) {
    return e.what();
  }
  return "no error";
}

inline bool ends_with(const std::string& text, const std::string& ending) {
  if (text.size() >= ending.size() && text.ends_with(ending)) return true;
  MESSAGE("found: " << text);
  return false;
}

}  // namespace smelt::test
