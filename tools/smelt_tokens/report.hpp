// SPDX-License-Identifier: Apache-2.0
//
// What the program prints: a line per source, the groups, the whole; and what a recipe misses.
#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "build.hpp"
#include "recipe.hpp"

namespace smelt_tokens {

namespace detail {
inline void print_row(const std::string& group, const std::string& name, const amount& training,
                      const amount& held_out, std::int64_t near, std::int64_t repeated) {
  std::printf("%-12s %-24s %9lld %13lld %13lld %9lld %12lld %8lld %8lld\n", group.c_str(),
              name.c_str(), static_cast<long long>(training.documents),
              static_cast<long long>(training.bytes), static_cast<long long>(training.tokens),
              static_cast<long long>(held_out.documents), static_cast<long long>(held_out.tokens),
              static_cast<long long>(near), static_cast<long long>(repeated));
}
}  // namespace detail

/// A table to stdout.
inline void print_report(const std::vector<source_report>& reports) {
  struct sum {
    amount training, held_out;
    std::int64_t near = 0, repeated = 0;
    void add(const source_report& report) {
      training += report.training;
      held_out += report.held_out;
      near += report.near.documents;
      repeated += report.source.repeated_documents;
    }
  };
  std::printf("%-12s %-24s %9s %13s %13s %9s %12s %8s %8s\n", "group", "source", "documents",
              "bytes", "tokens", "held out", "tokens", "near", "repeated");
  std::map<std::string, sum> groups;
  sum all;
  std::int64_t binary = 0;
  for (const source_report& report : reports) {
    detail::print_row(report.source.group, report.source.name, report.training, report.held_out,
                      report.near.documents, report.source.repeated_documents);
    groups[report.source.group].add(report);
    all.add(report);
    binary += report.source.files_binary;
  }
  for (const auto& [group, part] : groups)
    detail::print_row(group, "(all)", part.training, part.held_out, part.near, part.repeated);
  detail::print_row("(all)", "(all)", all.training, all.held_out, all.near, all.repeated);
  if (binary > 0)
    std::printf("%lld binary files were passed over\n", static_cast<long long>(binary));
}

/// What is not there, and the line that gets it.
inline void print_missing(const std::vector<corpus_source>& missing) {
  if (missing.empty()) return;
  std::set<std::string> packages;
  for (const corpus_source& source : missing) {
    std::printf("missing: %s/%s (%s)\n", source.group.c_str(), source.name.c_str(),
                source.package.c_str());
    packages.insert(source.package);
  }
  std::printf("to have them: apt-get install");
  for (const std::string& package : packages) std::printf(" %s", package.c_str());
  std::printf("\n");
}

}  // namespace smelt_tokens
