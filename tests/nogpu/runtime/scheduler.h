// SPDX-License-Identifier: Apache-2.0
//
// CUDA threads as fibers: each runs until it waits for others (barrier, warp-wide instruction,
// spinning).
#pragma once
#include <vector>
#include "device.h"
#include "launch.h"

struct Worker;

struct AsyncCopy {
  u64 dst, src;
  u32 bytes, valid, group;
};
struct AsyncQueue {
  std::vector<AsyncCopy> copies;
  u32 committed = 0;
};

struct Barrier {
  u32 arrived = 0, waiting = 0;
};

struct Block {
  Worker* worker = nullptr;
  Execution* execution = nullptr;
  std::vector<Thread> threads;
  u32 alive = 0;
  Barrier barriers[16];
  std::vector<u32> warp_waiting, warp_exited;  // lane masks per warp
  u32 converging = 0;                          // threads held at an activemask
  std::vector<AsyncQueue> async;               // per thread, when the kernel uses cp.async
  char* shared = nullptr;
  u64 shared_capacity = 0;
  u32 random = 0;
  u32 sync_epoch = 0;  // race check: bumped by every barrier
  std::vector<u32> warp_epoch;
};

struct ByteHistory;  // race check, see racecheck.cpp

struct Worker {                // a host thread running blocks
  std::vector<Block*> blocks;  // one, or all of a cooperative launch
  std::vector<char*> stacks;   // fiber stacks, reused
  void* main_sp = nullptr;
  Thread* current = nullptr;  // running now; null outside kernels
  Execution* execution = nullptr;
  std::vector<ByteHistory>* history = nullptr;
  u64 yields = 0;
  ~Worker();
};

Worker& this_worker();
void run_block(Worker&, Execution&, u64 index);
void run_cooperative(Worker&, Execution&);
[[noreturn]] void abandon(Worker&);  // leave the current fiber forever, back to the worker's loop
void race_new_block(Block&);
void race_epoch(Block&);
void complete_warp_op(Thread* warp, u32 lanes, u32 members, WarpOp op);  // warp_ops.cpp
