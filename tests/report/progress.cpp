// SPDX-License-Identifier: Apache-2.0
//
// The progress line: what it says, when it is written, and that it never wraps.
#include "smelt/report/progress.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <string>

namespace {
using namespace smelt;

// A file that can be read back.
struct sink {
  std::FILE* file = std::tmpfile();
  ~sink() { std::fclose(file); }
  std::string text() const {
    std::rewind(file);
    std::string all;
    for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file))
      all.push_back(static_cast<char>(c));
    return all;
  }
};

std::ptrdiff_t lines(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

TEST_CASE("the line names step, subject, loss, rate, MFU and the time left") {
  const progress p({stdout, false, 120}, 400);
  const std::string line = p.line({100, "smelt", 2.4121, 13'120.0, 0.4321}, 60);
  for (const char* part :
       {"100/400 smelt", "loss 2.412", "13.1 k tok/s", "MFU 43.2 %", "3:00 left", "[####"})
    CHECK_MESSAGE(line.find(part) != std::string::npos, part, " in ", line);
  CHECK(p.line({400, "smelt"}, 240).find("4:00 taken") != std::string::npos);
  // What an earlier program did took none of the time.
  const progress resumed({stdout, false, 120}, 400, 100);
  CHECK(resumed.line({200, "smelt"}, 60).find("2:00 left") != std::string::npos);
  CHECK(p.line({1, "smelt", 2.4, 1e4, 0.4, 1.25e9}, 1).find("1.25 GB") != std::string::npos);
  // What is not known is not shown.
  const std::string bare = p.line({0, "smelt"}, 0);
  for (const char* part : {"loss", "MFU", "tok/s", "left"})
    CHECK(bare.find(part) == std::string::npos);
}

TEST_CASE("the bar fills with the steps, gives way to the words, and nothing is ever too long") {
  for (int columns = 0; columns < 150; ++columns) {
    const progress p({stdout, true, columns}, 1000);
    const std::string line = p.line({500, "baseline", 2.4, 1.31e4, 0.43}, 100);
    REQUIRE(static_cast<int>(line.size()) <= std::max(columns - 1, 0));
  }
  const progress p({stdout, true, 100}, 10);
  const auto filled = [&](std::int64_t step) {
    const std::string line = p.line({step, "x"}, 1);
    return std::count(line.begin(), line.end(), '#');
  };
  CHECK(filled(0) == 0);
  CHECK(filled(5) == 16);
  CHECK(filled(10) == 32);
  CHECK(filled(11) == 32);
}

TEST_CASE("into a pipe: a line at the first step, every ten seconds, and at the last") {
  sink out;
  {
    progress p({out.file, false, 100}, 100);
    for (int step = 1; step <= 100; ++step) p.show({step, "x"}, step * 0.5);
  }
  // Steps 1, 21, 41, 61, 81, 100.
  const std::string text = out.text();
  CHECK(lines(text) == 6);
  CHECK(text.find('\r') == std::string::npos);
  CHECK(text.find('\x1b') == std::string::npos);
  CHECK(text.find(" 41/100") != std::string::npos);
  CHECK(text.find("100/100") != std::string::npos);
}

TEST_CASE("on a terminal: redrawn in place, ten times a second, and ended before other text") {
  sink out;
  {
    progress p({out.file, true, 100}, 1000);
    for (int step = 1; step <= 100; ++step) p.show({step, "x"}, step * 0.01);
  }
  const std::string text = out.text();
  CHECK(lines(text) == 1);
  CHECK(text.back() == '\n');
  const auto drawn = std::count(text.begin(), text.end(), '\r');
  CHECK(drawn >= 9);
  CHECK(drawn <= 11);
}

}  // namespace
