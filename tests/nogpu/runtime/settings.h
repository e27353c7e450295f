// SPDX-License-Identifier: Apache-2.0
//
// Environment variables, read once.
#pragma once
#include <string>
#include "device.h"

enum class Order { FORWARD, REVERSE, RANDOM };
enum class Level { OFF, WARN, ERROR };

struct Settings {
  int threads;  // NOGPU_THREADS: host threads that run blocks (default: cores)
  Order order;  // NOGPU_ORDER: forward | reverse | random[:SEED]
  u32 seed;
  Level
      divergence;  // NOGPU_DIVERGENCE: error | warn | off, for barriers not reached by all threads
  bool strict;     // NOGPU_STRICT=1: untranslated code and unnoticed faults make the process fail
  bool leakcheck;  // NOGPU_LEAKCHECK=1
  bool checks;     // NOGPU_CHECKS=0 drops the access checks from the kernels
  bool protect;    // NOGPU_PROTECT=0 lets host code touch device memory
  bool sanitize;   // NOGPU_SANITIZE=1 adds the shared-memory race check
  bool streams;    // NOGPU_STREAMS=1: streams that touch the same memory must be ordered
  bool verbose;    // NOGPU_VERBOSE=1: a line per launch
  bool eager;      // NOGPU_EAGER=1: translate all kernels of a module at once, in parallel
  u64 memory;      // NOGPU_MEMORY: device memory in MiB
  int multiprocessors;   // NOGPU_SMS
  int capability;        // NOGPU_CC: 80, 90, ...; 0: from the program's PTX
  double timeout;        // NOGPU_TIMEOUT: seconds a launch may spin
  u64 stack;             // NOGPU_STACK: KiB of stack per CUDA thread
  bool keep;             // NOGPU_KEEP=1: keeps the generated C++ beside the compiled kernel
  std::string cache;     // NOGPU_CACHE
  std::string optimize;  // NOGPU_OPT: compiler's optimisation flag for kernels
  std::string compiler;  // NOGPU_CXX
};
const Settings& settings();
std::string
support_directory();  // where the translator and device.h were installed: beside this library
void log_line(const char* format, ...)
    __attribute__((format(printf, 1, 2)));  // to stderr, prefixed "nogpu: "
