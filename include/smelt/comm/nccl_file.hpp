// SPDX-License-Identifier: Apache-2.0
//
// A rendezvous by files: bytes of rank 0 to all ranks of a job that share a folder.
//
//   PATH.rank<r>   rank r: "here", then "taken", each with a number that it drew for this run
//   PATH           rank 0, when all are here: those numbers, and the bytes
//
// Rank r takes the bytes only where its own number stands beside them, and rank 0 writes them anew
// when a number changes: whatever a run that died left at these paths is passed over and
// overwritten. Rank 0 returns when all have taken, and removes the files.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "smelt/comm/nccl_launch.hpp"
#include "smelt/comm/nccl_limit.hpp"
#include "smelt/error.hpp"

namespace smelt::detail {

/// What a rank writes of itself, and the head of what rank 0 writes.
struct rendezvous_note {
  char kind[8] = {};
  std::uint64_t number = 0;  // drawn by the rank; of rank 0, how many bytes follow

  bool is(const char* name) const { return std::strncmp(kind, name, sizeof kind) == 0; }
  static rendezvous_note of(const char* name, std::uint64_t number) {
    rendezvous_note note;
    std::strncpy(note.kind, name, sizeof note.kind - 1);
    note.number = number;
    return note;
  }
};

/// Two runs do not draw the same: neither the process nor the clock would be enough alone.
inline std::uint64_t rendezvous_number() {
  std::random_device draw;
  const auto ticks =
      static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  const std::uint64_t drawn = (std::uint64_t{draw()} << 32U) | draw();
  return drawn ^ (ticks * 0x9e3779b97f4a7c15U) ^ static_cast<std::uint64_t>(::getpid());
}

[[noreturn]] inline void rendezvous_error(const std::string& place, const char* call) {
  const int code = errno;
  throw error(place + ": " + call + ": expected success, found " +
              std::generic_category().message(code) + "; take a folder that all ranks may write");
}

/// A file that is there whole or not at all: readers never see a part of it.
inline void write_rendezvous(const std::string& path, std::span<const std::byte> bytes) {
  const std::string part = path + ".part";
  const int file = ::open(part.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
  if (file < 0) rendezvous_error("file:" + part, "open");
  const ::ssize_t written = ::write(file, bytes.data(), bytes.size());
  if (::close(file) != 0 || written != static_cast<::ssize_t>(bytes.size()))
    rendezvous_error("file:" + part, "write");
  if (::rename(part.c_str(), path.c_str()) != 0) rendezvous_error("file:" + path, "rename");
}

/// The whole file, or nothing where there is none.
inline std::vector<std::byte> read_rendezvous(const std::string& path) {
  std::vector<std::byte> bytes;
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    if (errno == ENOENT || errno == ESTALE) return bytes;
    rendezvous_error("file:" + path, "open");
  }
  std::byte piece[4096];
  ::ssize_t found = 0;
  while ((found = ::read(file, piece, sizeof piece)) > 0)
    bytes.insert(bytes.end(), piece, piece + found);
  ::close(file);
  return bytes;
}
inline rendezvous_note read_note(const std::string& path) {
  const std::vector<std::byte> bytes = read_rendezvous(path);
  rendezvous_note note;
  if (bytes.size() >= sizeof note) std::memcpy(&note, bytes.data(), sizeof note);
  return note;
}
inline void write_note(const std::string& path, const rendezvous_note& note) {
  write_rendezvous(path, std::as_bytes(std::span(&note, 1)));
}

// Files of other machines come into sight late whatever we do; this only spares the file server.
inline void rendezvous_pause() {
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

/// The part of rank 0.
inline void offer_by_file(std::int64_t ranks, const std::string& path,
                          std::span<const std::byte> bytes, const rendezvous_limit& limit) {
  const auto path_of = [&](std::int64_t rank) { return path + ".rank" + std::to_string(rank); };
  const auto size = static_cast<std::size_t>(ranks);
  std::vector<std::uint64_t> numbers(size, 0);
  std::vector<bool> here(size, false), taken(size, false);
  here[0] = taken[0] = true;
  const auto all_of = [](const std::vector<bool>& ranks_so_far) {
    return std::find(ranks_so_far.begin(), ranks_so_far.end(), false) == ranks_so_far.end();
  };
  while (!all_of(taken) && !limit.passed()) {
    bool news = false;
    for (std::size_t rank = 1; rank < size; ++rank) {
      if (taken[rank]) continue;
      const rendezvous_note note = read_note(path_of(static_cast<std::int64_t>(rank)));
      if (note.is("here") && (!here[rank] || note.number != numbers[rank])) {
        here[rank] = news = true;
        numbers[rank] = note.number;
      }
      // Without the other note before it, it is of another run.
      taken[rank] = here[rank] && note.is("taken");
    }
    if (news && all_of(here)) {
      const rendezvous_note head = rendezvous_note::of("bytes", bytes.size());
      std::vector<std::byte> all(sizeof head + size * sizeof(std::uint64_t) + bytes.size());
      std::memcpy(all.data(), &head, sizeof head);
      std::memcpy(all.data() + sizeof head, numbers.data(), size * sizeof(std::uint64_t));
      std::copy(bytes.begin(), bytes.end(), all.end() - static_cast<std::ptrdiff_t>(bytes.size()));
      write_rendezvous(path, all);
    }
    rendezvous_pause();
  }
  // In any case: the next run may take the same path.
  ::unlink(path.c_str());
  for (std::int64_t rank = 1; rank < ranks; ++rank) ::unlink(path_of(rank).c_str());
  for (const auto& [state, what] : {std::pair(&here, ", which did not come"),
                                    std::pair(&taken, ", which came and did not take the bytes")}) {
    const auto missing = std::find(state->begin(), state->end(), false);
    if (missing != state->end())
      limit.fail("file:" + path, "rank " + std::to_string(missing - state->begin()) + what);
  }
}

/// The part of any other rank.
inline void take_by_file(const launched_process& process, const std::string& path,
                         std::span<std::byte> bytes, const rendezvous_limit& limit) {
  const std::string own = path + ".rank" + std::to_string(process.rank);
  const auto ranks = static_cast<std::size_t>(process.ranks);
  const std::uint64_t number = rendezvous_number();
  write_note(own, rendezvous_note::of("here", number));
  const std::size_t expected =
      sizeof(rendezvous_note) + ranks * sizeof(std::uint64_t) + bytes.size();
  for (;;) {
    const std::vector<std::byte> found = read_rendezvous(path);
    rendezvous_note head;
    std::uint64_t mine = 0;
    if (found.size() == expected) {
      std::memcpy(&head, found.data(), sizeof head);
      std::memcpy(&mine,
                  found.data() + sizeof head +
                      static_cast<std::size_t>(process.rank) * sizeof(std::uint64_t),
                  sizeof mine);
    }
    if (head.is("bytes") && head.number == bytes.size() && mine == number) {
      std::copy(found.end() - static_cast<std::ptrdiff_t>(bytes.size()), found.end(),
                bytes.begin());
      write_note(own, rendezvous_note::of("taken", number));
      return;
    }
    if (limit.passed()) {
      ::unlink(own.c_str());
      limit.fail("file:" + path, "rank 0 of " + std::to_string(process.ranks) +
                                     " ranks, which writes this file when all are there");
    }
    rendezvous_pause();
  }
}

inline void share_by_file(const launched_process& process, const std::string& path,
                          std::span<std::byte> bytes, double timeout_seconds) {
  const rendezvous_limit limit(timeout_seconds, process.rank);
  if (process.rank == 0)
    offer_by_file(process.ranks, path, bytes, limit);
  else
    take_by_file(process, path, bytes, limit);
}

}  // namespace smelt::detail
