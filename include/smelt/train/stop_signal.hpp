// SPDX-License-Identifier: Apache-2.0
//
// stop_signal: SIGINT, SIGTERM and SIGUSR1 as a question that a program asks between steps.
//
//   int main() {
//     smelt::stop_signal stop;       // first of all: threads inherit what is blocked
//     while (!stop.requested()) ...  // a step
//   }
//
// No handler runs on a thread that computes. Generated code of matrix libraries may keep data below
// its stack pointer, where the frame of a handler would be written; a handler that only set a flag
// broke a few runs in a hundred that way. So the signals are blocked and asked for. Threads that
// are older than main (OpenBLAS has some) do not inherit that and get a handler: they wait in the
// system, where a frame harms nothing.
//
// The first signal is an answer, a second one ends the program at once. mpirun passes SIGUSR1 on to
// all ranks; of its own SIGTERM it leaves them one second (mpirun --mca odls_base_sigkill_timeout).
#pragma once

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>

namespace smelt {

/// One at a time in a program, made in main before anything that starts threads.
class stop_signal {
 public:
  stop_signal() {
    ::sigemptyset(&asked_);
    for (const int number : numbers) ::sigaddset(&asked_, number);
    seen_by_handler() = 0;
    struct ::sigaction action {};
    action.sa_handler = [](int number) { seen_by_handler() = number; };
    action.sa_flags = SA_RESTART | SA_ONSTACK;
    ::sigfillset(&action.sa_mask);
    for (std::size_t i = 0; i < numbers.size(); ++i) ::sigaction(numbers[i], &action, &before_[i]);
    ::pthread_sigmask(SIG_BLOCK, &asked_, &mask_before_);
  }
  stop_signal(const stop_signal&) = delete;
  stop_signal& operator=(const stop_signal&) = delete;
  ~stop_signal() {
    for (std::size_t i = 0; i < numbers.size(); ++i) ::sigaction(numbers[i], &before_[i], nullptr);
    ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
  }

  /// Whether a signal came, and then for ever. Costs one system call; to be asked by the thread
  /// that made this, between steps.
  bool requested() {
    if (number_ != 0) return true;
    number_ = seen_by_handler();
    // What was sent to the process waits for it.
    const ::timespec at_once{};
    while (number_ == 0) {
      const int found = ::sigtimedwait(&asked_, nullptr, &at_once);
      if (found < 0 && errno == EINTR) continue;
      if (found < 0) return false;
      number_ = found;
    }
    // From here on the system's own answer: the end. Only now, so that it cannot be the first's.
    for (const int number : numbers) ::signal(number, SIG_DFL);
    ::pthread_sigmask(SIG_UNBLOCK, &asked_, nullptr);
    return true;
  }

  /// Which one came, or 0.
  int number() const { return number_; }

 private:
  static constexpr std::array<int, 3> numbers{SIGINT, SIGTERM, SIGUSR1};

  static std::atomic<int>& seen_by_handler() {
    static std::atomic<int> number{0};
    static_assert(std::atomic<int>::is_always_lock_free);
    return number;
  }

  ::sigset_t asked_{};
  ::sigset_t mask_before_{};
  std::array<struct ::sigaction, numbers.size()> before_{};
  int number_ = 0;
};

}  // namespace smelt
