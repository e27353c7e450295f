// SPDX-License-Identifier: Apache-2.0
//
// progress: how far a run is, on one line.
//
//   [########--------]  120/400 smelt  loss 2.412  13.1 k tok/s  MFU 43.2 %  1.25 GB  1:20 left
//
// On a terminal the line is redrawn in place, at most ten times a second; into a file or pipe a
// line is written at the first step, then every ten seconds, and at the last.
#pragma once

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>

#include "smelt/report/quantity.hpp"

namespace smelt {

/// Where a progress line goes.
struct progress_screen {
  std::FILE* file = stdout;
  bool in_place = false;  // a terminal that a line can be redrawn on
  int columns = 100;

  /// What kind of thing a stream is, and how wide.
  static progress_screen of(std::FILE* file) {
    progress_screen screen{file, ::isatty(::fileno(file)) != 0, 100};
    winsize size{};
    if (screen.in_place && ::ioctl(::fileno(file), TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
      screen.columns = size.ws_col;
    return screen;
  }
};

/// Bytes of this process that are in memory now; negative where the system does not say.
inline double resident_bytes() {
  // Linux: pages in all, then resident pages.
  std::ifstream file("/proc/self/statm");
  double all = 0;
  double resident = 0;
  if (!(file >> all >> resident)) return -1;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

class progress {
 public:
  /// What a line says. Figures that are not known yet stay negative and are left out.
  struct point {
    std::int64_t step = 0;  // done, of `steps`
    std::string_view label{};
    double loss = -1;
    double tokens_per_second = -1;
    double mfu = -1;  // model FLOPs per second over those of the hardware, a fraction
    double resident_bytes = -1;
  };

  /// `steps` of all subjects together: the bar is full when the last of them is done. The first
  /// `before` of them were done by an earlier program and took none of the time.
  progress(progress_screen screen, std::int64_t steps, std::int64_t before = 0)
      : screen_(screen), steps_(steps), before_(before) {}
  progress(const progress&) = delete;
  progress& operator=(const progress&) = delete;
  /// What is written next, an error for instance, begins a line of its own.
  ~progress() { end_line(); }

  /// `seconds` since the first step began; remaining time assumes that the rest goes as fast.
  void show(const point& at, double seconds) {
    const double pause = screen_.in_place ? 0.1 : 10.0;
    if (shown_ && at.step < steps_ && seconds < last_shown_ + pause) return;
    shown_ = true;
    last_shown_ = seconds;
    const std::string text = line(at, seconds);
    if (screen_.in_place)
      fmt::print(screen_.file, "\r{}\x1b[K", text);  // to the line's start; clear what is left over
    else
      fmt::print(screen_.file, "{}\n", text);
    std::fflush(screen_.file);
    open_line_ = screen_.in_place;
  }

  /// Ends a line that is being redrawn, so that other text can follow.
  void end_line() {
    if (open_line_) std::fputc('\n', screen_.file);
    open_line_ = false;
    shown_ = false;
  }

  /// The line itself, cut to the width of the screen.
  std::string line(const point& at, double seconds) const {
    std::string text =
        fmt::format("{:>{}}/{} {}", at.step, std::to_string(steps_).size(), steps_, at.label);
    if (at.loss >= 0) text += fmt::format("  loss {:.3f}", at.loss);
    if (at.tokens_per_second >= 0)
      text += fmt::format("  {:>12}", scaled(at.tokens_per_second, " tok/s"));
    if (at.mfu >= 0) text += fmt::format("  MFU {:>6}", percent(at.mfu));
    if (at.resident_bytes >= 0) text += fmt::format("  {}", scaled(at.resident_bytes, "B"));
    if (at.step > before_ && at.step < steps_)
      text += fmt::format("  {} left", clock_time(seconds / static_cast<double>(at.step - before_) *
                                                  static_cast<double>(steps_ - at.step)));
    else if (at.step >= steps_)
      text += fmt::format("  {} taken", clock_time(seconds));
    // The bar takes what the words leave, and is the first to go on a narrow screen. A terminal's
    // last column stays free: writing there would wrap.
    const int room = screen_.columns - 1 - static_cast<int>(text.size()) - 4;
    if (room >= 5) text = bar(at.step, std::min(room, 32)) + "  " + text;
    return text.substr(0, static_cast<std::size_t>(std::max(screen_.columns - 1, 0)));
  }

 private:
  // Plain ASCII: a log may be read anywhere.
  std::string bar(std::int64_t step, int width) const {
    const double share = steps_ > 0 ? static_cast<double>(step) / static_cast<double>(steps_) : 1.0;
    const auto full = static_cast<std::size_t>(std::clamp(share, 0.0, 1.0) * width);
    return '[' + std::string(full, '#') + std::string(static_cast<std::size_t>(width) - full, '-') +
           ']';
  }

  progress_screen screen_;
  std::int64_t steps_;
  std::int64_t before_;
  bool shown_ = false;
  bool open_line_ = false;
  double last_shown_ = 0;
};

}  // namespace smelt
