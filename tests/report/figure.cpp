// SPDX-License-Identifier: Apache-2.0
//
// Figures: the script that gnuplot gets, and the picture that comes of it.
#include "smelt/report/figure.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>

#include "support/folder.hpp"

namespace {
using namespace smelt;

figure two_curves() {
  figure_panel p;
  p.title = "it's a test";
  p.x_label = "tokens";
  p.y_label = "loss";
  p.y_highest = 2.5;
  p.curves.push_back({"one", {1, 10, 100}, {3, 2, 1}, 0, figure::stroke::line});
  p.curves.push_back(
      {"behind", {1, 10}, {3, std::numeric_limits<double>::quiet_NaN()}, 1, figure::stroke::faint});
  return {{p}};
}

// gnuplot that is not there, for as long as this lives.
struct empty_path {
  std::string before = std::getenv("PATH") != nullptr ? std::getenv("PATH") : "";
  empty_path() { ::setenv("PATH", "/nonexistent", 1); }
  ~empty_path() { ::setenv("PATH", before.c_str(), 1); }
};

bool gnuplot_is_there() {
  return std::system("command -v gnuplot > /dev/null 2>&1") == 0;
}

TEST_CASE("the script quotes names, carries the data and leaves out what is not finite") {
  const std::string script = two_curves().script("a'b.png");
  CHECK(script.find("set output 'a''b.png'") != std::string::npos);
  CHECK(script.find("set title 'it''s a test'") != std::string::npos);
  CHECK(script.find("$data_0_0 << END\n1 3\n10 2\n100 1\nEND\n") != std::string::npos);
  CHECK(script.find("$data_0_1 << END\n1 3\nEND\n") != std::string::npos);
  CHECK(script.find("\nset logscale") == std::string::npos);
  CHECK(script.find("set yrange [*:2.5]") != std::string::npos);
  CHECK(script.find("title 'one'") != std::string::npos);
  CHECK(script.find("'behind'") == std::string::npos);
}

TEST_CASE("ticks are short: thousands and millions have a prefix") {
  figure f = two_curves();
  f.panels[0].curves = {{"a", {1000, 1'200'000}, {1, 2}, 0, figure::stroke::line}};
  const std::string script = f.script("a.png");
  CHECK(script.find("set format x '%gk'") != std::string::npos);
  CHECK(script.find("<< END\n1 1\n1200 2\nEND") != std::string::npos);
  f.panels[0].curves[0].x = {0, 9999};
  CHECK(f.script("a.png").find("set format x '%g'\n") != std::string::npos);
}

TEST_CASE("gnuplot draws a PNG, whole or not at all") {
  if (!gnuplot_is_there()) {
    MESSAGE("gnuplot is not installed: nothing drawn");
    return;
  }
  const smelt_test::folder folder;
  figure f = two_curves();
  SUBCASE("linear") {}
  SUBCASE("logarithmic") {
    f.panels[0].x_logarithmic = f.panels[0].y_logarithmic = true;
  }
  SUBCASE("two panels") {
    f.panels.push_back(f.panels[0]);
  }
  const auto png = folder / "curves 'x'.png";
  f.write(png);
  std::ifstream file(png, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  CHECK(bytes.size() > 1000);
  CHECK(bytes.substr(0, 8) == "\x89PNG\r\n\x1a\n");
  CHECK_FALSE(std::filesystem::exists(png.string() + ".part"));
}

TEST_CASE("no gnuplot, no folder, no curve that can be drawn: an error, and no file") {
  const smelt_test::folder folder;
  const auto message = [&](const figure& f, const std::filesystem::path& png) {
    try {
      f.write(png);
    } catch (const error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  {
    const empty_path without;
    CHECK(message(two_curves(), folder / "a.png").find("install gnuplot-nox") != std::string::npos);
  }
  if (gnuplot_is_there()) {
    CHECK(message(two_curves(), folder / "missing/a.png").find("gnuplot failed") !=
          std::string::npos);
    CHECK(message(figure{{figure_panel{}}}, folder / "a.png").find("no point to draw") !=
          std::string::npos);
  }
  CHECK(std::filesystem::is_empty(folder.path()));
}

}  // namespace
