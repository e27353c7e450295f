// SPDX-License-Identifier: Apache-2.0
#include "memory.h"
#include <errno.h>
#include <map>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include "settings.h"

static std::recursive_mutex lock;
// Never destroyed: programs free memory, and the leak report looks at it, when static objects are
// gone.
static std::map<u64, Allocation>& live = *new std::map<u64, Allocation>;  // by begin
static std::map<u64, Allocation>& freed =
    *new std::map<u64, Allocation>;  // recent ones, for use-after-free reports
static std::map<u64, u64>& registered =
    *new std::map<u64, u64>;  // cudaHostRegister: begin -> bytes
static u64 used;
static u32 counter;
// Distance between allocations. Addresses are handed out in a circle, so a freed address stays
// invalid for a long time; the circle is bounded, because small freed blocks leave their pages
// behind.
static const u64 GAP = 4096, ALIGNMENT = 512, CIRCLE = 64ull << 20;

// What only the device may touch lies in one zone, pinned and managed memory in the other.
struct Zone {
  u64 begin, end, cursor, top;
};
static Zone device_zone = {ARENA_BASE + 0x10000, ARENA_BASE + ARENA_SIZE / 2, ARENA_BASE + 0x10000,
                           ARENA_BASE};
static Zone host_zone = {ARENA_BASE + ARENA_SIZE / 2 + 0x10000, ARENA_BASE + ARENA_SIZE,
                         ARENA_BASE + ARENA_SIZE / 2 + 0x10000, 0};
static Zone& zone_of(Kind k) {
  return k == Kind::HOST || k == Kind::MANAGED || k == Kind::MANAGED_SYMBOL ? host_zone
                                                                            : device_zone;
}

static void map_fixed(u64 base, u64 bytes, const char* what) {
  void* p = mmap((void*)base, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (p == (void*)base) {
    madvise(p, bytes, MADV_DONTDUMP);
    return;
  }
  log_line(
      "cannot reserve %llu GiB of address space for %s (%s); check ulimit -v and "
      "vm.overcommit_memory",
      (unsigned long long)bytes >> 30, what, strerror(errno));
  _exit(70);
}
static void reserve() {
  static bool done = false;
  if (done) return;
  done = true;
  map_fixed(ARENA_BASE, ARENA_SIZE, "device memory");
  madvise((void*)ARENA_BASE, ARENA_SIZE,
          MADV_HUGEPAGE);  // makes opening and closing it to the host cheap, too
  const u64 shadow_bytes = ARENA_SIZE / GRANULE * 2;
  map_fixed(SHADOW_BASE, shadow_bytes, "its shadow");
  madvise((void*)SHADOW_BASE, shadow_bytes, MADV_NOHUGEPAGE);
}
__attribute__((constructor)) static void reserve_early() {
  reserve();
}

static void set_shadow(u64 begin, u64 bytes, bool valid) {
  u16* s = (u16*)SHADOW_BASE + (begin - ARENA_BASE) / GRANULE;
  for (u64 o = 0; o < bytes; o += GRANULE) *s++ = valid ? (u16)min_<u64>(GRANULE, bytes - o) : 0;
}

// First fit from the cursor on, wrapping around once.
static u64 find_gap(const Zone& z, u64 bytes) {
  for (int pass = 0; pass < 2; pass++) {
    u64 at = pass ? z.begin : (z.cursor + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    auto it = live.upper_bound(at);
    if (it != live.begin() && std::prev(it)->first >= z.begin) {
      auto before = std::prev(it);
      at = max_(
          at, (before->first + before->second.size + GAP + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    }
    for (;; ++it) {
      u64 end = it == live.end() ? z.end : min_(it->first, z.end);
      if (at + bytes + GAP <= end) return at;
      if (it == live.end() || it->first >= z.end) break;
      at = (it->first + it->second.size + GAP + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
  }
  return 0;
}

void* arena_allocate(u64 bytes, Kind kind) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  reserve();
  bool counted = kind == Kind::DEVICE || kind == Kind::MANAGED;
  if (bytes > ARENA_SIZE || (counted && used + bytes > settings().memory)) return nullptr;
  DeviceAccess access;
  Zone& zone = zone_of(kind);
  if (zone.cursor - zone.begin > CIRCLE + 2 * used) zone.cursor = zone.begin;
  u64 at = find_gap(zone, bytes ? bytes : 1);
  if (!at) return nullptr;
  live[at] = {at, bytes, kind, ++counter};
  zone.cursor = at + bytes;
  zone.top = max_(zone.top, at + bytes);
  if (counted) used += bytes;
  freed.erase(freed.lower_bound(at), freed.lower_bound(at + bytes));
  memset((void*)at, 0xFF, bytes);
  set_shadow(at, bytes, true);
  return (void*)at;
}

// ---------------------------------------------------------------- host access
static const u64 HUGE_PAGE = 2 << 20;
static int device_accesses;
static u64 protected_until;
static void protect(bool open) {
  if (!settings().protect) return;
  const u64 until = open ? protected_until
                         : (device_zone.top + HUGE_PAGE - 1) &
                               ~(HUGE_PAGE - 1);  // or the last huge page would be split
  if (until > ARENA_BASE)
    mprotect((void*)ARENA_BASE, until - ARENA_BASE, open ? PROT_READ | PROT_WRITE : PROT_NONE);
  protected_until = open ? 0 : until;
}
DeviceAccess::DeviceAccess() {
  std::lock_guard<std::recursive_mutex> guard(lock);
  if (device_accesses++ == 0) protect(true);
}
DeviceAccess::~DeviceAccess() {
  std::lock_guard<std::recursive_mutex> guard(lock);
  if (--device_accesses == 0) protect(false);
}

static void release(std::map<u64, Allocation>::iterator it) {
  const Allocation a = it->second;
  set_shadow(a.begin, a.size, false);
  u64 first = (a.begin + 4095) & ~4095ull, last = (a.begin + a.size) & ~4095ull;
  if (last > first + 65536) madvise((void*)first, last - first, MADV_DONTNEED);
  if (a.kind == Kind::DEVICE || a.kind == Kind::MANAGED) used -= a.size;
  live.erase(it);
  freed[a.begin] = a;
  if (freed.size() > 4096) freed.erase(freed.begin());
}

bool arena_free(void* p, Kind kind, Kind other_kind) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  auto it = live.find((u64)p);
  if (it == live.end() || (it->second.kind != kind && it->second.kind != other_kind)) return false;
  release(it);
  return true;
}

bool arena_find(u64 address, Allocation* out) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  auto it = live.upper_bound(address);
  if (it == live.begin()) return false;
  --it;
  if (address - it->first >= max_<u64>(it->second.size, 1)) return false;
  *out = it->second;
  return true;
}

bool arena_valid_range(const void* p, u64 bytes) {
  Allocation a;
  return arena_find((u64)p, &a) && (u64)p + bytes <= a.begin + a.size;
}

static const char* kind_name(Kind k) {
  switch (k) {
    case Kind::DEVICE:
      return "allocation";
    case Kind::HOST:
      return "pinned host allocation";
    case Kind::MANAGED:
      return "managed allocation";
    case Kind::SYMBOL:
    case Kind::MANAGED_SYMBOL:
      return "__device__ variable";
    default:
      return "internal buffer";
  }
}

std::string arena_describe(u64 address) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  char text[256];
  auto show = [&](const char* where, u64 distance, const Allocation& a) {
    snprintf(text, sizeof text, "%llu bytes %s the %llu-byte %s #%u at 0x%llx",
             (unsigned long long)distance, where, (unsigned long long)a.size, kind_name(a.kind),
             a.number, (unsigned long long)a.begin);
    return std::string(text);
  };
  if (address < 0x10000) return "a null pointer";
  if (!in_arena((void*)address)) return "not device memory (a host pointer?)";
  Allocation a;
  if (arena_find(address, &a)) return show("into", address - a.begin, a);
  auto f = freed.upper_bound(address);
  if (f != freed.begin() && address - std::prev(f)->first < std::prev(f)->second.size)
    return show("into the freed block that was", address - std::prev(f)->first,
                std::prev(f)->second);
  auto after = live.upper_bound(address);
  u64 to_next = after == live.end() ? ~0ull : after->first - address, from_previous = ~0ull;
  if (after != live.begin())
    from_previous = address - (std::prev(after)->first + std::prev(after)->second.size);
  if (from_previous == ~0ull && to_next == ~0ull) return "no allocation is near";
  return from_previous <= to_next ? show("past the end of", from_previous, std::prev(after)->second)
                                  : show("before", to_next, after->second);
}

u64 arena_used() {
  std::lock_guard<std::recursive_mutex> guard(lock);
  return used;
}

void arena_reset() {
  std::lock_guard<std::recursive_mutex> guard(lock);
  for (auto it = live.begin(); it != live.end();) {
    auto next = std::next(it);
    if (it->second.kind == Kind::DEVICE || it->second.kind == Kind::MANAGED ||
        it->second.kind == Kind::HOST)
      release(it);
    it = next;
  }
}

int arena_report_leaks() {
  std::lock_guard<std::recursive_mutex> guard(lock);
  int count = 0;
  u64 bytes = 0;
  for (auto& [begin, a] : live) {
    if (a.kind == Kind::SYMBOL || a.kind == Kind::MANAGED_SYMBOL || a.kind == Kind::INTERNAL)
      continue;
    if (count++ < 20)
      log_line("leak: %s #%u of %llu bytes at 0x%llx", kind_name(a.kind), a.number,
               (unsigned long long)a.size, (unsigned long long)begin);
    bytes += a.size;
  }
  if (count)
    log_line("leak: %d allocations, %llu bytes in all, were never freed", count,
             (unsigned long long)bytes);
  return count;
}

void host_register(u64 begin, u64 bytes) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  registered[begin] = bytes;
}
bool host_unregister(u64 begin) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  return registered.erase(begin) > 0;
}
bool host_registered(u64 begin, u64 bytes) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  auto it = registered.upper_bound(begin);
  if (it == registered.begin()) return false;
  --it;
  return begin + bytes <= it->first + it->second;
}
