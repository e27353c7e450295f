// SPDX-License-Identifier: Apache-2.0
//
// together: something that may fail on some of the ranks, such as opening a file, done by all.
//
// Where it fails anywhere, every rank throws the same agreed_error: one line is printed and no rank
// waits for one that is gone. Meant for starts and ends: it meets twice, once more on a failure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "smelt/comm/collectives.hpp"
#include "smelt/exec/policy.hpp"

namespace smelt {

/// Runs body() on this rank. Every rank calls; `control` is a policy whose memory is the host's.
/// @throws smelt::agreed_error on all ranks with the message of the first one that failed.
template <class Engine, class Body>
void together(Engine& ranks, const host<float>& control, Body&& body) {
  std::string message;
  try {
    body();
  } catch (const error& e) {
    message = e.what();
    if (message.empty()) message = "an error without a word";
  }
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(ranks.size()));
  const auto own = static_cast<std::size_t>(ranks.rank());
  lengths[own] = static_cast<std::int64_t>(message.size());
  ranks.all_gather(control, lengths.data(), ranks.size());
  const auto failed =
      std::find_if(lengths.begin(), lengths.end(), [](std::int64_t length) { return length > 0; });
  if (failed == lengths.end()) return;
  // The others may have failed with other words: those of the first are everybody's.
  std::vector<std::byte> text(static_cast<std::size_t>(*failed));
  if (failed - lengths.begin() == static_cast<std::ptrdiff_t>(own))
    std::transform(message.begin(), message.end(), text.begin(),
                   [](char c) { return static_cast<std::byte>(c); });
  ranks.broadcast(control, text.data(), *failed, failed - lengths.begin());
  message.clear();
  for (const std::byte byte : text) message.push_back(static_cast<char>(byte));
  throw agreed_error(message);
}

}  // namespace smelt
