// SPDX-License-Identifier: Apache-2.0
//
// A rendezvous by TCP: rank 0 listens at a port, every other rank connects and gets the bytes.
//
//   rank r -> 0   hello: who asks, for which job
//   rank 0 -> r   the bytes
//   rank r -> 0   thanks, one byte: until then rank 0 waits for another try
//
// A port that is taken is an error on rank 0, as a run that hangs may sit there. Whoever is not a
// rank of this job gets nothing: where the launcher names its jobs, ranks of an earlier one are
// told apart by that name. The bytes travel in clear, as all that NCCL sends.
#pragma once

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
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

/// Owns a socket; negative: none.
class tcp_socket {
 public:
  explicit tcp_socket(int number = -1) : number_(number) {}
  tcp_socket(tcp_socket&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  tcp_socket& operator=(tcp_socket&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~tcp_socket() {
    if (number_ >= 0) ::close(number_);
  }
  int number() const { return number_; }
  bool is_open() const { return number_ >= 0; }

  /// Whether something can be read (or written) within this time.
  bool ready(short events, int milliseconds) const {
    ::pollfd what{number_, events, 0};
    return ::poll(&what, 1, milliseconds) > 0;
  }
  /// All of the bytes, or false: the other side is slow or gone.
  bool send(std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      // No signal: the other side may have gone.
      const ::ssize_t moved = ::send(number_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (moved <= 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(moved));
    }
    return true;
  }
  bool receive(std::span<std::byte> bytes) const {
    while (!bytes.empty()) {
      const ::ssize_t moved = ::recv(number_, bytes.data(), bytes.size(), 0);
      if (moved <= 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(moved));
    }
    return true;
  }
  /// A silent peer, which is none of ours, must not hold up the others for long.
  void set_patience(int milliseconds) const {
    ::timeval time{};
    time.tv_sec = milliseconds / 1000;
    time.tv_usec = (milliseconds % 1000) * 1000;
    ::setsockopt(number_, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    ::setsockopt(number_, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
  }

 private:
  int number_;
};
inline constexpr int tcp_patience_milliseconds = 2000;

/// What a rank says of itself. All ranks of a job are of one program, so its memory may travel.
struct tcp_hello {
  char kind[8] = {'s', 'm', 'e', 'l', 't', 'i', 'd', '1'};
  std::uint64_t job = 0;
  std::int64_t rank = 0;
  std::int64_t ranks = 0;
  std::uint64_t bytes = 0;

  static tcp_hello of(const launched_process& process, std::size_t bytes) {
    tcp_hello hello;
    // FNV-1a: std::hash may differ from process to process.
    hello.job = 14695981039346656037U;
    for (const char c : process.job)
      hello.job = (hello.job ^ static_cast<unsigned char>(c)) * 1099511628211U;
    hello.rank = process.rank;
    hello.ranks = process.ranks;
    hello.bytes = bytes;
    return hello;
  }
  bool same_job(const tcp_hello& other) const {
    return std::memcmp(kind, other.kind, sizeof kind) == 0 && job == other.job &&
           ranks == other.ranks && bytes == other.bytes;
  }
};

/// "HOST:PORT" or "[v6]:PORT".
struct tcp_address {
  std::string host;
  std::string port;

  static tcp_address of(const std::string& text) {
    const std::size_t colon = text.rfind(':');
    if (colon == std::string::npos || colon == 0 || colon + 1 == text.size())
      throw error("tcp:" + text +
                  ": expected tcp:HOST:PORT, the machine of rank 0 and a free port");
    tcp_address address{text.substr(0, colon), text.substr(colon + 1)};
    if (address.host.size() > 2 && address.host.front() == '[' && address.host.back() == ']')
      address.host = address.host.substr(1, address.host.size() - 2);
    return address;
  }
  /// Calls try_at(socket, addrinfo) for each address until it returns true. Says in `why` what
  /// failed.
  template <class Try>
  tcp_socket first(std::string& why, Try&& try_at) const {
    return first_of(host.c_str(), AF_UNSPEC, why, try_at);
  }
  /// The same for listening, on all of this machine: the name of rank 0 may mean one of its
  /// addresses here and another one elsewhere. An IPv6 socket takes callers of both kinds.
  template <class Try>
  tcp_socket first_to_listen(std::string& why, Try&& try_at) const {
    tcp_socket made = first_of(nullptr, AF_INET6, why, try_at);
    return made.is_open() ? std::move(made) : first_of(nullptr, AF_INET, why, try_at);
  }

 private:
  template <class Try>
  tcp_socket first_of(const char* name, int family, std::string& why, Try&& try_at) const {
    ::addrinfo hints{};
    hints.ai_family = family;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE;  // of no meaning with a name
    ::addrinfo* list = nullptr;
    const int code = ::getaddrinfo(name, port.c_str(), &hints, &list);
    if (code != 0) {
      why = ::gai_strerror(code);
      return tcp_socket();
    }
    const std::unique_ptr<::addrinfo, void (*)(::addrinfo*)> owner(list, ::freeaddrinfo);
    for (const ::addrinfo* at = list; at != nullptr; at = at->ai_next) {
      tcp_socket made(::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol));
      if (made.is_open() && try_at(made, *at)) return made;
      why = std::generic_category().message(errno);
    }
    return tcp_socket();
  }
};

/// The part of rank 0.
inline void offer_by_tcp(const launched_process& process, const std::string& text,
                         std::span<const std::byte> bytes, const rendezvous_limit& limit) {
  std::string why;
  const tcp_socket listener =
      tcp_address::of(text).first_to_listen(why, [](const tcp_socket& made, const ::addrinfo& at) {
        // A port that was just left may be taken again; one at which somebody listens may not.
        const int on = 1, off = 0;
        ::setsockopt(made.number(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        ::setsockopt(made.number(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
        return ::bind(made.number(), at.ai_addr, at.ai_addrlen) == 0 &&
               ::listen(made.number(), 512) == 0;
      });
  if (!listener.is_open())
    throw error("tcp:" + text + ": rank 0 cannot listen: expected a free port, found " + why +
                "; take another port, or end the run that has it");
  const tcp_hello own = tcp_hello::of(process, bytes.size());
  std::vector<bool> met(static_cast<std::size_t>(process.ranks), false);
  met[0] = true;
  for (;;) {
    const auto missing = std::find(met.begin(), met.end(), false);
    if (missing == met.end()) return;
    if (limit.passed())
      limit.fail("tcp:" + text,
                 "rank " + std::to_string(missing - met.begin()) + ", which did not come");
    if (!listener.ready(POLLIN, limit.milliseconds(1000))) continue;
    const tcp_socket peer(::accept(listener.number(), nullptr, nullptr));
    if (!peer.is_open()) continue;
    peer.set_patience(tcp_patience_milliseconds);
    tcp_hello hello;
    if (!peer.receive(std::as_writable_bytes(std::span(&hello, 1))) || !hello.same_job(own) ||
        hello.rank < 1 || hello.rank >= process.ranks)
      continue;
    // A rank whose first try broke off asks again and is answered again.
    std::byte thanks{};
    if (peer.send(bytes) && peer.receive(std::span(&thanks, 1)))
      met[static_cast<std::size_t>(hello.rank)] = true;
  }
}

/// The part of any other rank: rank 0 may begin to listen later, so a refusal is no error yet.
inline void take_by_tcp(const launched_process& process, const std::string& text,
                        std::span<std::byte> bytes, const rendezvous_limit& limit) {
  const tcp_address address = tcp_address::of(text);
  const tcp_hello own = tcp_hello::of(process, bytes.size());
  std::string why = "no answer";
  while (!limit.passed()) {
    const tcp_socket rank_0 = address.first(why, [&](const tcp_socket& made, const ::addrinfo& at) {
      made.set_patience(std::max(1, limit.milliseconds(tcp_patience_milliseconds)));
      return ::connect(made.number(), at.ai_addr, at.ai_addrlen) == 0;
    });
    if (rank_0.is_open()) {
      why = "a process that does not take this for a rank of its job";
      const std::byte thanks{1};
      if (rank_0.send(std::as_bytes(std::span(&own, 1))) && rank_0.receive(bytes) &&
          rank_0.send(std::span(&thanks, 1)))
        return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(limit.milliseconds(20)));
  }
  limit.fail("tcp:" + text, "rank 0, where it found " + why);
}

inline void share_by_tcp(const launched_process& process, const std::string& address,
                         std::span<std::byte> bytes, double timeout_seconds) {
  const rendezvous_limit limit(timeout_seconds, process.rank);
  if (process.rank == 0)
    offer_by_tcp(process, address, bytes, limit);
  else
    take_by_tcp(process, address, bytes, limit);
}

}  // namespace smelt::detail
