// SPDX-License-Identifier: Apache-2.0
//
// run_state: what a run knows besides its weights, and takes along in the notes of a checkpoint.
//
// Exact both ways: a resumed run writes the same lines as an undisturbed one. A branch begins with
// that of the stable run at its point. Nothing in it depends on time or on the number of ranks.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>

#include "smelt/io/message.hpp"
#include "smelt/train/run_flops.hpp"
#include "smelt/train/run_spikes.hpp"

namespace smelt {

struct run_state {
  std::int64_t tokens = 0;        ///< that the weights have learned from
  flop_total flops{};             ///< spent: also on steps that were rejected
  std::int64_t bad_steps = 0;     ///< rejected so far
  std::int64_t bad_in_a_row = 0;  ///< and of these the last ones
  spike_watch losses{};           ///< of the last accepted steps
  double validation_loss = std::numeric_limits<double>::quiet_NaN();  ///< the newest, if any

  std::map<std::string, std::string> notes() const {
    return {{"tokens", std::to_string(tokens)},
            {"flops", flops.text()},
            {"bad_steps", std::to_string(bad_steps)},
            {"bad_in_a_row", std::to_string(bad_in_a_row)},
            {"losses", losses.text()},
            {"validation_loss", std::isnan(validation_loss) ? "" : exact_text(validation_loss)}};
  }

  /// @param place  the checkpoint's, for messages.
  /// @throws smelt::error where a note is missing or says something else than notes() writes.
  static run_state from(const std::map<std::string, std::string>& notes, const std::string& place) {
    const auto text = [&](const char* name) -> const std::string& {
      const auto found = notes.find(name);
      if (found == notes.end())
        throw detail::io_error(place + ": notes: " + name, "what the run wrote", "none",
                               "name a checkpoint of such a run");
      return found->second;
    };
    const auto number = [&](const char* name, auto& value) {
      const std::string& digits = text(name);
      const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value);
      if (read.ec != std::errc() || read.ptr != digits.data() + digits.size())
        throw detail::io_error(place + ": notes: " + name, "a number", detail::quoted_name(digits),
                               "use a checkpoint that is whole");
    };
    run_state state;
    number("tokens", state.tokens);
    state.flops = flop_total(text("flops"));
    number("bad_steps", state.bad_steps);
    number("bad_in_a_row", state.bad_in_a_row);
    state.losses = spike_watch::from(text("losses"));
    if (!text("validation_loss").empty()) number("validation_loss", state.validation_loss);
    return state;
  }
};

}  // namespace smelt
