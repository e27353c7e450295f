// SPDX-License-Identifier: Apache-2.0
//
// Runs launches: validation, compilation, and the blocks on a pool of host threads.
#include <condition_variable>
#include <mutex>
#include <thread>
#include <time.h>
#include "compiler.h"
#include "device_model.h"
#include "faults.h"
#include "launch.h"
#include "memory.h"
#include "scheduler.h"
#include "settings.h"
#include <dlfcn.h>

// ---------------------------------------------------------------- validation
cudaError_t validate_launch(const Launch& l) {
  const DeviceModel& d = device_model();
  const Dim3 &g = l.grid, &b = l.block;
  if (!g.x || !g.y || !g.z || !b.x || !b.y || !b.z) return cudaErrorInvalidConfiguration;
  if (b.x > 1024 || b.y > 1024 || b.z > 64 || (u64)b.x * b.y * b.z > 1024)
    return cudaErrorInvalidConfiguration;
  if (g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535) return cudaErrorInvalidConfiguration;
  if (l.threads() > l.kernel->max_threads)
    return cudaErrorLaunchOutOfResources;  // __launch_bounds__
  if (l.dynamic_shared > l.kernel->max_dynamic_shared) return cudaErrorInvalidValue;
  if (l.kernel->static_shared + (u64)l.dynamic_shared > d.shared_per_block_optin)
    return cudaErrorInvalidValue;
  if (l.kernel->max_dynamic_shared <= 48 * 1024 &&
      l.kernel->static_shared + l.dynamic_shared > 48 * 1024)
    return cudaErrorInvalidValue;
  if (l.cooperative &&
      l.blocks() > (u64)blocks_per_multiprocessor(l.kernel, l.threads(), l.dynamic_shared) *
                       d.multiprocessors)
    return cudaErrorCooperativeLaunchTooLarge;
  return cudaSuccess;
}

int blocks_per_multiprocessor(const Kernel* k, u32 threads, u64 dynamic_shared) {
  const DeviceModel& d = device_model();
  if (!threads || threads > k->max_threads) return 0;
  const u64 shared = k->static_shared + dynamic_shared;
  if (shared > d.shared_per_block_optin) return 0;
  const u32 warps = (threads + 31) / 32;
  u64 blocks =
      min_<u64>(d.max_blocks_per_multiprocessor, d.max_threads_per_multiprocessor / (warps * 32));
  blocks = min_<u64>(
      blocks, d.registers_per_multiprocessor / (DeviceModel::REGISTERS_PER_THREAD * warps * 32));
  if (shared)
    blocks = min_<u64>(blocks, d.shared_per_multiprocessor / ((shared + 1024 + 127) / 128 * 128));
  return (int)blocks;
}

// ---------------------------------------------------------------- compilation
bool prepare_kernel(Kernel* k) {
  static std::recursive_mutex lock;
  std::lock_guard<std::recursive_mutex> guard(lock);
  if (k->run) return true;
  if (k->failed) return false;
  Compiled c = compile_unit(k->name, k->unit);
  k->unit_path = c.unit_path;
  const char* problem = c.handle ? (const char*)dlsym(c.handle, "nogpu_problem") : nullptr;
  if (c.handle && !problem) {
    k->flags = *(const u32*)dlsym(c.handle, "nogpu_flags");
    k->run = (KernelFunction)dlsym(c.handle, "nogpu_kernel");
    k->module->prepare_symbols(k->unit);
    return true;
  }
  k->failed = true;
  log_line("error: kernel %s cannot run: %s", k->name.c_str(),
           problem ? ("untranslated " + std::string(problem)).c_str() : c.error.c_str());
  note_problem("a kernel could not be translated");
  return false;
}

// ---------------------------------------------------------------- the pool
static void work(Execution& e) {
  Worker& w = this_worker();
  use_signal_stack();
  for (u64 i; !e.failed && (i = e.next++) < e.total;)
    run_block(w, e, (e.start + i * e.stride) % e.total);
}

class Pool {
 public:
  void run(Execution& e, int helpers) {
    {
      std::lock_guard<std::mutex> guard(lock);
      while ((int)threads.size() < helpers) {
        threads.emplace_back([this] { loop(); });
        threads.back().detach();
      }
      execution = &e;
      wanted = helpers;
      generation++;
    }
    start.notify_all();
    work(e);
    // Helpers that have not woken up by now are not waited for: small grids are done before that.
    std::unique_lock<std::mutex> guard(lock);
    execution = nullptr;
    done.wait(guard, [this] { return busy == 0; });
  }

 private:
  void loop() {
    u64 last = 0;
    std::unique_lock<std::mutex> guard(lock);
    for (;;) {
      start.wait(guard, [&] { return generation != last; });
      last = generation;
      if (!execution || wanted == 0) continue;
      Execution* e = execution;
      wanted--;
      busy++;
      guard.unlock();
      work(*e);
      guard.lock();
      if (--busy == 0) done.notify_one();
    }
  }
  std::mutex lock;
  std::condition_variable start, done;
  std::vector<std::thread> threads;
  Execution* execution = nullptr;
  int wanted = 0, busy = 0;
  u64 generation = 0;
};

static double seconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

// Other block orders only where blocks cannot wait for each other: hardware starts them in order,
// and decoupled look-back (CUB's scans) relies on that.
static void choose_block_order(Execution& e) {
  if (settings().order == Order::FORWARD || e.launch.kernel->flags & MAY_SPIN || e.total < 2)
    return;
  if (settings().order == Order::REVERSE) {
    e.start = e.total - 1;
    e.stride = e.total - 1;
    return;
  }
  u64 r = settings().seed * 6364136223846793005ull + 1442695040888963407ull;
  e.start = (r >> 33) % e.total;
  auto common = [](u64 a, u64 b) {
    while (b) {
      u64 t = a % b;
      a = b;
      b = t;
    }
    return a;
  };
  for (e.stride = 1 + (r >> 20) % e.total; common(e.stride, e.total) != 1;) e.stride++;
}

cudaError_t run_launch(const Launch& l) {
  static std::mutex one_at_a_time;  // launches are synchronous; host threads take turns
  if (!prepare_kernel(l.kernel)) return cudaErrorInvalidPtx;
  std::lock_guard<std::mutex> guard(one_at_a_time);
  static Pool& pool = *new Pool;  // never destroyed: its threads outlive static destructors
  Execution e(l);
  const double begin = seconds();
  e.deadline = begin + settings().timeout;
  choose_block_order(e);
  SignalGuard signals;
  if (l.cooperative) {
    struct Workspace {
      u32 size, barrier;
    };
    auto* workspace = (Workspace*)arena_allocate(sizeof(Workspace), Kind::INTERNAL);
    *workspace = {sizeof(Workspace), 0};
    e.grid_workspace = (u64)workspace;
    use_signal_stack();
    run_cooperative(this_worker(), e);
    arena_free(workspace, Kind::INTERNAL, Kind::INTERNAL);
  } else {
    const int helpers = (int)min_<u64>(settings().threads, e.total) - 1;
    if (helpers > 0)
      pool.run(e, helpers);
    else
      work(e);
  }
  if (settings().verbose)
    log_line("launch %s <<<(%u,%u,%u),(%u,%u,%u),%u>>> %.3f ms%s", l.kernel->name.c_str(), l.grid.x,
             l.grid.y, l.grid.z, l.block.x, l.block.y, l.block.z, l.dynamic_shared,
             (seconds() - begin) * 1e3, l.kernel->flags & NEEDS_FIBERS ? "" : " (plain loop)");
  return cudaSuccess;  // faults are asynchronous on a GPU: the next call returns them
}
