// SPDX-License-Identifier: Apache-2.0
#include "scheduler.h"
#include <map>
#include <sched.h>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <time.h>
#include "faults.h"
#include "settings.h"

// Saves the callee-saved registers and the stack pointer, continues at another saved stack pointer.
extern "C" void nogpu_fiber_switch(void** save, void* to);
extern "C" void nogpu_fiber_start();  // first code of a fiber: calls r12(rbx)
asm(R"(
.text
.globl nogpu_fiber_switch
.hidden nogpu_fiber_switch
.type nogpu_fiber_switch,@function
nogpu_fiber_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp,(%rdi)
  mov %rsi,%rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.globl nogpu_fiber_start
.hidden nogpu_fiber_start
.type nogpu_fiber_start,@function
nogpu_fiber_start:
  mov %rbx,%rdi
  call *%r12
  ud2
)");

static thread_local Worker worker_of_this_thread;
// Not inlined: the address of a thread-local must not be cached across fiber switches of other
// threads' code.
__attribute__((noinline)) Worker& this_worker() {
  return worker_of_this_thread;
}

static const u64 PAGE = 4096;
static char* new_stack() {
  const u64 bytes = settings().stack;
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    log_line("no memory for thread stacks");
    _exit(70);
  }
  mprotect(p, PAGE,
           PROT_NONE);  // guard; beyond the system's limit on mappings it is simply missing
  return (char*)p;
}
static char* stack(Worker& w, u64 i) {
  while (w.stacks.size() <= i) w.stacks.push_back(new_stack());
  return w.stacks[i];
}
static void free_block(Block* b) {
  if (b->shared) munmap(b->shared, b->shared_capacity);
  delete b;
}
Worker::~Worker() {
  for (char* s : stacks) munmap(s, settings().stack);
  for (Block* b : blocks) free_block(b);
}

static void make_fiber(char* stack_base, Thread* t, void (*entry)(Thread*)) {
  t->stack_begin = (u64)stack_base + PAGE;
  t->stack_end = (u64)stack_base + settings().stack;
  // Stacks lie a power of two apart; without the shift their hot lines would all compete for the
  // same cache sets.
  void** sp = (void**)(t->stack_end - 64 - t->index % 64 * 192);
  *--sp = (void*)nogpu_fiber_start;
  *--sp = nullptr;       // rbp
  *--sp = t;             // rbx
  *--sp = (void*)entry;  // r12
  for (int i = 0; i < 3; i++) *--sp = nullptr;
  t->sp = sp;
}

// ---------------------------------------------------------------- picking the next thread
static Thread* pick(Block& b, const Thread* from) {
  static const Order order = settings().order;
  const u32 n = (u32)b.threads.size();
  u32 i;
  switch (order) {
    case Order::FORWARD:
      i = from && from->block == &b ? from->index : n - 1;
      break;
    case Order::REVERSE:
      i = from && from->block == &b ? from->index : 0;
      break;
    default:
      b.random = b.random * 1664525u + 1013904223u;
      i = (b.random >> 8) % n;
  }
  const bool backward = order == Order::REVERSE;
  for (u32 k = 0; k < n; k++) {
    i = backward ? (i ? i - 1 : n - 1) : (i + 1 == n ? 0 : i + 1);
    if (b.threads[i].state == READY) return &b.threads[i];
  }
  return nullptr;
}

[[noreturn]] static void report_deadlock(Worker& w, Thread* blame);

static void switch_to(Worker& w, Thread* from, Thread* to) {
  static thread_local void* discarded;
  w.current = to;
  nogpu_fiber_switch(!from ? &w.main_sp : from->state == DONE ? &discarded : &from->sp, to->sp);
}

static bool release_converged(Block& b);

// Continues with another thread; returns when `from` runs again, telling whether others ran in
// between. prefer_other_block: for spinning in a cooperative grid.
static bool dispatch(Worker& w, Thread* from, bool prefer_other_block = false) {
  const size_t count = w.execution->launch.cooperative ? w.blocks.size() : 1;
  size_t at = 0;
  if (from && count > 1)
    while (w.blocks[at] != from->block) at++;
  for (size_t k = 0; k < count; k++) {
    Block* b = from && count == 1 ? from->block
                                  : w.blocks[(at + k + (prefer_other_block ? 1 : 0)) % count];
    if (!b->alive) continue;
    if (Thread* t = pick(*b, from)) {
      if (t == from) return false;
      switch_to(w, from, t);
      return true;
    }
  }
  for (size_t k = 0; k < count;
       k++) {  // nobody else can move: let those at an activemask go on together
    Block* b = from && count == 1 ? from->block : w.blocks[k];
    if (b->alive && release_converged(*b))
      return from && from->state == READY ? false : dispatch(w, from, prefer_other_block);
  }
  Thread* blame = nullptr;
  for (size_t k = 0; k < count; k++)
    if (w.blocks[k]->alive) blame = &w.blocks[k]->threads[0];
  if (blame) report_deadlock(w, blame);
  abandon(w);  // all done
}

void abandon(Worker& w) {
  static thread_local void* discarded;
  w.current = nullptr;
  nogpu_fiber_switch(&discarded, w.main_sp);
  __builtin_unreachable();
}

static void report_deadlock(Worker& w, Thread* blame) {
  std::map<std::string, std::pair<u32, u32>> groups;  // what they wait for -> (how many, first one)
  for (Thread& t : blame->block->threads) {
    std::string what;
    if (t.state == AT_BARRIER)
      what = "at barrier " + std::to_string(t.barrier_id) + " (PTX line " +
             std::to_string(t.wait_loc) + ")";
    else if (t.state == AT_WARP_OP) {
      char mask[16];
      snprintf(mask, sizeof mask, "%08x", t.warp_mask);
      what = std::string("at a warp-wide instruction with mask ") + mask + " (PTX line " +
             std::to_string(t.wait_loc) + ")";
    } else
      what = "finished";
    auto [it, fresh] = groups.emplace(what, std::make_pair(0u, t.index));
    it->second.first++;
  }
  std::string text;
  u32 loc = 0;
  for (auto& [what, g] : groups)
    text += (text.empty() ? "" : "; ") + std::to_string(g.first) +
            " threads (first: " + std::to_string(g.second) + ") " + what;
  for (Thread& t : blame->block->threads)
    if (t.state != DONE && !loc) {
      loc = t.wait_loc;
      blame = &t;
    }
  w.current = blame;
  fault(blame, cudaErrorLaunchTimeout, loc,
        "deadlock, no thread of the block can go on (divergent barrier or warp mask): %s",
        text.c_str());
}

// ---------------------------------------------------------------- barriers
static bool divergence(Thread* t, u32 loc, const char* text) {
  if (settings().divergence == Level::OFF) return false;
  if (settings().divergence == Level::WARN) {
    log_line("warning: %s (kernel %s, PTX line %u)", text,
             t->block->execution->launch.kernel->name.c_str(), loc);
    return false;
  }
  fault(t, cudaErrorLaunchFailure, loc, "%s", text);
}

static void release_barrier(Block& b, u32 id, Thread* last) {
  Barrier& barrier = b.barriers[id];
  u32 popc = 0, first_loc = 0;
  bool all = true, any = false, mixed = false, aligned = true;
  for (Thread& t : b.threads) {
    if (t.state != AT_BARRIER || t.barrier_id != id) continue;
    popc += t.barrier_pred;
    all &= t.barrier_pred != 0;
    any |= t.barrier_pred != 0;
    aligned &= t.barrier_aligned && t.barrier_count == 0;
    if (!first_loc) first_loc = t.wait_loc;
    mixed |= t.wait_loc != first_loc;
  }
  // __syncthreads() must be the same one for all threads of the block, and all must still be there.
  if (aligned && mixed)
    divergence(last, last->wait_loc,
               "divergent __syncthreads: threads of the block wait at different ones");
  if (aligned && b.alive < b.threads.size())
    divergence(last, last->wait_loc,
               "divergent __syncthreads: some threads of the block have already finished");
  for (Thread& t : b.threads) {
    if (t.state != AT_BARRIER || t.barrier_id != id) continue;
    t.state = READY;
    t.out[BAR_POPC] = popc;
    t.out[BAR_AND] = all;
    t.out[BAR_OR] = any;
  }
  barrier = Barrier();
  race_epoch(b);
}

static void arrive(Thread* t, u32 id, u32 count, u32 pred, u32 aligned, u32 loc, bool wait) {
  Block& b = *t->block;
  if (id > 15) fault(t, cudaErrorLaunchFailure, loc, "barrier number %u; there are 16", id);
  if (count % 32)
    fault(t, cudaErrorLaunchFailure, loc, "barrier for %u threads: not a multiple of the warp size",
          count);
  t->barrier_id = id;
  t->barrier_count = count;
  t->barrier_pred = pred;
  t->barrier_aligned = aligned;
  t->wait_loc = loc;
  if (wait) {
    t->state = AT_BARRIER;
    b.barriers[id].waiting++;
  }
  if (++b.barriers[id].arrived >= (count ? count : b.alive)) release_barrier(b, id, t);
  if (t->state != READY) dispatch(*b.worker, t);
}

extern "C" void nogpu_barrier(Thread* t, u32 id, u32 count, u32 aligned, u32 loc) {
  arrive(t, id, count, 0, aligned, loc, true);
}
extern "C" u32 nogpu_barrier_reduce(Thread* t, u32 id, u32 count, u32 pred, BarrierResult which,
                                    u32 aligned, u32 loc) {
  arrive(t, id, count, pred, aligned, loc, true);
  return t->out[which];
}
extern "C" void nogpu_barrier_arrive(Thread* t, u32 id, u32 count, u32 loc) {
  arrive(t, id, count, 0, 0, loc, false);
}

// ---------------------------------------------------------------- warps
// Runs the instruction once all lanes of t's mask that still exist wait at it.
static void try_warp_op(Thread* t) {
  Block& b = *t->block;
  Thread* lane0 = t - t->lane;
  const u32 count = min_<u32>(32, (u32)b.threads.size() - lane0->index),
            existing = count == 32 ? ~0u : (1u << count) - 1;
  const u32 members = t->warp_mask & existing & ~b.warp_exited[t->warp];
  if ((b.warp_waiting[t->warp] & members) != members) return;
  for (u32 l = 0; l < count; l++)
    if (members >> l & 1 && (lane0[l].warp_op != t->warp_op || lane0[l].warp_mask != t->warp_mask))
      return;
  if (t->warp_mask & existing & b.warp_exited[t->warp])
    divergence(t, t->wait_loc, "a warp-wide instruction names lanes that have already finished");
  complete_warp_op(lane0, count, members, t->warp_op);
  b.warp_waiting[t->warp] &= ~members;
  b.warp_epoch[t->warp]++;
  for (u32 l = 0; l < count; l++)
    if (members >> l & 1) lane0[l].state = READY;
}

extern "C" void nogpu_warp(Thread* t, WarpOp op, u32 mask, u32 loc) {
  t->wait_loc = loc;
  if (!(mask >> t->lane & 1))
    fault(t, cudaErrorLaunchFailure, loc,
          "lane %u executes a warp-wide instruction whose mask %08x does not name it", t->lane,
          mask);
  t->state = AT_WARP_OP;
  t->warp_op = op;
  t->warp_mask = mask;
  t->block->warp_waiting[t->warp] |= 1u << t->lane;
  try_warp_op(t);
  if (t->state != READY) dispatch(*t->block->worker, t);
}

// ---------------------------------------------------------------- activemask
// The hardware decides which lanes are active together. Here a lane waits until the others of its
// warp arrive as well or cannot go on, which gives the largest group; with random order each lane
// is alone, the smallest.
static void release_group(Thread* t) {
  Thread* lane0 = t - t->lane;
  const u32 count = min_<u32>(32, (u32)t->block->threads.size() - lane0->index);
  u32 group = 0;
  for (u32 l = 0; l < count; l++) {
    const Thread& o = lane0[l];
    if (o.state == AT_WARP_OP && o.warp_op == OP_ACTIVEMASK && o.wait_loc == t->wait_loc)
      group |= 1u << l;
  }
  for (u32 l = 0; l < count; l++)
    if (group >> l & 1) {
      lane0[l].state = READY;
      lane0[l].out[0] = group;
      t->block->converging--;
    }
}
static bool release_converged(Block& b) {
  if (!b.converging) return false;
  for (Thread& t : b.threads)
    if (t.state == AT_WARP_OP && t.warp_op == OP_ACTIVEMASK) {
      release_group(&t);
      return true;
    }
  return false;
}
extern "C" u32 nogpu_activemask(Thread* t, u32 loc) {
  if (settings().order == Order::RANDOM) return 1u << t->lane;
  Block& b = *t->block;
  Thread* lane0 = t - t->lane;
  t->state = AT_WARP_OP;
  t->warp_op = OP_ACTIVEMASK;
  t->wait_loc = loc;
  b.converging++;
  bool all = true;
  for (u32 l = 0; l < 32 && lane0->index + l < b.threads.size(); l++) {
    const Thread& o = lane0[l];
    all &= o.state == DONE ||
           (o.state == AT_WARP_OP && o.warp_op == OP_ACTIVEMASK && o.wait_loc == loc);
  }
  if (all)
    release_group(t);
  else
    dispatch(*b.worker, t);
  return t->out[0];
}

// ---------------------------------------------------------------- spinning
static double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

extern "C" void nogpu_yield(Thread* t, u32 loc) {
  Worker& w = *t->block->worker;
  if ((++w.yields & 0xfff) == 0) {
    if (w.execution->failed) abandon(w);
    if (now() > w.execution->deadline)
      fault(t, cudaErrorLaunchTimeout, loc, "the kernel spins for longer than NOGPU_TIMEOUT");
  }
  race_epoch(*t->block);
  release_converged(*t->block);  // it may be waiting for one of them
  const bool others_ran = dispatch(w, t, w.execution->launch.cooperative);
  if (!others_ran && (w.yields & 15) == 0)
    sched_yield();  // it waits for a block on another host thread
}

// ---------------------------------------------------------------- cp.async
extern "C" void nogpu_async_copy(Thread* t, u64 dst, u64 src, u32 bytes, u32 valid) {
  AsyncQueue& q = t->block->async[t->index];
  q.copies.push_back({dst, src, bytes, valid, q.committed});
}
extern "C" void nogpu_async_commit(Thread* t) {
  t->block->async[t->index].committed++;
}
static void finish_copies(AsyncQueue& q, u32 before_group) {
  size_t done = 0;
  for (; done < q.copies.size() && q.copies[done].group < before_group; done++) {
    const AsyncCopy& c = q.copies[done];
    memcpy((void*)c.dst, (const void*)c.src, c.valid);
    memset((void*)(c.dst + c.valid), 0, c.bytes - c.valid);
  }
  q.copies.erase(q.copies.begin(), q.copies.begin() + done);
}
extern "C" void nogpu_async_wait(Thread* t, u32 groups_left) {
  AsyncQueue& q = t->block->async[t->index];
  if (q.committed > groups_left) finish_copies(q, q.committed - groups_left);
}
extern "C" void nogpu_async_wait_all(Thread* t) {
  AsyncQueue& q = t->block->async[t->index];
  q.committed++;
  finish_copies(q, q.committed);
}

// ---------------------------------------------------------------- running blocks
static void finish_thread(Thread* t) {
  Block& b = *t->block;
  t->state = DONE;
  b.alive--;
  b.warp_exited[t->warp] |= 1u << t->lane;
  if (b.alive) {
    // Others may have been waiting for this thread only.
    for (u32 id = 0; id < 16; id++) {
      if (!b.barriers[id].waiting || b.barriers[id].arrived < b.alive) continue;
      Thread* waiting = nullptr;
      bool everyone = true;
      for (Thread& o : b.threads)
        if (o.state == AT_BARRIER && o.barrier_id == id) {
          waiting = &o;
          everyone &= o.barrier_count == 0;
        }
      if (waiting && everyone) release_barrier(b, id, waiting);
    }
    Thread* lane0 = t - t->lane;
    for (u32 l = 0; l < 32; l++)
      if (b.warp_waiting[t->warp] >> l & 1) try_warp_op(&lane0[l]);
  }
  dispatch(*b.worker, t);
  __builtin_unreachable();
}

static void run_thread(Thread* t) {  // a fiber's body: one CUDA thread
  t->block->execution->launch.kernel->run(t, (char*)t->param_begin);
  finish_thread(t);
}
extern "C" void nogpu_exit(Thread* t) {
  finish_thread(t);
  __builtin_unreachable();
}

static void place_thread(Thread& t, u32 i, const Dim3& block) {
  t.index = i;
  t.tid = {i % block.x, i / block.x % block.y, i / (block.x * block.y)};
  t.lane = i & 31;
  t.warp = i >> 5;
}

static u32 greatest_common_divisor(u32 a, u32 b) {
  return b ? greatest_common_divisor(b, a % b) : a;
}

// A kernel whose threads never wait for each other: one fiber runs them all, one after the other.
static void run_all_threads(Thread* t) {
  const Launch& l = t->block->execution->launch;
  const KernelFunction run = l.kernel->run;
  const u32 n = l.threads();
  u32 step = 1, i = 0;
  if (settings().order == Order::REVERSE) {
    step = n - 1;
    i = n - 1;
  } else if (settings().order == Order::RANDOM) {
    t->block->random = t->block->random * 1664525u + 1013904223u;
    i = (t->block->random >> 8) % n;
    step = 1 + (t->block->random >> 4) % n;
    while (greatest_common_divisor(step, n) != 1) step++;
    step %= n;
    if (n == 1) step = 0;
  }
  for (u32 k = 0; k < n; k++, i = (i + step) % n) {
    place_thread(*t, i, l.block);
    t->carry = 0;
    run(t, (char*)t->param_begin);
  }
  t->block->alive = 0;
  abandon(*t->block->worker);
}

static void grow_shared(Block& b, u64 bytes) {
  bytes = (bytes + 1024 + 65535) & ~65535ull;
  if (b.shared_capacity >= bytes) return;
  if (b.shared) munmap(b.shared, b.shared_capacity);
  // Below 4 GiB: PTX may keep shared addresses in 32 bits.
  void* p =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
  if (p == MAP_FAILED) {
    log_line("no low memory for shared memory");
    _exit(70);
  }
  b.shared = (char*)p;
  b.shared_capacity = bytes;
}

static Block* block_slot(Worker& w, size_t i) {
  while (w.blocks.size() <= i) w.blocks.push_back(new Block);
  return w.blocks[i];
}

// Gets block number `linear` of the grid ready to run in w's slot.
static void set_up_block(Worker& w, Execution& e, size_t slot, u64 linear) {
  const Launch& l = e.launch;
  const Kernel& k = *l.kernel;
  Block& b = *block_slot(w, slot);
  const bool fibers = k.flags & NEEDS_FIBERS;
  const u32 n = l.threads(), records = fibers ? n : 1, warps = (n + 31) / 32;
  b.worker = &w;
  b.execution = &e;
  b.alive = n;
  b.converging = 0;
  b.random = settings().seed + (u32)linear * 2654435761u;
  b.threads.resize(records);
  for (Barrier& x : b.barriers) x = Barrier();
  b.warp_waiting.assign(warps, 0);
  b.warp_exited.assign(warps, 0);
  b.warp_epoch.assign(warps, 0);
  if (k.flags & USES_ASYNC) b.async.assign(records, AsyncQueue());
  const u32 shared_bytes = k.dynamic_offset + l.dynamic_shared;
  grow_shared(b, shared_bytes);
  memset(b.shared, 0xFF, shared_bytes);  // poison: uninitialised shared memory reads as NaN
  race_new_block(b);
  const Dim3 where = {u32(linear % l.grid.x), u32(linear / l.grid.x % l.grid.y),
                      u32(linear / l.grid.x / l.grid.y)};
  for (u32 i = 0; i < records; i++) {
    Thread& t = b.threads[i];
    place_thread(t, i, l.block);
    t.ctaid = where;
    t.ntid = l.block;
    t.nctaid = l.grid;
    t.carry = 0;
    t.shared_begin = (u64)b.shared;
    t.shared_size = shared_bytes;
    t.dynamic_size = l.dynamic_shared;
    t.param_begin = (u64)l.params.data();
    t.param_size = (u32)l.params.size();
    t.grid_workspace = e.grid_workspace;
    t.symbols = k.module->symbols();
    t.block = &b;
    t.state = READY;
    make_fiber(stack(w, slot * records + i), &t, fibers ? run_thread : run_all_threads);
  }
}

static void run_to_end(Worker& w, Execution& e) {
  w.execution = &e;
  dispatch(w, nullptr);
  w.execution = nullptr;
}

void run_block(Worker& w, Execution& e, u64 index) {
  set_up_block(w, e, 0, index);
  run_to_end(w, e);
}

void run_cooperative(Worker& w, Execution& e) {
  for (u64 i = 0; i < e.total; i++) set_up_block(w, e, i, i);
  for (size_t i = e.total; i < w.blocks.size(); i++) w.blocks[i]->alive = 0;
  run_to_end(w, e);
}
