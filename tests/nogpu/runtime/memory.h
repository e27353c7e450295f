// SPDX-License-Identifier: Apache-2.0
//
// Device memory: one reserved address range, byte-exact shadow, allocation records.
#pragma once
#include <stddef.h>
#include <string>
#include "device.h"

enum class Kind { DEVICE, HOST, MANAGED, SYMBOL, MANAGED_SYMBOL, INTERNAL };

struct Allocation {
  u64 begin, size;
  Kind kind;
  u32 number;  // in order of allocation, for reports
};

void* arena_allocate(u64 bytes,
                     Kind kind);  // filled with 0xFF; null when device memory is exhausted
bool arena_free(void* p, Kind kind, Kind other_kind);
bool arena_find(u64 address, Allocation* out);  // the live allocation containing the address
inline bool in_arena(const void* p) {
  return (u64)p - ARENA_BASE < ARENA_SIZE;
}
std::string arena_describe(u64 address);  // "12 bytes past the end of ...", for reports
u64 arena_used();
void arena_reset();        // cudaDeviceReset
int arena_report_leaks();  // logs live device allocations, returns their number
void host_register(u64 begin, u64 bytes);
bool host_unregister(u64 begin);
bool host_registered(u64 begin, u64 bytes);
// While none of these exists the host cannot touch device memory: as on a GPU, it crashes if it
// tries.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
};
// Is [p, p+bytes) inside one live allocation?
bool arena_valid_range(const void* p, u64 bytes);
