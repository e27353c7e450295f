// SPDX-License-Identifier: Apache-2.0
//
// figure: curves over common axes, in one panel or several, drawn by gnuplot into a PNG.
//
// Data and script go into one temporary file, gnuplot writes the picture beside its place, and a
// finished picture is renamed: there is a whole one or none. Points that are not finite are left
// out, since a curve of losses may well end in one.
//
//   figure f{{panel, panel}};
//   f.write("loss.png");        throws smelt::error without gnuplot; a program may go on
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "smelt/error.hpp"

extern char** environ;

namespace smelt {

/// One pair of axes and the curves over them.
struct figure_panel {
  /// How a curve is drawn. Faint curves stand behind and have no entry in the key.
  enum class stroke { line, faint, dashes };

  struct curve {
    std::string name;
    std::vector<double> x;
    std::vector<double> y;
    std::size_t color = 0;  // curves of one subject share a color
    stroke style = stroke::line;
  };

  std::string title;  // empty ones take no room
  std::string x_label;
  std::string y_label;
  bool x_logarithmic = false;
  bool y_logarithmic = false;
  double y_lowest = std::numeric_limits<double>::quiet_NaN();  // not a number: as the data wish
  double y_highest = std::numeric_limits<double>::quiet_NaN();
  std::vector<curve> curves;
};

class figure {
 public:
  using stroke = figure_panel::stroke;

  /// From top to bottom. The first one is twice as high as the others.
  std::vector<figure_panel> panels;

  /// The gnuplot script, data included, that draws into `png`. Throws where a panel is empty.
  std::string script(const std::filesystem::path& png) const {
    std::string out =
        fmt::format("set terminal pngcairo size 1200,{} font 'sans,13' noenhanced\nset output {}\n",
                    panels.size() < 2 ? 750 : 900, quoted(png.string()));
    // Fixed margins left and right, so that the same x stands above itself in every panel.
    out += "set multiplot\nset lmargin at screen 0.08\nset rmargin at screen 0.97\n";
    out += "set grid xtics ytics lc rgb '#dddddd' lt 1 lw 1\n";
    out += "set border 3 lc rgb '#444444'\nset tics nomirror\nset key top right\n";
    double top = 1;  // in shares of the picture's height, from below
    for (std::size_t p = 0; p < panels.size(); ++p) {
      const double height = (p == 0 ? 2.0 : 1.0) / (static_cast<double>(panels.size()) + 1);
      const double share = panels.size() == 1 ? 1.0 : height;
      out += fmt::format("set tmargin at screen {:.3f}\nset bmargin at screen {:.3f}\n",
                         top - (panels[p].title.empty() ? 0.02 : 0.07),
                         top - share + (panels[p].x_label.empty() ? 0.05 : 0.08));
      top -= share;
      append(out, panels[p], p);
    }
    return out + "unset multiplot\n";
  }

  /// Draws the PNG. Throws with a remedy where gnuplot is missing, fails, or may not write.
  void write(const std::filesystem::path& png) const {
    const std::filesystem::path part = png.string() + ".part";
    // A file and not a pipe: gnuplot may end early, and a write to a closed pipe ends a program.
    const temporary_file commands("script");
    const temporary_file complaints("errors");
    std::ofstream(commands.path) << script(part) << std::flush;
    const int code = run_gnuplot(commands.path, complaints.path);
    std::error_code ignored;
    if (code == 127)
      throw error(png.string() +
                  ": not drawn, gnuplot is not installed; on Debian: apt-get "
                  "install gnuplot-nox");
    if (code != 0 || !std::filesystem::exists(part, ignored) ||
        std::filesystem::file_size(part, ignored) == 0) {
      std::filesystem::remove(part, ignored);
      throw error(
          fmt::format("{}: gnuplot failed with exit code {}: {}; check that the folder may "
                      "be written to",
                      png.string(), code, first_words(complaints.path)));
    }
    std::filesystem::rename(part, png, ignored);
    if (ignored)
      throw error(png.string() +
                  ": cannot rename the finished picture to its place: " + ignored.message());
  }

 private:
  // An empty file with a name of its own, gone with this object.
  struct temporary_file {
    std::string path;
    explicit temporary_file(std::string_view kind)
        : path(
              (std::filesystem::temp_directory_path() / fmt::format("smelt_figure_{}_XXXXXX", kind))
                  .string()) {
      const int descriptor = ::mkstemp(path.data());
      if (descriptor < 0)
        throw error(path +
                    ": cannot create a temporary file; point TMPDIR to a folder that may be "
                    "written to");
      ::close(descriptor);
    }
    temporary_file(const temporary_file&) = delete;
    temporary_file& operator=(const temporary_file&) = delete;
    ~temporary_file() { ::unlink(path.c_str()); }
  };

  // The axes of one panel, its data and the plot itself.
  static void append(std::string& out, const figure_panel& panel, std::size_t number) {
    // Colors that stay apart for the colorblind (Okabe and Ito).
    constexpr std::array<std::string_view, 6> colors{"0072b2", "d55e00", "009e73",
                                                     "cc79a7", "555555", "e69f00"};
    out += fmt::format("set title {} font 'sans,15'\nset xlabel {}\nset ylabel {}\n",
                       quoted(panel.title), quoted(panel.x_label), quoted(panel.y_label));
    out += fmt::format("{} logscale x\n{} logscale y\n", panel.x_logarithmic ? "set" : "unset",
                       panel.y_logarithmic ? "set" : "unset");
    const auto limit = [](double value) {
      return std::isfinite(value) ? fmt::format("{:.9g}", value) : std::string("*");
    };
    out += fmt::format("set yrange [{}:{}]\n", limit(panel.y_lowest), limit(panel.y_highest));
    // Ticks as 200k or 1200k or 12M: x in the largest unit that leaves it two digits.
    constexpr std::array<std::string_view, 5> prefixes{"", "k", "M", "G", "T"};
    double largest = 0;
    for (const figure_panel::curve& curve : panel.curves)
      for (const double x : curve.x)
        if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
    std::size_t prefix = 0;
    double unit = 1;
    for (; largest >= 1e4 * unit && prefix + 1 < prefixes.size(); ++prefix) unit *= 1000;
    out += fmt::format("set format x '%g{}'\n", prefixes[prefix]);
    std::string plots;
    for (std::size_t c = 0; c < panel.curves.size(); ++c) {
      const figure_panel::curve& curve = panel.curves[c];
      std::string points;
      for (std::size_t i = 0; i < std::min(curve.x.size(), curve.y.size()); ++i)
        if (std::isfinite(curve.x[i]) && std::isfinite(curve.y[i]))
          points += fmt::format("{:.9g} {:.9g}\n", curve.x[i] / unit, curve.y[i]);
      if (points.empty()) continue;
      out += fmt::format("$data_{}_{} << END\n{}END\n", number, c, points);
      plots += fmt::format("{}$data_{}_{} using 1:2 with lines ",
                           plots.empty() ? "plot " : ", \\\n     ", number, c);
      const std::string_view color = colors[curve.color % colors.size()];
      if (curve.style == stroke::faint)
        plots += fmt::format("lw 1 lc rgb '#c0{}' notitle", color);  // c0: mostly transparent
      else
        plots +=
            fmt::format("lw {} lc rgb '#{}' {}", curve.style == stroke::line ? "2.5" : "1.5 dt 2",
                        color, curve.name.empty() ? "notitle" : "title " + quoted(curve.name));
    }
    if (plots.empty())
      throw error("figure: no point to draw over '" + panel.x_label +
                  "'; give a panel at least one");
    out += plots + "\n";
  }

  // In gnuplot's single quotes a quote is doubled and nothing else is special; a line break would
  // end the command.
  static std::string quoted(std::string_view text) {
    std::string out = "'";
    for (const char c : text) {
      if (c == '\'') out += '\'';
      out += c == '\n' ? ' ' : c;
    }
    return out + "'";
  }

  // What gnuplot complains of; it points at the place with lines of spaces and ^.
  static std::string first_words(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line))
      if (line.find_first_not_of(" \t^") != std::string::npos) return line.substr(0, 200);
    return "no message";
  }

  // Without a shell, so that no name of a file is ever a command. 127: no such program.
  static int run_gnuplot(const std::string& commands, const std::string& complaints) {
    std::string program = "gnuplot";
    std::string file = commands;
    std::array<char*, 3> arguments{program.data(), file.data(), nullptr};
    posix_spawn_file_actions_t streams;
    ::posix_spawn_file_actions_init(&streams);
    // Silent: a program that draws may have a progress line of its own on the screen.
    ::posix_spawn_file_actions_addopen(&streams, 1, "/dev/null", O_WRONLY, 0);
    ::posix_spawn_file_actions_addopen(&streams, 2, complaints.c_str(), O_WRONLY | O_TRUNC, 0600);
    ::pid_t child = 0;
    const int code =
        ::posix_spawnp(&child, "gnuplot", &streams, nullptr, arguments.data(), ::environ);
    ::posix_spawn_file_actions_destroy(&streams);
    if (code != 0) return 127;
    int status = 0;
    while (::waitpid(child, &status, 0) < 0)
      if (errno != EINTR) return 126;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  }
};

}  // namespace smelt
