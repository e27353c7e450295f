// SPDX-License-Identifier: Apache-2.0
//
// A file is there whole or not at all, and readable line by line while it grows.
#include "smelt/report/output_file.hpp"

#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "support/folder.hpp"

namespace {
using namespace smelt;

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string message_of(const std::filesystem::path& path, const std::string& text) {
  try {
    output_file file(path);
    file.write(text);
    file.finish();
  } catch (const error& e) {
    return e.what();
  }
  return "";
}

TEST_CASE("written beside, then renamed; an old file stays until the new one is whole") {
  const smelt_test::folder folder;
  const auto path = folder.write("metrics", "old");
  {
    output_file file(path);
    file.write("line 1\n");
    CHECK(text_of(path) == "old");
    // What a killed program would leave.
    CHECK(text_of(file.part()) == "line 1\n");
    file.write("line 2\n");
    file.finish();
  }
  CHECK(text_of(path) == "line 1\nline 2\n");
  CHECK_FALSE(std::filesystem::exists(path.string() + ".part"));
}

TEST_CASE("given up: nothing new is left, and what stood there stays") {
  const smelt_test::folder folder;
  const auto path = folder.write("metrics", "old");
  { output_file(path).write("half"); }
  CHECK(text_of(path) == "old");
  { output_file(folder / "other").write("half"); }
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("errors name the file, the reason and a remedy") {
  const smelt_test::folder folder;
  const std::string missing = message_of(folder / "missing/metrics", "x");
  CHECK(missing.find("missing/metrics: cannot create: No such file") != std::string::npos);
  CHECK(missing.find("choose a folder") != std::string::npos);
  // A folder in the place of the file.
  std::filesystem::create_directories(folder / "taken/inside");
  CHECK(message_of(folder / "taken", "x").find("cannot rename to its place") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(folder / "taken.part"));
  // A full disk, for every user.
  if (std::filesystem::exists("/dev/full")) {
    std::filesystem::create_symlink("/dev/full", folder / "full.part");
    CHECK(message_of(folder / "full", "x").find("cannot write: No space left") !=
          std::string::npos);
  }
}

}  // namespace
