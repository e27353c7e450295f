// SPDX-License-Identifier: Apache-2.0
//
// Errors of device code: reported once, at once, then sticky as on a GPU.
#pragma once
#include <driver_types.h>
#include "device.h"

struct Worker;
struct Execution;

// Reports, marks the launch as failed and leaves the kernel for good.
[[noreturn]] void fault(Thread*, cudaError_t, u32 loc, const char* format, ...)
    __attribute__((format(printf, 4, 5)));
// The same without a thread to blame: the caller returns the error.
cudaError_t device_fault(cudaError_t, const char* text);
cudaError_t sticky_error();  // cudaSuccess, or what every call returns until cudaDeviceReset
void clear_sticky_error();
void note_sticky_seen();  // an API call handed the error to the program
void note_problem(
    const char* what);  // makes the process fail at exit (NOGPU_STRICT): nothing may pass silently

// Catches SIGSEGV & co. while kernels run; restores the program's handlers afterwards.
class SignalGuard {
 public:
  SignalGuard();
  ~SignalGuard();
};
void use_signal_stack();  // for each thread that runs kernels
