// SPDX-License-Identifier: Apache-2.0
//
// How ranks that share nothing else come by a few bytes of rank 0: NCCL's id, 128 of them.
//
//   file:PATH        a path that all ranks reach, in a folder that exists; comm/nccl_file.hpp
//   tcp:HOST:PORT    the machine of rank 0 and a free port of it; comm/nccl_tcp.hpp
//
// What an earlier run left behind, a file or a process at the port, is not taken for this one. A
// rank that does not come is an error on the others within the timeout. With MPI none of this is
// needed: nccl takes the engine mpi as its launcher.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "smelt/comm/nccl_file.hpp"
#include "smelt/comm/nccl_launch.hpp"
#include "smelt/comm/nccl_tcp.hpp"
#include "smelt/error.hpp"

namespace smelt {

/// A process of a job and the place where its ranks meet.
struct nccl_rendezvous {
  launched_process process;
  /// "file:PATH" or "tcp:HOST:PORT", the same on every rank; one rank alone needs none.
  std::string address;

  /// By the launcher's variables; the place is SMELT_NCCL_RENDEZVOUS unless it is given.
  static nccl_rendezvous of_launcher(std::string address = {}) {
    const char* text = std::getenv("SMELT_NCCL_RENDEZVOUS");
    if (address.empty() && text != nullptr) address = text;
    return {launched(), address};
  }

  /// The bytes of rank 0, on every rank. Every rank calls with as many.
  /// @throws smelt::error where the ranks have not met within the timeout, naming who was missing.
  void share(std::span<std::byte> bytes, double timeout_seconds) const {
    if (process.ranks == 1) return;
    if (address.starts_with("file:") && address.size() > 5)
      detail::share_by_file(process, address.substr(5), bytes, timeout_seconds);
    else if (address.starts_with("tcp:"))
      detail::share_by_tcp(process, address.substr(4), bytes, timeout_seconds);
    else
      throw error("SMELT_NCCL_RENDEZVOUS: expected file:PATH or tcp:HOST:PORT, found '" + address +
                  "'; " + std::to_string(process.ranks) +
                  " ranks need a place to meet, or MPI as their launcher");
  }
};

}  // namespace smelt
