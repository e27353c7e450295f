// SPDX-License-Identifier: Apache-2.0
//
// Allocation, copies, fills, symbols, pools.
#include <map>
#include <mutex>
#include <stdlib.h>
#include <string.h>
#include "api.h"
#include "ordering.h"

static cudaError_t allocate(void** p, size_t bytes, Kind kind) {
  API_ENTER();
  if (!p) return finish(cudaErrorInvalidValue);
  *p = nullptr;
  if (cudaError_t e = forbid_in_capture()) return finish(e);
  if (!bytes) return cudaSuccess;
  *p = arena_allocate(bytes, kind);
  return finish(*p ? cudaSuccess : cudaErrorMemoryAllocation);
}
static cudaError_t release(void* p, Kind kind, Kind other) {
  API_ENTER();
  if (cudaError_t e = forbid_in_capture()) return finish(e);
  host_waits_for_all();
  order_forget(p);
  if (!p || arena_free(p, kind, other)) return cudaSuccess;
  log_line("warning: freeing 0x%llx, which is %s", (unsigned long long)p,
           arena_describe((u64)p).c_str());
  return finish(cudaErrorInvalidValue);
}

// A side of a copy: device memory must lie inside one allocation; host memory must not be device
// memory.
static bool valid_side(const void* p, size_t bytes, bool device, bool host, const char* what) {
  if (!bytes) return true;
  Allocation a;
  const bool arena = in_arena(p);
  if (!arena) {
    if (p && !device) return true;
    log_line("warning: %s of %zu bytes: %p is %s, device memory is expected", what, bytes, p,
             p ? "host memory" : "null");
    return false;
  }
  if (!arena_find((u64)p, &a) || (u64)p + bytes > a.begin + a.size) {
    log_line("warning: %s of %zu bytes at %p runs out of bounds: it starts %s", what, bytes, p,
             arena_describe((u64)p).c_str());
    return false;
  }
  if (host && (a.kind == Kind::DEVICE || a.kind == Kind::SYMBOL)) {
    log_line("warning: %s of %zu bytes: %p is device memory, host memory is expected", what, bytes,
             p);
    return false;
  }
  return true;
}

static cudaError_t check_copy(const void* d, const void* s, size_t d_bytes, size_t s_bytes,
                              cudaMemcpyKind kind) {
  bool d_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice,
       s_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  bool d_host = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyHostToHost,
       s_host = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyHostToHost;
  if ((unsigned)kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
  if (!valid_side(d, d_bytes, d_device, d_host, "copy to") ||
      !valid_side(s, s_bytes, s_device, s_host, "copy from"))
    return cudaErrorInvalidValue;
  return cudaSuccess;
}

// Rows with gaps between them are left out: others may write the gaps.
static void note_copy(void* d, size_t d_bytes, const void* s, size_t s_bytes, cudaStream_t stream) {
  stream_access(stream, s, s_bytes, false, "a copy");
  stream_access(stream, d, d_bytes, true, "a copy");
  // To pageable memory of the host a copy is finished when its call returns.
  if (!in_arena(d) && !host_registered((u64)d, d_bytes) && !stream_is_capturing(stream))
    host_waits_for(stream);
}

static cudaError_t copy(void* d, const void* s, size_t bytes, cudaMemcpyKind kind,
                        cudaStream_t stream) {
  API_ENTER();
  if (cudaError_t e = check_copy(d, s, bytes, bytes, kind)) return finish(e);
  const cudaError_t e = submit(stream, NodeKind::COPY, [=] {
    memmove(d, s, bytes);
    return cudaSuccess;
  });
  if (e == cudaSuccess) note_copy(d, bytes, s, bytes, stream);
  return finish(e);
}
static cudaError_t copy_2d(void* d, size_t d_pitch, const void* s, size_t s_pitch, size_t width,
                           size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  API_ENTER();
  if (!width || !height) return cudaSuccess;
  if (width > d_pitch || width > s_pitch) return finish(cudaErrorInvalidPitchValue);
  if (cudaError_t e =
          check_copy(d, s, d_pitch * (height - 1) + width, s_pitch * (height - 1) + width, kind))
    return finish(e);
  const cudaError_t e = submit(stream, NodeKind::COPY, [=] {
    for (size_t r = 0; r < height; r++)
      memmove((char*)d + r * d_pitch, (const char*)s + r * s_pitch, width);
    return cudaSuccess;
  });
  if (e == cudaSuccess && height == 1) note_copy(d, width, s, width, stream);
  return finish(e);
}
static cudaError_t fill(void* d, size_t pitch, int value, size_t width, size_t height,
                        cudaStream_t stream) {
  API_ENTER();
  if (!width || !height) return cudaSuccess;
  if (height > 1 && width > pitch) return finish(cudaErrorInvalidPitchValue);
  if (!valid_side(d, pitch * (height - 1) + width, true, false, "memset"))
    return finish(cudaErrorInvalidValue);
  const cudaError_t e = submit(stream, NodeKind::SET, [=] {
    for (size_t r = 0; r < height; r++) memset((char*)d + r * pitch, value, width);
    return cudaSuccess;
  });
  if (e == cudaSuccess && height == 1) stream_access(stream, d, width, true, "a fill");
  return finish(e);
}

struct CUmemPoolHandle_st {
  u64 threshold = 0;
};
static cudaMemPool_t default_pool() {
  static auto* p = new CUmemPoolHandle_st;
  return p;
}

static cudaError_t allocate_async(void** p, size_t bytes, cudaStream_t stream) {
  API_ENTER();
  if (!p) return finish(cudaErrorInvalidValue);
  *p = nullptr;
  if (!bytes) return cudaSuccess;
  *p = arena_allocate(
      bytes, Kind::DEVICE);  // in a capture too: the memory then belongs to the graph's replays
  if (!*p) return finish(cudaErrorMemoryAllocation);
  return stream_is_capturing(stream)
             ? finish(submit(stream, NodeKind::OTHER, [] { return cudaSuccess; }))
             : cudaSuccess;
}

extern "C" {
cudaError_t cudaMalloc(void** p, size_t bytes) {
  return allocate(p, bytes, Kind::DEVICE);
}
cudaError_t cudaFree(void* p) {
  return release(p, Kind::DEVICE, Kind::MANAGED);
}
cudaError_t cudaMallocManaged(void** p, size_t bytes, unsigned) {
  return bytes ? allocate(p, bytes, Kind::MANAGED) : finish(cudaErrorInvalidValue);
}
cudaError_t cudaMallocHost(void** p, size_t bytes) {
  return allocate(p, bytes, Kind::HOST);
}
cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) {
  return allocate(p, bytes, Kind::HOST);
}
cudaError_t cudaFreeHost(void* p) {
  return release(p, Kind::HOST, Kind::HOST);
}
cudaError_t cudaMallocPitch(void** p, size_t* pitch, size_t width, size_t height) {
  *pitch = (width + 511) / 512 * 512;
  return allocate(p, *pitch * height, Kind::DEVICE);
}
cudaError_t cudaHostGetDevicePointer(void** d, void* h, unsigned) {
  *d = h;
  return finish(in_arena(h) || host_registered((u64)h, 1) ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaHostGetFlags(unsigned* flags, void*) {
  *flags = 0;
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* p, size_t bytes, unsigned) {
  API_ENTER();
  if (!p || !bytes) return finish(cudaErrorInvalidValue);
  if (host_registered((u64)p, 1)) return finish(cudaErrorHostMemoryAlreadyRegistered);
  host_register((u64)p, bytes);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* p) {
  return finish(host_unregister((u64)p) ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  API_ENTER();
  *total = settings().memory;
  *free = *total - arena_used();
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
  API_ENTER();
  memset(a, 0, sizeof *a);
  a->device = -2;
  Allocation found;
  if (arena_find((u64)p, &found)) {
    a->type = found.kind == Kind::HOST ? cudaMemoryTypeHost
              : found.kind == Kind::MANAGED || found.kind == Kind::MANAGED_SYMBOL
                  ? cudaMemoryTypeManaged
                  : cudaMemoryTypeDevice;
    a->device = 0;
    a->devicePointer = (void*)p;
    if (a->type != cudaMemoryTypeDevice) a->hostPointer = (void*)p;
  } else if (host_registered((u64)p, 1)) {
    a->type = cudaMemoryTypeHost;
    a->device = 0;
    a->devicePointer = a->hostPointer = (void*)p;
  } else
    a->type = cudaMemoryTypeUnregistered;
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* d, const void* s, size_t n, cudaMemcpyKind k) {
  const cudaError_t e = copy(d, s, n, k, nullptr);
  host_waits_for(nullptr);
  return e;
}
cudaError_t cudaMemcpyAsync(void* d, const void* s, size_t n, cudaMemcpyKind k,
                            cudaStream_t stream) {
  return copy(d, s, n, k, stream);
}
cudaError_t cudaMemcpyPeer(void* d, int, const void* s, int, size_t n) {
  return copy(d, s, n, cudaMemcpyDeviceToDevice, nullptr);
}
cudaError_t cudaMemcpyPeerAsync(void* d, int, const void* s, int, size_t n, cudaStream_t stream) {
  return copy(d, s, n, cudaMemcpyDeviceToDevice, stream);
}
cudaError_t cudaMemcpy2D(void* d, size_t dp, const void* s, size_t sp, size_t w, size_t h,
                         cudaMemcpyKind k) {
  return copy_2d(d, dp, s, sp, w, h, k, nullptr);
}
cudaError_t cudaMemcpy2DAsync(void* d, size_t dp, const void* s, size_t sp, size_t w, size_t h,
                              cudaMemcpyKind k, cudaStream_t stream) {
  return copy_2d(d, dp, s, sp, w, h, k, stream);
}
cudaError_t cudaMemset(void* d, int v, size_t n) {
  return fill(d, n, v, n, n ? 1 : 0, nullptr);
}
cudaError_t cudaMemsetAsync(void* d, int v, size_t n, cudaStream_t stream) {
  return fill(d, n, v, n, n ? 1 : 0, stream);
}
cudaError_t cudaMemset2D(void* d, size_t pitch, int v, size_t w, size_t h) {
  return fill(d, pitch, v, w, h, nullptr);
}
cudaError_t cudaMemset2DAsync(void* d, size_t pitch, int v, size_t w, size_t h,
                              cudaStream_t stream) {
  return fill(d, pitch, v, w, h, stream);
}
cudaError_t cudaMemPrefetchAsync(const void*, size_t, cudaMemLocation, unsigned, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, cudaMemLocation) {
  return cudaSuccess;
}

// ---------------------------------------------------------------- symbols
cudaError_t cudaGetSymbolAddress(void** p, const void* symbol) {
  API_ENTER();
  size_t bytes;
  return finish(find_symbol(symbol, p, &bytes));
}
cudaError_t cudaGetSymbolSize(size_t* bytes, const void* symbol) {
  API_ENTER();
  void* p;
  return finish(find_symbol(symbol, &p, bytes));
}
cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* s, size_t n, size_t offset,
                                    cudaMemcpyKind k, cudaStream_t stream) {
  API_ENTER();
  void* p;
  size_t bytes;
  if (cudaError_t e = find_symbol(symbol, &p, &bytes)) return finish(e);
  if (offset + n > bytes) return finish(cudaErrorInvalidValue);
  return copy((char*)p + offset, s, n, k, stream);
}
cudaError_t cudaMemcpyFromSymbolAsync(void* d, const void* symbol, size_t n, size_t offset,
                                      cudaMemcpyKind k, cudaStream_t stream) {
  API_ENTER();
  void* p;
  size_t bytes;
  if (cudaError_t e = find_symbol(symbol, &p, &bytes)) return finish(e);
  if (offset + n > bytes) return finish(cudaErrorInvalidValue);
  return copy(d, (char*)p + offset, n, k, stream);
}
cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* s, size_t n, size_t offset,
                               cudaMemcpyKind k) {
  return cudaMemcpyToSymbolAsync(symbol, s, n, offset, k, nullptr);
}
cudaError_t cudaMemcpyFromSymbol(void* d, const void* symbol, size_t n, size_t offset,
                                 cudaMemcpyKind k) {
  return cudaMemcpyFromSymbolAsync(d, symbol, n, offset, k, nullptr);
}

// ---------------------------------------------------------------- stream-ordered allocation
cudaError_t cudaMallocAsync(void** p, size_t bytes, cudaStream_t stream) {
  return allocate_async(p, bytes, stream);
}
cudaError_t cudaMallocFromPoolAsync(void** p, size_t bytes, cudaMemPool_t, cudaStream_t stream) {
  return allocate_async(p, bytes, stream);
}
cudaError_t cudaFreeAsync(void* p, cudaStream_t stream) {
  API_ENTER();
  if (stream_is_capturing(stream))
    return finish(submit(stream, NodeKind::OTHER,
                         [] { return cudaSuccess; }));  // every replay needs it again
  return release(p, Kind::DEVICE, Kind::DEVICE);
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  *pool = default_pool();
  return cudaSuccess;
}
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int) {
  *pool = default_pool();
  return cudaSuccess;
}
cudaError_t cudaDeviceSetMemPool(int, cudaMemPool_t) {
  return cudaSuccess;
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps*) {
  *pool = new CUmemPoolHandle_st;
  return cudaSuccess;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  if (pool != default_pool()) delete pool;
  return cudaSuccess;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) {
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, size_t) {
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr a, void* value) {
  if (a == cudaMemPoolAttrReleaseThreshold) pool->threshold = *(u64*)value;
  return cudaSuccess;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr a, void* value) {
  switch (a) {
    case cudaMemPoolAttrReleaseThreshold:
      *(u64*)value = pool->threshold;
      break;
    case cudaMemPoolAttrReservedMemCurrent:
    case cudaMemPoolAttrUsedMemCurrent:
    case cudaMemPoolAttrReservedMemHigh:
    case cudaMemPoolAttrUsedMemHigh:
      *(u64*)value = arena_used();
      break;
    default:
      *(int*)value = 1;
  }
  return cudaSuccess;
}
}
