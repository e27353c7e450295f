// SPDX-License-Identifier: Apache-2.0
//
// Signals as a question: the first is an answer, the second the end, and a thread that is older
// than the blocking changes nothing.
#include "smelt/train/stop_signal.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

namespace {
using namespace smelt;

// How a child that runs body() ends: its exit code, or minus the signal.
template <class Body>
int ending_of(Body&& body) {
  const ::pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST_CASE("the first signal is seen when asked for, once and for all") {
  for (const int number : {SIGINT, SIGTERM, SIGUSR1}) {
    CAPTURE(number);
    const int code = ending_of([&] {
      stop_signal stop;
      if (stop.requested() || stop.number() != 0) return 1;
      ::kill(::getpid(), number);
      if (!stop.requested() || stop.number() != number) return 2;
      return stop.requested() ? 42 : 3;
    });
    CHECK(code == 42);
  }
}

TEST_CASE("a second signal ends the program") {
  const int code = ending_of([] {
    stop_signal stop;
    ::kill(::getpid(), SIGTERM);
    if (!stop.requested()) return 1;
    ::kill(::getpid(), SIGINT);
    return 2;
  });
  CHECK(code == -SIGINT);
}

TEST_CASE("threads inherit what is blocked; one that is older does not end the program either") {
  const int code = ending_of([] {
    std::atomic<bool> goes_on{true};
    const auto wait = [&goes_on] {
      while (goes_on) ::usleep(1000);
    };
    std::thread older(wait);
    stop_signal stop;
    std::thread younger(wait);
    ::kill(::getpid(), SIGTERM);
    // The system hands it to the older one, as soon as that runs.
    for (int i = 0; i < 5000 && !stop.requested(); ++i) ::usleep(1000);
    goes_on = false;
    older.join();
    younger.join();
    return stop.number() == SIGTERM ? 42 : 1;
  });
  CHECK(code == 42);
}

TEST_CASE("what was before is there again afterwards") {
  const int code = ending_of([] {
    ::signal(SIGTERM, SIG_DFL);  // not the test program's own handler
    { stop_signal stop; }
    ::kill(::getpid(), SIGTERM);
    return 1;
  });
  CHECK(code == -SIGTERM);
}

}  // namespace
