// SPDX-License-Identifier: Apache-2.0
#include "faults.h"
#include <mutex>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include "memory.h"
#include "scheduler.h"
#include "settings.h"

static std::mutex lock;
static cudaError_t sticky = cudaSuccess;
static bool seen = true;                             // the program was told about the sticky error
static std::string& exit_reason = *new std::string;  // why the process must not exit with 0

cudaError_t sticky_error() {
  return sticky;
}
void clear_sticky_error() {
  if (!seen) note_problem("a kernel failed and the program never looked at the error");
  sticky = cudaSuccess;
}
void note_sticky_seen() {
  seen = true;
}
void note_problem(const char* what) {
  std::lock_guard<std::mutex> guard(lock);
  if (exit_reason.empty()) exit_reason = what;
}

cudaError_t device_fault(cudaError_t error, const char* text) {
  log_line("error: %s", text);
  std::lock_guard<std::mutex> guard(lock);
  if (sticky == cudaSuccess) {
    sticky = error;
    seen = false;
  }
  return error;
}

// ---------------------------------------------------------------- reports
// The PTX statement at a line of the kernel's unit, and the source position if compiled with
// -lineinfo.
static std::string describe_location(const Kernel& k, u32 loc) {
  FILE* f = loc ? fopen(k.unit_path.c_str(), "r") : nullptr;
  if (!f) return "";
  std::string statement, source, files;
  char line[8192];
  int file = 0, source_line = 0;
  for (u32 n = 1; fgets(line, sizeof line, f); n++) {
    if (n <= loc) {
      int a, b;
      if (sscanf(line, " .loc %d %d", &a, &b) == 2) {
        file = a;
        source_line = b;
      }
    }
    if (n == loc) {
      char* s = line;
      while (*s == ' ' || *s == '\t') s++;
      statement = s;
      while (!statement.empty() && (statement.back() == '\n' || statement.back() == '\r'))
        statement.pop_back();
    }
    int number;
    char name[4096];
    if (file && sscanf(line, "//.file %d \"%4095[^\"]\"", &number, name) == 2 && number == file)
      source = name;
  }
  fclose(f);
  std::string out = "\n  at PTX line " + std::to_string(loc) + ": " + statement;
  if (!source.empty())
    out += "\n  from " + source + ":" + std::to_string(source_line);
  else
    out += "\n  (compile with -lineinfo to see the source line; PTX in " + k.unit_path + ")";
  return out;
}

void fault(Thread* t, cudaError_t error, u32 loc, const char* format, ...) {
  Block& b = *t->block;
  Worker& w = *b.worker;
  if (!b.execution->failed.exchange(true)) {  // of several, the first counts
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const Kernel& k = *b.execution->launch.kernel;
    char where[256];
    snprintf(where, sizeof where, "block (%u,%u,%u) thread (%u,%u,%u)", t->ctaid.x, t->ctaid.y,
             t->ctaid.z, t->tid.x, t->tid.y, t->tid.z);
    device_fault(error, (std::string(text) + "\n  in kernel " + k.name + "\n  " + where +
                         describe_location(k, loc))
                            .c_str());
  }
  abandon(w);
}

extern "C" void nogpu_trap(Thread* t, u32 loc) {
  fault(t, cudaErrorLaunchFailure, loc,
        "trap instruction executed (__trap or an unreachable point)");
}
extern "C" void nogpu_assert_fail(Thread* t, const char* what, const char* file, u32 line,
                                  const char* function, u32 loc) {
  fault(t, cudaErrorAssert, loc, "%s:%u: %s: Assertion `%s` failed", file, line, function, what);
}

// ---------------------------------------------------------------- access checks
extern "C" void nogpu_check_slow(Thread* t, u64 a, u32 bytes, Space space, u32 loc) {
  static const char* const names[] = {"global", "shared", "local", "generic"};
  auto inside = [&](u64 begin, u64 end) { return a >= begin && a < end && a + bytes <= end; };
  const u64 shared_end = t->shared_begin + t->shared_size;
  const bool misaligned = a % bytes != 0;
  bool valid = false;
  if (space == SHARED)
    valid = inside(t->shared_begin, shared_end);
  else if (space == LOCAL)
    valid = inside(t->stack_begin, t->stack_end);
  else {
    if (a - ARENA_BASE < ARENA_SIZE)
      valid =
          (a & (GRANULE - 1)) + bytes <= ((const u16*)SHADOW_BASE)[(a - ARENA_BASE) / GRANULE] ||
          (misaligned && arena_valid_range((void*)a, bytes));
    else if (space == GENERIC)
      valid = inside(t->shared_begin, shared_end) || inside(t->stack_begin, t->stack_end) ||
              inside(t->param_begin, t->param_begin + t->param_size);
    if (!valid) valid = host_registered(a, bytes);
  }
  if (valid && !misaligned) return;
  if (valid)
    fault(t, cudaErrorMisalignedAddress, loc, "misaligned address: a %u-byte %s access at 0x%llx",
          bytes, names[space], (unsigned long long)a);
  const bool near_shared = space == SHARED || (a >= t->shared_begin - 4096 &&
                                               a < shared_end + (1 << 20) && a < (1ull << 32));
  if (near_shared)
    fault(t, cudaErrorIllegalAddress, loc,
          "out-of-bounds access to shared memory: %u bytes at offset %lld; the block has %u bytes "
          "(%u of them dynamic)",
          bytes, (long long)(a - t->shared_begin), t->shared_size, t->dynamic_size);
  fault(t, cudaErrorIllegalAddress, loc, "illegal address: a %u-byte %s access at 0x%llx: %s",
        bytes, names[space], (unsigned long long)a,
        space == LOCAL ? "outside the thread's stack" : arena_describe(a).c_str());
}

extern "C" void nogpu_check_source(Thread* t, u64 src, u32 alignment, u32 bytes, u32 loc) {
  if (src % alignment)
    fault(t, cudaErrorMisalignedAddress, loc,
          "misaligned address: cp.async of %u bytes from 0x%llx", alignment,
          (unsigned long long)src);
  for (u32 i = 0; i < bytes; i++) check_global<1>(t, src + i, loc);
}
extern "C" void nogpu_check_bulk(Thread* t, u64 dst, u64 src, u32 bytes, bool to_shared, u32 loc) {
  if (dst % 16 || src % 16 || bytes % 16)
    fault(t, cudaErrorMisalignedAddress, loc, "misaligned bulk copy of %u bytes", bytes);
  const u64 shared = to_shared ? dst : src, global = to_shared ? src : dst;
  for (u32 i = 0; i < bytes; i += 16) {
    check_shared<16>(t, shared + i, loc);
    check_global<16>(t, global + i, loc);
  }
}

// ---------------------------------------------------------------- signals
// The handler cannot report from the faulting stack (it may have overflowed): it redirects the
// thread to escape() on a spare stack, which then reports and abandons the fiber like any other
// fault.
static thread_local char* spare_stack;
static thread_local u64 fault_address;
static thread_local int fault_signal;
static const u64 SPARE = 128 << 10;

static void escape() {
  Worker& w = this_worker();
  Thread* t = w.current;
  if (fault_address - t->stack_begin + 4096 < 4096 + 65536 && fault_address < t->stack_begin)
    fault(t, cudaErrorLaunchFailure, 0,
          "stack overflow in device code (more than NOGPU_STACK=%llu KiB per thread)",
          (unsigned long long)settings().stack >> 10);
  if (fault_signal == SIGSEGV || fault_signal == SIGBUS)
    fault(t, cudaErrorIllegalAddress, 0, "illegal address near 0x%llx: %s",
          (unsigned long long)fault_address, arena_describe(fault_address).c_str());
  fault(t, cudaErrorLaunchFailure, 0, "device code raised signal %d", fault_signal);
}

// Host code that follows a device pointer crashes as it would with a GPU, but is told why.
static void say_if_device_memory(siginfo_t* info) {
  if (in_arena(info->si_addr))
    log_line("error: host code touches device memory at %p: %s", info->si_addr,
             arena_describe((u64)info->si_addr).c_str());
}
static void host_handler(int number, siginfo_t* info, void*) {
  say_if_device_memory(info);
  signal(number, SIG_DFL);  // back to the faulting instruction, which now ends the process
}
__attribute__((constructor)) static void watch_host_code() {
  struct sigaction now;
  if (sigaction(SIGSEGV, nullptr, &now) || now.sa_handler != SIG_DFL) return;
  struct sigaction action = {};
  action.sa_sigaction = host_handler;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
}

static struct sigaction previous[4];
static const int signals[4] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};

static void handle(int number, siginfo_t* info, void* context) {
  if (!spare_stack || !this_worker().current) {  // not ours: let the program's own handler have it
    say_if_device_memory(info);
    for (int i = 0; i < 4; i++)
      if (signals[i] == number) sigaction(number, &previous[i], nullptr);
    return;
  }
  fault_address = (u64)info->si_addr;
  fault_signal = number;
  ucontext_t* c = (ucontext_t*)context;
  c->uc_mcontext.gregs[REG_RIP] = (greg_t)escape;
  c->uc_mcontext.gregs[REG_RSP] = (greg_t)(((u64)spare_stack + SPARE - 64) & ~15ull) - 8;
}

void use_signal_stack() {
  if (spare_stack) return;
  spare_stack =
      (char*)mmap(nullptr, SPARE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  stack_t old;
  if (sigaltstack(nullptr, &old) == 0 && !(old.ss_flags & SS_DISABLE))
    return;  // the program has one: fine
  static const u64 bytes = 64 << 10;
  stack_t s = {};
  s.ss_sp = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  s.ss_size = bytes;
  sigaltstack(&s, nullptr);
}

SignalGuard::SignalGuard() {
  struct sigaction action = {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (int i = 0; i < 4; i++) sigaction(signals[i], &action, &previous[i]);
}
SignalGuard::~SignalGuard() {
  for (int i = 0; i < 4; i++) sigaction(signals[i], &previous[i], nullptr);
}

// ---------------------------------------------------------------- process exit
static void at_exit(int status, void*) {
  if (!seen) note_problem("a kernel failed and the program never looked at the error");
  if (settings().leakcheck && arena_report_leaks() && settings().strict)
    note_problem("device memory leaked");
  if (exit_reason.empty()) return;
  log_line("%s%s", exit_reason.c_str(),
           settings().strict && status == 0 ? "; exit status 86 (NOGPU_STRICT)" : "");
  if (settings().strict && status == 0) {
    fflush(nullptr);
    _exit(86);
  }
}
__attribute__((constructor)) static void register_exit() {
  on_exit(at_exit, nullptr);
}
