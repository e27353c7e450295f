// SPDX-License-Identifier: Apache-2.0
//
// The study as pictures, drawn by gnuplot, each as PNG and SVG:
//   loss       loss against compute, both architectures side by side, with their frontiers
//   residuals  what the surface misses, against tokens
//   gain       compute-equivalent gain against compute, with its band and the paper's points
//
// A script holds its data, so that one file redraws the picture. Names that come from the user's
// file are printed as they are (noenhanced): an underscore is no subscript.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "smelt/error.hpp"
#include "smelt/law/frontier.hpp"
#include "smelt/law/paper.hpp"
#include "study.hpp"

extern char** environ;

namespace scaling_law {

namespace detail {

// Okabe and Ito: apart for the colour-blind, and in grey.
inline constexpr std::array<std::string_view, 6> colors{"#0072b2", "#d55e00", "#009e73",
                                                        "#cc79a7", "#e69f00", "#555555"};

inline std::string_view color(std::size_t i) {
  return colors[i % colors.size()];
}

// In gnuplot's single quotes only the quote itself is special; a line break would end the command.
inline std::string quoted(std::string_view text) {
  std::string result = "'";
  for (const char c : text) {
    if (c == '\'') result += '\'';
    result += c == '\n' ? ' ' : c;
  }
  return result + "'";
}

/// Which of the wanted sparsities is nearest, in log of density: 84.6 % belongs to 85 %.
inline std::size_t nearest(const std::vector<double>& sparsities, double sparsity) {
  std::size_t best = 0;
  double distance = INFINITY;
  for (std::size_t i = 0; i < sparsities.size(); ++i) {
    const double here = std::fabs(std::log1p(-sparsities[i]) - std::log1p(-sparsity));
    if (here < distance) {
      distance = here;
      best = i;
    }
  }
  return best;
}

inline std::string sparsity_title(double sparsity) {
  return fmt::format("S {:.4g} %", 100 * sparsity);
}

inline std::string common_style() {
  return "set grid lc rgb '#e0e0e0' lt 1 lw 1\n"
         "set border 3 lc rgb '#444444'\nset tics nomirror\n"
         "set key noenhanced samplen 2 spacing 1.1\nset tmargin 3\n";
}

/// Ticks at 1, 2 and 5 times powers of ten: a range of one decade has few round numbers else.
inline std::string round_ticks(double low, double high) {
  std::string ticks;
  for (double power = std::pow(10, std::floor(std::log10(low))); power <= high; power *= 10) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double tick = factor * power;
      if (tick < low || tick > high) continue;
      ticks += (ticks.empty() ? "" : ", ") + fmt::format("{:.9g}", tick);
    }
  }
  return "set xtics (" + ticks + ")\n";
}

/// A data block; an empty one would be an error to gnuplot, so it gets a point that is not drawn.
inline std::string block(const std::string& name, const std::string& rows) {
  return "$" + name + " << END\n" + (rows.empty() ? "NaN NaN NaN NaN\n" : rows) + "END\n";
}

/// One plot command over several parts.
inline std::string plot(const std::vector<std::string>& parts) {
  std::string text = "plot ";
  for (std::size_t i = 0; i < parts.size(); ++i) text += (i == 0 ? "" : ", \\\n     ") + parts[i];
  return text + "\n";
}

}  // namespace detail

/// Loss against total compute F D: endpoints joined by cell, and the frontier at each sparsity.
inline std::string loss_script(const study& of) {
  const auto& sparsities = of.asked.sparsities;
  double low = INFINITY;
  double high = 0;
  for (const side& one : of.sides) {
    for (const endpoint& point : one.points) {
      low = std::min(low, point.loss);
      high = std::max(high, point.loss);
    }
  }
  const double room = 0.05 * (high - low);
  const double first = of.least_compute / 1.5;
  const double last = of.most_compute * 1.5;
  std::string text = detail::common_style();
  text += fmt::format(
      "set logscale x\nset format x '10^{{%L}}'\nset xrange [{:.6g}:{:.6g}]\n"
      "set yrange [{:.6g}:{:.6g}]\nset xlabel 'training compute C = F D, FLOPs'\n"
      "set ylabel 'loss, nats per token'\nset multiplot layout 1,{}\n",
      first, last, low - 3 * room, high + room, of.sides.size());
  for (std::size_t s = 0; s < of.sides.size(); ++s) {
    const side& one = of.sides[s];
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < sparsities.size(); ++i) {
      std::string curve;
      std::string points;
      const law::frontier line(one.fitted.coefficients, sparsities[i]);
      for (const double compute : law::compute_range(first, last, 80)) {
        curve += fmt::format("{:.9g} {:.9g}\n", compute, line.loss(compute));
      }
      std::string cell;
      for (const endpoint& point : one.points) {
        if (detail::nearest(sparsities, point.sparsity) != i) continue;
        // A blank line lifts the pen between cells.
        if (!cell.empty() && cell != point.cell) points += "\n";
        cell = point.cell;
        points += fmt::format("{:.9g} {:.9g}\n", point.flops_per_token * point.tokens, point.loss);
      }
      text += detail::block(fmt::format("frontier_{}_{}", s, i), curve);
      text += detail::block(fmt::format("points_{}_{}", s, i), points);
      const auto color = detail::color(i);
      parts.push_back(
          fmt::format("$points_{}_{} using 1:2 with linespoints lw 0.7 pt 7 ps 0.6 lc "
                      "rgb '{}' title {}",
                      s, i, color, detail::quoted(detail::sparsity_title(sparsities[i]))));
      parts.push_back(fmt::format(
          "$frontier_{}_{} using 1:2 with lines lw 2 dt (8,4) lc rgb '{}' notitle", s, i, color));
    }
    parts.push_back("NaN with lines lw 2 dt (8,4) lc rgb '#444444' title 'best at each C'");
    text += "set title " + detail::quoted(one.name) + " noenhanced\n" + detail::plot(parts);
  }
  return text + "unset multiplot\n";
}

/// Residuals in per cent of the loss against tokens.
inline std::string residual_script(const study& of) {
  const auto& sparsities = of.asked.sparsities;
  double size = 0;
  double least = INFINITY;
  double most = 0;
  for (const side& one : of.sides) {
    for (const auto& row : one.residuals) {
      size = std::max(size, 100 * std::fabs(row.residual_log));
      least = std::min(least, row.point.tokens);
      most = std::max(most, row.point.tokens);
    }
  }
  std::string text = detail::common_style();
  text += fmt::format(
      "set logscale x\nset format x '%.0s %c'\nset xrange [{:.6g}:{:.6g}]\n"
      "set yrange [{:.6g}:{:.6g}]\nset xlabel 'tokens D (G: 10^9)'\n"
      "set ylabel 'log predicted - log observed loss, %'\n"
      "set xzeroaxis lt 1 lw 1 lc rgb '#444444'\nset multiplot layout 1,{}\n",
      least / 1.2, most * 1.2, -1.25 * size, 1.25 * size, of.sides.size());
  text += detail::round_ticks(least / 1.2, most * 1.2);
  for (std::size_t s = 0; s < of.sides.size(); ++s) {
    const side& one = of.sides[s];
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < sparsities.size(); ++i) {
      std::string points;
      for (const auto& row : one.residuals) {
        if (detail::nearest(sparsities, row.point.sparsity) != i) continue;
        // Beside each other where they would hide each other: a shift of one per cent of D.
        const double shift =
            1 + 0.03 * (static_cast<double>(i) - 0.5 * static_cast<double>(sparsities.size() - 1));
        points += fmt::format("{:.9g} {:.9g}\n", row.point.tokens * shift, 100 * row.residual_log);
      }
      text += detail::block(fmt::format("points_{}_{}", s, i), points);
      parts.push_back(
          fmt::format("$points_{}_{} using 1:2 with points pt 7 ps 0.7 lc rgb '{}' title {}", s, i,
                      detail::color(i), detail::quoted(detail::sparsity_title(sparsities[i]))));
    }
    text += "set title " +
            detail::quoted(fmt::format("{}: RMSE {:.5f} nats", one.name, one.fitted.rmse_nats)) +
            " noenhanced\n" + detail::plot(parts);
  }
  return text + "unset multiplot\n";
}

/// Gain against compute with its band; what lies beyond the runs is marked as extrapolated.
inline std::string gain_script(const study& of) {
  const settings& asked = of.asked;
  std::vector<std::string> bands;
  std::vector<std::string> lines;
  std::string text = detail::common_style();
  double low = 0;
  double high = 0;
  double first = INFINITY;
  double last = 0;
  bool has_printed = false;
  for (std::size_t i = 0; i < asked.sparsities.size(); ++i) {
    std::string rows;
    for (const auto& at : of.bands[i]) {
      // Ends beyond the picture are cut, infinite ones too.
      const double bottom = std::max(100 * at.range.low, -200.0);
      const double top = std::min(100 * at.range.high, 100.0);
      rows += fmt::format("{:.9g} {:.9g} {:.9g} {:.9g}\n", at.compute_flops, 100 * at.gain, bottom,
                          top);
      // The range shown follows the lines and the bands between the runs, not a tail beyond them.
      low = std::min(low, 100 * at.gain);
      high = std::max(high, 100 * at.gain);
      if (at.compute_flops >= of.least_compute && at.compute_flops <= of.most_compute) {
        low = std::min(low, bottom);
        high = std::max(high, top);
      }
      first = std::min(first, at.compute_flops);
      last = std::max(last, at.compute_flops);
    }
    text += detail::block(fmt::format("gain_{}", i), rows);
    const auto color = detail::color(i);
    bands.push_back(fmt::format(
        "$gain_{} using 1:3:4 with filledcurves fs transparent solid 0.12 noborder lc rgb '{}' "
        "notitle",
        i, color));
    lines.push_back(fmt::format("$gain_{} using 1:2 with lines lw 2.5 lc rgb '{}' title {}", i,
                                color,
                                detail::quoted(detail::sparsity_title(asked.sparsities[i]))));
    std::string printed;
    for (const auto& row : law::paper::gains) {
      for (std::size_t k = 0; k < law::paper::sparsities.size(); ++k) {
        if (std::fabs(law::paper::sparsities[k] - asked.sparsities[i]) > 1e-9) continue;
        if (row.compute_flops < first * 0.999 || row.compute_flops > last * 1.001) continue;
        printed += fmt::format("{:.9g} {:.9g}\n", row.compute_flops, row.gain_percent[k]);
        high = std::max(high, row.gain_percent[k]);
      }
    }
    if (printed.empty()) continue;
    text += detail::block(fmt::format("printed_{}", i), printed);
    lines.push_back(fmt::format(
        "$printed_{} using 1:2 with points pt 6 ps 1.4 lw 1.5 lc rgb '{}' notitle", i, color));
    has_printed = true;
  }
  if (has_printed) {
    lines.push_back(
        "NaN with points pt 6 ps 1.4 lw 1.5 lc rgb '#444444' title 'the paper, printed'");
  }
  const double room = 0.06 * (high - low) + 0.5;
  text += fmt::format(
      "set logscale x\nset format x '10^{{%L}}'\nset xrange [{:.6g}:{:.6g}]\n"
      "set yrange [{:.6g}:{:.6g}]\nset xzeroaxis lt 1 lw 1 lc rgb '#444444'\n"
      "set xlabel 'training compute C of the target, FLOPs'\n"
      "set ylabel 'compute-equivalent gain, %'\nset key top left\nset title {} noenhanced\n",
      first, last, low - room, high + room,
      detail::quoted(
          fmt::format("Compute that {} saves over {}; band: {:.0f} % interval over cells",
                      of.sides[1].name, of.sides[0].name, 100 * asked.confidence)));
  if (last > of.most_compute * 1.01) {
    text += fmt::format(
        "set arrow from {0:.6g},graph 0 to {0:.6g},graph 1 nohead dt 3 lc rgb '#444444'\n"
        "set label 'beyond the runs' at {0:.6g},graph 0.04 offset 0.8,0 tc rgb '#444444'\n",
        of.most_compute);
  }
  bands.insert(bands.end(), lines.begin(), lines.end());
  return text + detail::plot(bands);
}

/// Whether the program that draws is there.
inline bool has_gnuplot() {
  const char* folders = std::getenv("PATH");
  std::string rest = folders != nullptr ? folders : "";
  while (!rest.empty()) {
    const std::size_t end = rest.find(':');
    const std::filesystem::path program = std::filesystem::path(rest.substr(0, end)) / "gnuplot";
    std::error_code ignored;
    if (std::filesystem::is_regular_file(program, ignored)) return true;
    rest = end == std::string::npos ? "" : rest.substr(end + 1);
  }
  return false;
}

/// Draws `script` into folder/name.png and folder/name.svg and leaves it as folder/name.gp.
/// Throws with gnuplot's first words if it fails.
inline void draw(const std::filesystem::path& folder, const std::string& name, int width,
                 int height, const std::string& script) {
  std::string whole = "# redraw: gnuplot " + name + ".gp\n";
  const std::string body = script + "unset output\nreset\n";
  for (const std::string kind : {"png", "svg"}) {
    whole += fmt::format("set terminal {} size {},{} font 'sans,{}' {}\nset output '{}.{}'\n",
                         kind == "png" ? "pngcairo" : "svg", width, height, 12,
                         kind == "svg" ? "background rgb 'white'" : "", name, kind);
    whole += body;
  }
  const std::filesystem::path path = folder / (name + ".gp");
  std::ofstream(path) << whole << std::flush;
  const std::string complaints = (folder / (name + ".err")).string();

  // Without a shell, so that no name of a file is ever a command; inside the folder, so that the
  // script works wherever the folder is moved.
  posix_spawn_file_actions_t streams;
  ::posix_spawn_file_actions_init(&streams);
  ::posix_spawn_file_actions_addopen(&streams, 1, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_addopen(&streams, 2, complaints.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                     0600);
  ::posix_spawn_file_actions_addchdir_np(&streams, folder.c_str());
  std::string program = "gnuplot";
  std::string file = name + ".gp";
  std::array<char*, 3> arguments{program.data(), file.data(), nullptr};
  ::pid_t child = 0;
  const int started =
      ::posix_spawnp(&child, "gnuplot", &streams, nullptr, arguments.data(), ::environ);
  ::posix_spawn_file_actions_destroy(&streams);
  int status = 0;
  if (started == 0) {
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  }
  std::string words;
  std::ifstream said(complaints);
  while (std::getline(said, words) && words.find_first_not_of(" \t^") == std::string::npos)
    continue;
  std::error_code ignored;
  const bool drawn = std::filesystem::file_size(folder / (name + ".png"), ignored) > 0 &&
                     !ignored &&
                     std::filesystem::file_size(folder / (name + ".svg"), ignored) > 0 && !ignored;
  if (started != 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0 || !drawn) {
    throw smelt::error(name + ": gnuplot failed: " + (words.empty() ? "no message" : words) +
                       "; --no-figures writes the tables alone");
  }
  std::filesystem::remove(complaints, ignored);
}

}  // namespace scaling_law
