// SPDX-License-Identifier: Apache-2.0
//
// The numbers of the imitated device: a small A100 (8.0) or H100 (9.0).
#pragma once
#include "device.h"

struct DeviceModel {
  int major, minor, multiprocessors;
  u64 shared_per_block, shared_per_block_optin, shared_per_multiprocessor;
  u32 max_threads_per_multiprocessor, max_blocks_per_multiprocessor, registers_per_multiprocessor;
  static constexpr u32 REGISTERS_PER_THREAD =
      32;  // PTX does not tell; cudaFuncGetAttributes says the same
};
const DeviceModel& device_model();
void note_program_target(
    int target);  // of the first fat binary's PTX: decides between 8.0 and newer
