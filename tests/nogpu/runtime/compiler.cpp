// SPDX-License-Identifier: Apache-2.0
#include "compiler.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>
#include "settings.h"

extern char** environ;

static u64 hash(const std::string& s, u64 seed) {
  u64 h = seed ^ 0x9E3779B97F4A7C15ull;
  size_t i = 0;
  for (; i + 8 <= s.size(); i += 8) {
    u64 w;
    memcpy(&w, s.data() + i, 8);
    h = (h ^ w) * 0xff51afd7ed558ccdull;
    h ^= h >> 32;
  }
  for (; i < s.size(); i++) h = (h ^ (unsigned char)s[i]) * 0x100000001b3ull;
  return (h ^ h >> 29) * 0xbf58476d1ce4e5b9ull ^ s.size();
}

static std::string read_file(const std::string& path) {
  std::string out;
  if (FILE* f = fopen(path.c_str(), "rb")) {
    char buffer[65536];
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, f)) > 0;) out.append(buffer, n);
    fclose(f);
  }
  return out;
}

static void make_directories(const std::string& path) {
  for (size_t i = 1; i <= path.size(); i++)
    if (i == path.size() || path[i] == '/') mkdir(path.substr(0, i).c_str(), 0777);
}

// The child must not see this process's preloads and library path: python and the compiler are host
// tools.
static int run(const std::vector<std::string>& command) {
  std::vector<char*> argv, env;
  for (auto& c : command) argv.push_back((char*)c.c_str());
  argv.push_back(nullptr);
  for (char** e = environ; *e; e++)
    if (strncmp(*e, "LD_PRELOAD=", 11) && strncmp(*e, "LD_LIBRARY_PATH=", 16)) env.push_back(*e);
  env.push_back(nullptr);
  pid_t child;
  if (posix_spawnp(&child, argv[0], nullptr, nullptr, argv.data(), env.data())) return -1;
  int status;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static std::vector<std::string> compiler_command(const std::string& support) {
  const Settings& s = settings();
  return {s.compiler,
          "-x",
          "c++",
          "-std=c++17",
          "-w",
          s.optimize,
          "-march=x86-64-v3",
          "-ffp-contract=off",
          "-fno-math-errno",
          "-fno-strict-aliasing",
          "-fwrapv",
          "-fno-stack-protector",
          "-fcf-protection=none",
          "-fno-exceptions",
          "-fno-asynchronous-unwind-tables",
          "-DNOGPU_CHECKS=" + std::to_string(s.checks),
          "-DNOGPU_RACECHECK=" + std::to_string(s.sanitize),
          "-I" + support + "/translator",
          "-shared",
          "-fPIC",
          "-pipe"};
}

// Anything that changes the generated code: translator, device.h and compiler flags. The installer
// stamps the former.
static const std::string& flavour() {
  static const std::string text = [] {
    std::string support = support_directory(), all = read_file(support + "/translator/stamp");
    for (auto& word : compiler_command("")) all += word + " ";
    return all;
  }();
  return text;
}

Compiled compile_unit(const std::string& name, const std::string& unit) {
  Compiled result;
  const std::string support = support_directory(), &cache = settings().cache;
  char id[64];
  snprintf(id, sizeof id, "%016llx%016llx", (unsigned long long)hash(unit, hash(flavour(), 1)),
           (unsigned long long)hash(unit, hash(flavour(), 2)));
  const std::string base = cache + "/" + id, so = base + ".so";
  result.unit_path = base + ".ptx";
  if (access(so.c_str(), R_OK)) {
    make_directories(cache);
    // One process compiles; others that need the same kernel (ranks of an MPI job) wait for it.
    int lock_file = open((base + ".lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666);
    if (lock_file < 0) {
      result.error = "cannot write to the kernel cache " + cache;
      return result;
    }
    flock(lock_file, LOCK_EX);
    int status = 0;
    if (access(so.c_str(), R_OK)) {
      if (FILE* f = fopen(result.unit_path.c_str(), "wb")) {
        fwrite(unit.data(), 1, unit.size(), f);
        fclose(f);
      }
      if (settings().verbose) log_line("compiling %s", name.c_str());
      const std::string cpp = base + ".cpp", temporary = base + ".tmp";
      status =
          run({"python3", "-S", "-E", support + "/translator/ptx2cpp.py", result.unit_path, cpp});
      if (!status) {
        std::vector<std::string> command = compiler_command(support);
        command.insert(command.end(), {"-o", temporary, cpp});
        status = run(command);
      }
      if (!status) status = rename(temporary.c_str(), so.c_str());
      if (!status && !settings().keep) unlink(cpp.c_str());
    }
    unlink((base + ".lock").c_str());
    close(lock_file);
    if (status) {
      result.error =
          status == -1 ? "cannot run python3"
                       : "translating or compiling failed (status " + std::to_string(status) + ")";
      return result;
    }
  }
  result.handle = dlopen(so.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!result.handle) result.error = dlerror();
  return result;
}
