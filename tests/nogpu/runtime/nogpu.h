// SPDX-License-Identifier: Apache-2.0
//
// What the cuBLAS and NCCL stand-ins need of the runtime.
#pragma once
#include <driver_types.h>
#include <memory>
#include <stddef.h>
#include <stdio.h>
#include <string>
#include <utility>

extern "C" {
int nogpu_submit(cudaStream_t, int (*work)(void*), void* argument, void (*destroy)(void*));
int nogpu_valid_range(const void*, size_t bytes);  // inside one device (or pinned) allocation
int nogpu_illegal_address(const char* text);       // a device fault, as if a kernel had done it
int nogpu_threads(void);
void nogpu_describe(const void*, char* text, size_t bytes);
// The work just submitted to the stream touches these bytes (NOGPU_STREAMS).
void nogpu_stream_access(cudaStream_t, const void*, size_t bytes, int write, const char* what);
void nogpu_fail(const char* text);  // makes the process exit with an error
}

namespace nogpu {
// Runs work() in stream order, or records it in the stream's capture. work returns a cudaError_t.
template <class F>
cudaError_t submit(cudaStream_t stream, F work) {
  F* copy = new F(std::move(work));
  return (cudaError_t)nogpu_submit(
      stream, [](void* p) { return (int)(*(F*)p)(); }, copy, [](void* p) { delete (F*)p; });
}
// True if the range is device memory; otherwise reports an illegal address as the library's kernel
// would.
inline bool check_range(const char* function, const char* operand, const void* p, size_t bytes) {
  if (nogpu_valid_range(p, bytes)) return true;
  char where[256];
  nogpu_describe(p, where, sizeof where);
  nogpu_illegal_address((std::string(function) + ": " + operand + " needs " +
                         std::to_string(bytes) + " bytes, its pointer is " + where)
                            .c_str());
  return false;
}
}  // namespace nogpu
