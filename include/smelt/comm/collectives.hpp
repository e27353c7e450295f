// SPDX-License-Identifier: Apache-2.0
//
// What several ranks do together: one interface, one class per engine (alone, mpi, nccl).
//
//   rank(), size(), name()
//   barrier()
//   all_reduce_sum(run, T* data, count)       data = sum of all ranks' data, on every rank
//   reduce_scatter_sum(run, T* data, count)   the same, in the rank's own shard of data only
//   all_gather(run, T* data, count)           every rank's own shard, to every rank
//   broadcast(run, T* data, count, root)
//   all_to_all(run, const T* send, send_counts, T* receive, receive_counts)
//   begin_all_reduce_sum(run, T* data, count, pending<T>&, part = 0)   returns at once; see below
//
// Everything works in place on the memory of the policy `run`. Every rank calls the same collective
// with the same type, count and root, in the same order. Counts may be 0, and in all_to_all they
// may differ from pair to pair: parts lie one behind the other in the order of the ranks, and what
// rank a sends to b is as long as what b receives from a.
//
// Sums are made once and then passed on: every rank holds the same bits. alone and mpi add in the
// order of the ranks, ((x0 + x1) + x2) + ..., whatever the buckets and the timing; nccl in an order
// of its own.
//
// Bytes sent by one rank of r, for n elements that r divides, as budget/traffic.hpp counts them:
//   reduce_scatter_sum and all_gather (r - 1) n / r each, all_reduce_sum both
//
// A pending<T> is a sum under way: advance() lets it make progress and says whether it is finished,
// finish() waits for it. Until then nobody touches its data. It may be begun again afterwards.
// `part` is a number that the ranks compare, so that sums of equal length cannot be mistaken.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "smelt/error.hpp"
#include "smelt/exec/bf16.hpp"

namespace smelt {

/// What a sum may be of; integers for counts, which must be exact.
template <class T>
concept summed_element =
    std::same_as<T, float> || std::same_as<T, double> || std::same_as<T, std::int64_t>;

/// What may travel. Sums of bf16 would lose what the gradients hold, so it travels as it is.
template <class T>
concept sent_element = summed_element<T> || std::same_as<T, bf16> ||
    std::same_as<T, std::int32_t> || std::same_as<T, std::byte>;

/// Elements [begin, end) of an array.
struct element_range {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  constexpr std::int64_t count() const { return end - begin; }
  constexpr bool operator==(const element_range&) const = default;
};

/// How `count` elements are divided among ranks: ceil(count / ranks) each; the last may have fewer
/// or none.
struct shards {
  std::int64_t count = 0;
  std::int64_t ranks = 1;

  constexpr std::int64_t largest() const { return (count + ranks - 1) / ranks; }
  constexpr element_range of(std::int64_t rank) const {
    const std::int64_t begin = std::min(count, rank * largest());
    return {begin, std::min(count, begin + largest())};
  }
};

/// The collectives, as messages and counters name them.
enum class collective {
  barrier,
  all_reduce_sum,
  reduce_scatter_sum,
  all_gather,
  broadcast,
  all_to_all
};
inline constexpr std::size_t collective_kinds = 6;

/// Payload that this rank handed to the network, in bytes; what it keeps for itself is not sent.
struct sent_bytes {
  std::array<std::int64_t, collective_kinds> by_kind{};
  std::int64_t control = 0;  // barriers, and the checks that all ranks do the same

  constexpr std::int64_t of(collective kind) const {
    return by_kind[static_cast<std::size_t>(kind)];
  }
  constexpr sent_bytes& operator+=(const sent_bytes& more) {
    for (std::size_t kind = 0; kind < collective_kinds; ++kind) by_kind[kind] += more.by_kind[kind];
    control += more.control;
    return *this;
  }
};

namespace detail {
inline const char* collective_name(std::int64_t kind) {
  constexpr std::array<const char*, collective_kinds> names{
      "barrier", "all_reduce_sum", "reduce_scatter_sum", "all_gather", "broadcast", "all_to_all"};
  return kind >= 0 && kind < static_cast<std::int64_t>(names.size())
             ? names[static_cast<std::size_t>(kind)]
             : "an unknown collective";
}

// Types by number: what travels in a check, and their names in a message.
template <sent_element T>
inline constexpr std::int64_t element_number = std::same_as<T, float>          ? 0
                                               : std::same_as<T, double>       ? 1
                                               : std::same_as<T, std::int64_t> ? 2
                                               : std::same_as<T, bf16>         ? 3
                                               : std::same_as<T, std::int32_t> ? 4
                                                                               : 5;
inline const char* element_name(std::int64_t number) {
  constexpr std::array<const char*, 6> names{"float", "double", "int64", "bf16", "int32", "bytes"};
  return number >= 0 && number < static_cast<std::int64_t>(names.size())
             ? names[static_cast<std::size_t>(number)]
             : "an unknown type";
}

// The checks that need no other rank, the same for every engine.
inline void expect_count(collective kind, std::int64_t count) {
  if (count < 0)
    throw error(std::string(collective_name(static_cast<std::int64_t>(kind))) +
                ": expected 0 or more elements, found " + std::to_string(count));
}
inline void expect_root(std::int64_t root, std::int64_t ranks) {
  if (root < 0 || root >= ranks)
    throw error("broadcast: expected a root from 0 to " + std::to_string(ranks - 1) + ", found " +
                std::to_string(root));
}
inline void expect_counts(std::span<const std::int64_t> send, std::span<const std::int64_t> receive,
                          std::int64_t rank, std::int64_t ranks) {
  const auto expected = static_cast<std::size_t>(ranks);
  if (send.size() != expected || receive.size() != expected)
    throw error("all_to_all: expected one count per rank, " + std::to_string(ranks) + ", found " +
                std::to_string(send.size()) + " to send and " + std::to_string(receive.size()) +
                " to receive");
  for (const std::int64_t count : send) expect_count(collective::all_to_all, count);
  for (const std::int64_t count : receive) expect_count(collective::all_to_all, count);
  const auto own = static_cast<std::size_t>(rank);
  if (send[own] != receive[own])
    throw error("all_to_all: rank " + std::to_string(rank) + " sends itself " +
                std::to_string(send[own]) + " elements and expects " +
                std::to_string(receive[own]) + "; the two must agree");
}
}  // namespace detail

/// What a room that works on several ranks asks of an engine, for a policy whose memory it reaches.
template <class Engine, class Policy>
concept collectives = requires(Engine& ranks, const Policy& run, float* data, const float* constant,
                               std::int64_t count, std::span<const std::int64_t> counts,
                               typename Engine::template pending<float>& under_way) {
  { ranks.rank() } -> std::same_as<std::int64_t>;
  { ranks.size() } -> std::same_as<std::int64_t>;
  { ranks.name() } -> std::convertible_to<std::string_view>;
  ranks.barrier();
  ranks.all_reduce_sum(run, data, count);
  ranks.reduce_scatter_sum(run, data, count);
  ranks.all_gather(run, data, count);
  ranks.broadcast(run, data, count, count);
  ranks.all_to_all(run, constant, counts, data, counts);
  ranks.begin_all_reduce_sum(run, data, count, under_way, count);
  { under_way.advance() } -> std::same_as<bool>;
  under_way.finish();
};

/// Compares a text of every rank, for instance seed, options or the architecture, with that of rank
/// 0. For the start of a run: it allocates. `run` is a policy whose memory is the host's.
/// @throws smelt::agreed_error on all ranks, naming the first rank that has another one.
template <class Engine, class Policy>
requires collectives<Engine, Policy>
void expect_same(Engine& ranks, const Policy& run, std::string_view what, std::string_view text) {
  const auto size = static_cast<std::size_t>(ranks.size());
  const auto own = static_cast<std::size_t>(ranks.rank());
  std::vector<std::int64_t> lengths(size);
  lengths[own] = static_cast<std::int64_t>(text.size());
  ranks.all_gather(run, lengths.data(), ranks.size());
  // Each rank's text in a field of its own, as wide as the longest.
  const auto width = static_cast<std::size_t>(*std::max_element(lengths.begin(), lengths.end()));
  std::vector<std::byte> texts(size * width);
  std::transform(text.begin(), text.end(), texts.begin() + static_cast<std::ptrdiff_t>(own * width),
                 [](char c) { return static_cast<std::byte>(c); });
  ranks.all_gather(run, texts.data(), static_cast<std::int64_t>(texts.size()));
  const auto text_of = [&](std::size_t rank) {
    std::string found;
    for (std::size_t i = 0; i < static_cast<std::size_t>(lengths[rank]); ++i)
      found.push_back(static_cast<char>(texts[rank * width + i]));
    return found;
  };
  const std::string expected = text_of(0);
  for (std::size_t rank = 1; rank < size; ++rank)
    if (text_of(rank) != expected)
      throw agreed_error("rank " + std::to_string(rank) + ": " + std::string(what) +
                         ": expected '" + expected + "' as on rank 0, found '" + text_of(rank) +
                         "'; start all ranks with the same program and options");
}

}  // namespace smelt
