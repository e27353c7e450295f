// SPDX-License-Identifier: Apache-2.0
#include "settings.h"
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

static std::string text(const char* name, const std::string& fallback) {
  const char* v = getenv(name);
  return v && *v ? v : fallback;
}
static long number(const char* name, long fallback) {
  const char* v = getenv(name);
  return v && *v ? strtol(v, nullptr, 0) : fallback;
}
static bool flag(const char* name, bool fallback) {
  return number(name, fallback) != 0;
}

static std::string default_cache() {
  if (const char* x = getenv("XDG_CACHE_HOME"); x && *x) return std::string(x) + "/nogpu/kernels";
  const char* home = getenv("HOME");
  if (home && *home && access(home, W_OK) == 0) return std::string(home) + "/.cache/nogpu/kernels";
  return "/tmp/nogpu-" + std::to_string(getuid()) + "/kernels";
}

static Settings read_settings() {
  Settings s;
  int cores = (int)std::thread::hardware_concurrency();
  s.threads = (int)number("NOGPU_THREADS", cores > 0 ? cores : 1);
  if (s.threads < 1) s.threads = 1;
  std::string order = text("NOGPU_ORDER", "forward");
  s.order = order.rfind("rev", 0) == 0    ? Order::REVERSE
            : order.rfind("rand", 0) == 0 ? Order::RANDOM
                                          : Order::FORWARD;
  size_t colon = order.find(':');
  s.seed =
      colon == std::string::npos ? 12345u : (u32)strtoul(order.c_str() + colon + 1, nullptr, 0);
  std::string divergence = text("NOGPU_DIVERGENCE", "error");
  s.divergence = divergence == "off"    ? Level::OFF
                 : divergence == "warn" ? Level::WARN
                                        : Level::ERROR;
  s.strict = flag("NOGPU_STRICT", true);
  s.leakcheck = flag("NOGPU_LEAKCHECK", false);
  s.checks = flag("NOGPU_CHECKS", true);
  s.protect = flag("NOGPU_PROTECT", true);
  s.sanitize = flag("NOGPU_SANITIZE", false);
  s.streams = flag("NOGPU_STREAMS", false);
  s.verbose = flag("NOGPU_VERBOSE", false);
  s.keep = flag("NOGPU_KEEP", false);
  s.eager = flag("NOGPU_EAGER", false);
  s.memory = (u64)number("NOGPU_MEMORY", 8192) << 20;
  s.multiprocessors = (int)number("NOGPU_SMS", 4);
  s.capability = (int)number("NOGPU_CC", 0);
  s.timeout = (double)number("NOGPU_TIMEOUT", 300);
  s.stack = (u64)number("NOGPU_STACK", 256) << 10;
  s.cache = text("NOGPU_CACHE", default_cache());
  s.optimize = text("NOGPU_OPT", "-O1");
  s.compiler = text("NOGPU_CXX", "g++");
  return s;
}

const Settings& settings() {
  static const Settings& s =
      *new Settings(read_settings());  // never destroyed: exit handlers read it
  return s;
}

std::string support_directory() {
  Dl_info info;
  if (!dladdr((void*)&settings, &info) || !info.dli_fname) return ".";
  char resolved[4096];
  std::string path = realpath(info.dli_fname, resolved) ? resolved : info.dli_fname;
  path = path.substr(0, path.rfind('/'));  // .../lib
  return path.substr(0, path.rfind('/'));
}

void log_line(const char* format, ...) {
  char buffer[4096];
  va_list args;
  va_start(args, format);
  vsnprintf(buffer, sizeof buffer, format, args);
  va_end(args);
  fflush(stdout);
  fprintf(stderr, "nogpu: %s\n", buffer);
}
