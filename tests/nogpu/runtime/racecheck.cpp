// SPDX-License-Identifier: Apache-2.0
//
// Shared-memory race check (NOGPU_SANITIZE=1): two threads touch the same byte, one of them writes,
// and no barrier lies between. Every barrier of the block counts, also partial ones and mbarriers,
// and within a warp every warp-wide instruction: the check may miss a race but does not invent one.
#include "faults.h"
#include "scheduler.h"
#include "settings.h"

struct Touch {
  u32 epoch = 0, warp_epoch = 0, loc = 0;
  u16 thread = 0, warp = 0;
};
struct ByteHistory {
  Touch write, read;
};
static const u16 SEVERAL = 0xffff;  // threads of one warp
static const u16 SEVERAL_WARPS = 0xffff;

static thread_local u32
    epoch_counter;  // never repeats within a worker, so histories need no clearing

void race_new_block(Block& b) {
  if (!settings().sanitize) return;
  b.sync_epoch = ++epoch_counter;
  Worker& w = *b.worker;
  if (!w.history) w.history = new std::vector<ByteHistory>;
}
void race_epoch(Block& b) {
  if (settings().sanitize) b.sync_epoch = ++epoch_counter;
}

extern "C" void nogpu_race_sync(Thread* t) {
  race_epoch(*t->block);
}

static bool concurrent(const Thread* t, const Touch& x) {
  const Block& b = *t->block;
  if (x.epoch != b.sync_epoch || x.thread == t->index) return false;
  return x.warp != t->warp || x.warp_epoch == b.warp_epoch[t->warp];
}

extern "C" void nogpu_race(Thread* t, u64 address, u32 bytes, Access access, const void* value,
                           u32 loc) {
  Block& b = *t->block;
  if (access == ATOMIC || b.execution->launch.cooperative) return;
  std::vector<ByteHistory>& history = *b.worker->history;
  const u64 first = address - t->shared_begin;
  if (history.size() < first + bytes) history.resize(t->shared_size);
  for (u32 i = 0; i < bytes; i++) {
    ByteHistory& h = history[first + i];
    const bool silent = access == WRITE && value &&
                        ((const u8*)value)[i] == *(const u8*)(address + i);  // writes what is there
    const Touch* other = concurrent(t, h.write) && !silent                     ? &h.write
                         : access == WRITE && !silent && concurrent(t, h.read) ? &h.read
                                                                               : nullptr;
    if (other) {
      fault(t, cudaErrorLaunchFailure, loc,
            "race on shared memory, byte %llu: this %s and a %s by thread %s (PTX line %u) have no "
            "barrier between them",
            (unsigned long long)(first + i), access == WRITE ? "write" : "read",
            other == &h.write ? "write" : "read",
            other->thread == SEVERAL ? "of several" : std::to_string(other->thread).c_str(),
            other->loc);
    }
    Touch& mine = access == WRITE ? h.write : h.read;
    Touch now{b.sync_epoch, b.warp_epoch[t->warp], loc, (u16)t->index, (u16)t->warp};
    if (access == READ && mine.epoch == b.sync_epoch && mine.thread != now.thread) {
      now.thread = SEVERAL;
      if (mine.warp != now.warp) now.warp = SEVERAL_WARPS;
    }
    if (!silent || access == READ) mine = now;
  }
}
