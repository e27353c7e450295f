// SPDX-License-Identifier: Apache-2.0
//
// One kernel launch on its way through validation, recording and execution.
#pragma once
#include <atomic>
#include <driver_types.h>
#include <vector>
#include "ptx_module.h"

struct Launch {
  Kernel* kernel = nullptr;
  Dim3 grid{1, 1, 1}, block{1, 1, 1};
  u32 dynamic_shared = 0;
  bool cooperative = false;
  std::vector<u8> params;

  u32 threads() const { return block.x * block.y * block.z; }
  u64 blocks() const { return (u64)grid.x * grid.y * grid.z; }
};

// A launch being executed.
struct Execution {
  const Launch& launch;
  u64 total;
  std::atomic<u64> next{0};
  std::atomic<bool> failed{false};
  double deadline = 0;
  u64 grid_workspace = 0;
  u64 stride = 1, start = 0;  // block order: start + i * stride (mod total)
  explicit Execution(const Launch& l) : launch(l), total(l.blocks()) {}
};

cudaError_t validate_launch(const Launch&);  // as a device would before running anything
cudaError_t run_launch(const Launch&);  // compiles the kernel if need be and runs it to the end
bool prepare_kernel(Kernel*);  // translated, compiled and loaded; false: it failed before or now
int blocks_per_multiprocessor(const Kernel*, u32 threads, u64 dynamic_shared);
