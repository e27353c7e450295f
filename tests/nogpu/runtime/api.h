// SPDX-License-Identifier: Apache-2.0
//
// Common to the cuda* entry points.
#pragma once
#include <cuda_runtime_api.h>
#include <functional>
#include "faults.h"
#include "launch.h"
#include "memory.h"
#include "settings.h"

cudaError_t finish(cudaError_t);  // remembers an error for cudaGetLastError and returns it

// First line of every entry point: after a device fault nothing works any more.
#define API_ENTER()                                                   \
  do {                                                                \
    if (cudaError_t sticky_ = sticky_error()) return finish(sticky_); \
  } while (0)

enum class NodeKind { KERNEL, COPY, SET, HOST, OTHER };
// Runs the work now, or records it when the stream is being captured.
cudaError_t submit(cudaStream_t, NodeKind, std::function<cudaError_t()> work);
// For calls that are illegal while any stream is captured in global mode (cudaMalloc,
// synchronisation, ...).
cudaError_t forbid_in_capture();
bool stream_is_capturing(cudaStream_t);
// For NOGPU_STREAMS: the operation just submitted touches these bytes; the host waits for all
// streams.
void stream_access(cudaStream_t, const void*, size_t bytes, bool write, const char* what);
void host_waits_for_all();
// A copy that ends before its call returns.
void host_waits_for(cudaStream_t);

Kernel* find_kernel(const void* host_function, cudaError_t* error);
cudaError_t find_symbol(const void* host_variable, void** address, size_t* bytes);
