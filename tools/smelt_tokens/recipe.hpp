// SPDX-License-Identifier: Apache-2.0
//
// A corpus recipe: {"sources": [{"name", "group", "package", "paths": [pattern ...],
// "converter"} ...]}, see corpus.json. Every fault names the file and the source.
#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "smelt/io/file.hpp"
#include "sources.hpp"

namespace smelt_tokens {

/// What a recipe asks for, and what of it this machine has.
struct recipe {
  std::vector<corpus_source> found{};
  std::vector<corpus_source> missing{};  // no file fits
};

/// @param root  before every pattern; "" is this machine.
/// @throws smelt::error naming what is wrong with the recipe.
inline recipe read_recipe(const std::filesystem::path& path, const std::filesystem::path& root) {
  using nlohmann::json;
  const smelt::mapped_file file(path);
  const std::string_view bytes(reinterpret_cast<const char*>(file.bytes().data()),
                               file.bytes().size());
  const auto refuse = [&](const std::string& where, const std::string& expected,
                          const std::string& found) {
    throw smelt::detail::io_error(path.string() + where, expected, found,
                                  "see corpus.json beside smelt-tokens for an example");
  };
  const json whole = json::parse(bytes, nullptr, false);
  if (whole.is_discarded()) refuse("", "a JSON object with sources", "no valid JSON");
  if (!whole.is_object() || !whole.contains("sources") || !whole["sources"].is_array() ||
      whole["sources"].empty())
    refuse("", "a JSON object with at least one of sources", "none");

  recipe result;
  std::set<std::string> names;
  std::size_t number = 0;
  for (const json& entry : whole["sources"]) {
    const std::string where = ": source " + std::to_string(number++);
    const auto word = [&](const char* key) {
      if (!entry.is_object() || !entry.contains(key) || !entry[key].is_string())
        refuse(where, std::string("text in ") + key, "none");
      return entry[key].get<std::string>();
    };
    corpus_source source{word("name"), word("group"), word("package")};
    for (const std::string& part : {source.name, source.group})
      if (!detail::is_word(part))
        refuse(where, "a name and a group of letters, digits, - and _",
               smelt::detail::quoted_name(part));
    if (!names.insert(source.name).second)
      refuse(where, "every name once", smelt::detail::quoted_name(source.name) + " again");
    const std::string kind = word("converter");
    if (!converter_of(kind))
      refuse(where, "a converter of plain, html, info or man", smelt::detail::quoted_name(kind));
    source.kind = *converter_of(kind);
    if (!entry.contains("paths") || !entry["paths"].is_array() || entry["paths"].empty())
      refuse(where, "at least one pattern in paths", "none");
    std::set<std::filesystem::path> once;
    for (const json& pattern : entry["paths"]) {
      if (!pattern.is_string()) refuse(where, "text as a path", pattern.type_name());
      for (auto& found : files_like(pattern.get<std::string>(), root)) once.insert(found);
    }
    source.files.assign(once.begin(), once.end());
    (source.files.empty() ? result.missing : result.found).push_back(std::move(source));
  }
  return result;
}

}  // namespace smelt_tokens
