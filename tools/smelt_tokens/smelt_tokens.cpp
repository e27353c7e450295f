// SPDX-License-Identifier: Apache-2.0
//
// smelt-tokens: builds token shards and a held-out split.
//
//   smelt-tokens --out shards book.txt articles/ pages.jsonl
//   smelt-tokens --out shards --source Code/linux=linux/ --source Web/crawl=crawl.jsonl
//   smelt-tokens --out shards --recipe corpus.json
//
// The folder holds train.<source>.<k>.bin, held_out.<source>.<k>.bin and manifest.json, and is
// there whole or not at all. An error is one line on stderr and the exit code 1.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "build.hpp"
#include "recipe.hpp"
#include "report.hpp"
#include "smelt/error.hpp"

namespace {
using namespace smelt_tokens;

// What the command line says beyond the settings of a build.
struct request {
  settings chosen;
  std::vector<std::string> paths;
  std::vector<std::string> named;  // GROUP/NAME=PATH
  std::string recipe;
  std::string root;
  std::string kind = "plain";
  bool complete = false;
};

smelt::error wrong(const std::string& place, const std::string& expected, const std::string& found,
                   const std::string& remedy) {
  return smelt::detail::io_error(place, expected, found, remedy);
}

void describe(CLI::App& app, request& wanted) {
  settings& chosen = wanted.chosen;
  app.add_option("paths", wanted.paths, "Files and folders, a source each, of the group text");
  app.add_option("--source", wanted.named, "GROUP/NAME=PATH; a name may come several times")
      ->allow_extra_args(false);
  app.add_option("--recipe", wanted.recipe, "A corpus recipe (JSON)");
  app.add_option("--root", wanted.root, "Folder before the paths of the recipe");
  app.add_flag("--complete", wanted.complete, "A missing source of the recipe is an error");
  app.add_option("--out", chosen.out, "The folder to make");
  app.add_flag("--dry-run", chosen.dry_run, "Read, count and report; write nothing");
  app.add_option("--tokenizer", chosen.tokenizer_name, "bytes, or a SentencePiece .model file")
      ->capture_default_str();
  app.add_option("--format", chosen.format, "Token width: auto, uint16, uint32")
      ->check(CLI::IsMember({"auto", "uint16", "uint32"}))
      ->capture_default_str();
  app.add_option("--converter", wanted.kind, "Of paths and --source: plain, html, info, man")
      ->check(CLI::IsMember({"plain", "html", "info", "man"}))
      ->capture_default_str();
  app.add_option("--text-field", chosen.text_field, "The field of a JSONL line with the text")
      ->capture_default_str();
  app.add_option("--held-out", chosen.held_out_one_in, "Hold out one byte in so many; 0: none")
      ->capture_default_str();
  app.add_option("--near", chosen.near_threshold,
                 "Leave out training documents that share this much with held-out ones; 0: none")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--near-words", chosen.near_words, "Words of a shingle")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1000}))
      ->capture_default_str();
  app.add_option("--near-common", chosen.near_common,
                 "A shingle of more documents than this is boilerplate")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 31))
      ->capture_default_str();
  app.add_option("--longest", chosen.longest_bytes, "Cut documents longer than so many bytes")
      ->check(CLI::Range(std::int64_t{64}, std::int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--shard-tokens", chosen.shard_tokens, "Tokens of a shard, about")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{2'000'000'000}))
      ->capture_default_str();
  app.add_option("--most-bytes", chosen.most_bytes, "Of each source; 0: all")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 60))
      ->capture_default_str();
}

// Adds files to the source of this name, which is made when it is new.
void add_files(std::vector<corpus_source>& sources, const std::string& group,
               const std::string& name, converter kind, const std::filesystem::path& path) {
  for (corpus_source& source : sources) {
    if (source.name != name) continue;
    if (source.group != group)
      throw wrong("source " + name, "one group, " + source.group, group, "give it one group");
    for (auto& file : files_at(path)) source.files.push_back(std::move(file));
    return;
  }
  sources.push_back({name, group, "", kind, files_at(path)});
}

// A file's name as a source's: what is not allowed becomes _.
std::string source_name(std::filesystem::path path) {
  path = path.lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  std::string name = path.stem().string();
  for (char& c : name)
    if (!detail::is_word(std::string_view(&c, 1))) c = '_';
  return name.empty() ? "text" : name;
}

std::vector<corpus_source> sources_of(const request& wanted) {
  std::vector<corpus_source> sources;
  const converter kind = *converter_of(wanted.kind);
  if (!wanted.recipe.empty()) {
    recipe from = read_recipe(wanted.recipe, wanted.root);
    print_missing(from.missing);
    if (wanted.complete && !from.missing.empty())
      throw wrong(wanted.recipe, "every source", std::to_string(from.missing.size()) + " missing",
                  "install their packages or leave out --complete");
    if (from.found.empty())
      throw wrong(wanted.recipe, "at least 1 source on this machine", "none",
                  "install some of their packages");
    sources = std::move(from.found);
  }
  for (const std::string& text : wanted.named) {
    const std::size_t equals = text.find('=');
    const std::size_t slash = text.find('/');
    const std::string remedy = "write --source GROUP/NAME=PATH";
    if (equals == std::string::npos || slash > equals)
      throw wrong("--source", "GROUP/NAME=PATH", smelt::detail::quoted_name(text), remedy);
    const std::string group = text.substr(0, slash);
    const std::string name = text.substr(slash + 1, equals - slash - 1);
    if (!detail::is_word(group) || !detail::is_word(name))
      throw wrong("--source", "a group and a name of letters, digits, - and _",
                  smelt::detail::quoted_name(text), remedy);
    add_files(sources, group, name, kind, text.substr(equals + 1));
  }
  for (const std::string& path : wanted.paths)
    add_files(sources, "text", source_name(path), kind, path);
  return sources;
}

void run(const request& wanted) {
  if (wanted.chosen.out.empty() && !wanted.chosen.dry_run)
    throw wrong("--out", "a folder to make", "none", "name it, or ask for a --dry-run");
  if (wanted.chosen.held_out_one_in != 0 && wanted.chosen.held_out_one_in < 2)
    throw wrong("--held-out", "0 or at least 2", std::to_string(wanted.chosen.held_out_one_in),
                "hold out less than half");
  const std::vector<corpus_source> sources = sources_of(wanted);
  if (sources.empty())
    throw wrong("the command line", "files, folders, --source or --recipe", "none",
                "try smelt-tokens --help");
  print_report(build(wanted.chosen, sources));
}

}  // namespace

int main(int count, char** words) {
  request wanted;
  CLI::App app("Builds token shards and a held-out split.");
  describe(app, wanted);
  try {
    app.parse(count, words);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::Error& error) {
    std::fprintf(stderr, "smelt-tokens: %s; try --help\n", error.what());
    return 1;
  }
  try {
    run(wanted);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "smelt-tokens: %s\n", error.what());
    return 1;
  }
  return 0;
}
