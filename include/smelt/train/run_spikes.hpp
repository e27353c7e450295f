// SPDX-License-Identifier: Apache-2.0
//
// spike_watch: which loss is too high to learn from.
//
//   limit = mean + factor * deviation   of the losses of the last 100 accepted steps
//
// Armed once 20 steps were accepted; before that a mean says little, and only what is not a number
// is a bad step. A rejected loss does not enter. The sums are made anew from the losses in their
// order, so that a watch that was read back from a checkpoint gives the same bits.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <string_view>

#include "smelt/io/message.hpp"

namespace smelt {

/// "1.25": the shortest text that reads back as the same bits.
inline std::string exact_text(double value) {
  std::array<char, 32> digits{};
  return {digits.data(), std::to_chars(digits.begin(), digits.end(), value).ptr};
}

class spike_watch {
 public:
  static constexpr std::size_t window = 100;
  static constexpr std::size_t least = 20;

  /// The next step's loss must not be above it; infinity while the watch is not armed.
  /// @param factor  deviations above the mean; 0: no limit.
  double limit(double factor) const {
    if (factor <= 0.0 || count_ < least) return std::numeric_limits<double>::infinity();
    double sum = 0.0;
    each([&](double loss) { sum += loss; });
    const double mean = sum / static_cast<double>(count_);
    double squares = 0.0;
    each([&](double loss) { squares += (loss - mean) * (loss - mean); });
    // Above 0, as a limit must be.
    return std::max(mean + factor * std::sqrt(squares / static_cast<double>(count_)),
                    std::numeric_limits<double>::min());
  }

  /// The loss of a step that changed the weights.
  void accept(double loss) {
    losses_[next_] = loss;
    next_ = (next_ + 1) % window;
    if (count_ < window) ++count_;
  }

  /// The losses, the oldest first: all that there is to know.
  std::string text() const {
    std::string all;
    each([&](double loss) {
      if (!all.empty()) all += ' ';
      all += exact_text(loss);
    });
    return all;
  }

  /// Reads back what text() wrote.
  /// @throws smelt::error where that is no list of numbers.
  static spike_watch from(std::string_view text) {
    spike_watch watch;
    const char* const end = text.data() + text.size();
    for (const char* next = text.data(); next < end;) {
      double loss = 0.0;
      const auto read = std::from_chars(next, end, loss);
      if (read.ec != std::errc() || (read.ptr < end && *read.ptr != ' '))
        throw detail::io_error("losses of the last steps", "numbers", detail::quoted_name(text),
                               "use a checkpoint that is whole");
      watch.accept(loss);
      next = read.ptr + (read.ptr < end ? 1 : 0);
    }
    return watch;
  }

 private:
  template <class Use>
  void each(Use&& use) const {
    // A full ring begins where the next one goes.
    const std::size_t first = count_ < window ? 0 : next_;
    for (std::size_t i = 0; i < count_; ++i) use(losses_[(first + i) % window]);
  }

  std::array<double, window> losses_{};
  std::size_t count_ = 0;
  std::size_t next_ = 0;
};

}  // namespace smelt
