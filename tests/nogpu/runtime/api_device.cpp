// SPDX-License-Identifier: Apache-2.0
//
// Device properties, limits, error texts, device printf and malloc.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include "api.h"
#include "device_model.h"

static int program_target;
void note_program_target(int target) {
  if (!program_target) program_target = target;
}

const DeviceModel& device_model() {
  static DeviceModel d = [] {
    int c = settings().capability ? settings().capability : max_(80, program_target);
    DeviceModel m = {c / 10,    c % 10,     settings().multiprocessors,
                     48 * 1024, 163 * 1024, 164 * 1024,
                     2048,      32,         65536};
    if (c >= 90) {
      m.shared_per_block_optin = 227 * 1024;
      m.shared_per_multiprocessor = 228 * 1024;
    } else if (c == 86 || c == 89) {
      m.shared_per_block_optin = 99 * 1024;
      m.shared_per_multiprocessor = 100 * 1024;
      m.max_threads_per_multiprocessor = 1536;
      m.max_blocks_per_multiprocessor = 24;
    }
    return m;
  }();
  return d;
}

static thread_local cudaError_t last_error;
cudaError_t finish(cudaError_t e) {
  if (e != cudaSuccess) {
    if (e != cudaErrorNotReady) last_error = e;
    if (e == sticky_error()) note_sticky_seen();
  }
  return e;
}

static cudaError_t check_device(int d) {
  return finish(d == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

struct ErrorText {
  int code;
  const char *name, *text;
};
static const ErrorText error_table[] = {
#include "error_names.inc"
};
static const ErrorText* error_text(int code) {
  for (auto& e : error_table)
    if (e.code == code) return &e;
  return nullptr;
}

extern "C" {
cudaError_t cudaGetLastError() {
  if (cudaError_t e = sticky_error()) return finish(e);
  cudaError_t e = last_error;
  last_error = cudaSuccess;
  return e;
}
cudaError_t cudaPeekAtLastError() {
  if (cudaError_t e = sticky_error()) return finish(e);
  return last_error;
}
const char* cudaGetErrorName(cudaError_t e) {
  const ErrorText* t = error_text(e);
  return t ? t->name : "unrecognized error code";
}
const char* cudaGetErrorString(cudaError_t e) {
  const ErrorText* t = error_text(e);
  return t ? t->text : "unrecognized error code";
}

cudaError_t cudaGetDeviceCount(int* n) {
  *n = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* d) {
  *d = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int d) {
  return check_device(d);
}
cudaError_t cudaInitDevice(int d, unsigned, unsigned) {
  return check_device(d);
}
cudaError_t cudaSetDeviceFlags(unsigned) {
  return cudaSuccess;
}
cudaError_t cudaGetDeviceFlags(unsigned* f) {
  *f = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceReset() {
  clear_sticky_error();
  last_error = cudaSuccess;
  arena_reset();
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* v) {
  *v = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* v) {
  *v = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetCacheConfig(cudaFuncCache* c) {
  *c = cudaFuncCachePreferNone;
  return cudaSuccess;
}
cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) {
  return cudaSuccess;
}
cudaError_t cudaDeviceSetLimit(cudaLimit, size_t) {
  return cudaSuccess;
}
cudaError_t cudaDeviceGetLimit(size_t* v, cudaLimit l) {
  *v = l == cudaLimitStackSize        ? settings().stack
       : l == cudaLimitPrintfFifoSize ? 1 << 20
       : l == cudaLimitMallocHeapSize ? settings().memory
                                      : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* s, int n, int d) {
  snprintf(s, n, "0000:00:00.0");
  return check_device(d);
}
cudaError_t cudaDeviceGetByPCIBusId(int* d, const char*) {
  *d = 0;
  return cudaSuccess;
}
cudaError_t cudaCtxResetPersistingL2Cache() {
  return cudaSuccess;
}
cudaError_t cudaProfilerStart() {
  return cudaSuccess;
}
cudaError_t cudaProfilerStop() {
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* v, cudaDeviceAttr a, int device) {
  const DeviceModel& d = device_model();
  if (device) return check_device(device);
  switch ((int)a) {
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
      *v = 1024;
      break;
    case cudaDevAttrMaxBlockDimZ:
      *v = 64;
      break;
    case cudaDevAttrMaxGridDimX:
      *v = 0x7fffffff;
      break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
      *v = 65535;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *v = (int)d.shared_per_block;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *v = (int)d.shared_per_block_optin;
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *v = (int)d.shared_per_multiprocessor;
      break;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      *v = 1024;
      break;
    case cudaDevAttrTotalConstantMemory:
      *v = 65536;
      break;
    case cudaDevAttrWarpSize:
      *v = 32;
      break;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      *v = (int)d.registers_per_multiprocessor;
      break;
    case cudaDevAttrClockRate:
      *v = 1410000;
      break;
    case cudaDevAttrMemoryClockRate:
      *v = 1215000;
      break;
    case cudaDevAttrGlobalMemoryBusWidth:
      *v = 5120;
      break;
    case cudaDevAttrL2CacheSize:
      *v = 40 << 20;
      break;
    case cudaDevAttrTextureAlignment:
      *v = 512;
      break;
    case cudaDevAttrMultiProcessorCount:
      *v = d.multiprocessors;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *v = (int)d.max_threads_per_multiprocessor;
      break;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      *v = (int)d.max_blocks_per_multiprocessor;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *v = d.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *v = d.minor;
      break;
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrGlobalL1CacheSupported:
    case cudaDevAttrLocalL1CacheSupported:
    case cudaDevAttrEccEnabled:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrComputePreemptionSupported:
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
      *v = 1;
      break;
    case cudaDevAttrAsyncEngineCount:
      *v = 2;
      break;
    default:
      *v = 0;
  }
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  if (device) return check_device(device);
  const DeviceModel& d = device_model();
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "nogpu CPU emulation");
  p->totalGlobalMem = settings().memory;
  p->sharedMemPerBlock = d.shared_per_block;
  p->sharedMemPerBlockOptin = d.shared_per_block_optin;
  p->sharedMemPerMultiprocessor = d.shared_per_multiprocessor;
  p->reservedSharedMemPerBlock = 1024;
  p->regsPerBlock = p->regsPerMultiprocessor = (int)d.registers_per_multiprocessor;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 0x7fffffff;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->totalConstMem = 65536;
  p->major = d.major;
  p->minor = d.minor;
  p->multiProcessorCount = d.multiprocessors;
  p->maxThreadsPerMultiProcessor = (int)d.max_threads_per_multiprocessor;
  p->maxBlocksPerMultiProcessor = (int)d.max_blocks_per_multiprocessor;
  p->l2CacheSize = 40 << 20;
  p->memoryBusWidth = 5120;
  p->textureAlignment = 512;
  p->texturePitchAlignment = 32;
  p->concurrentKernels = p->unifiedAddressing = p->managedMemory = p->cooperativeLaunch =
      p->memoryPoolsSupported = 1;
  p->canMapHostMemory = p->streamPrioritiesSupported = p->concurrentManagedAccess =
      p->hostRegisterSupported = 1;
  p->asyncEngineCount = 2;
  return cudaSuccess;
}

// ---------------------------------------------------------------- called by kernels
u64 nogpu_device_malloc(Thread*, u64 bytes) {
  return bytes ? (u64)arena_allocate(bytes, Kind::DEVICE) : 0;
}
void nogpu_device_free(Thread* t, u64 p) {
  if (p && !arena_free((void*)p, Kind::DEVICE, Kind::DEVICE))
    fault(t, cudaErrorIllegalAddress, 0, "device free() of 0x%llx: %s", (unsigned long long)p,
          arena_describe(p).c_str());
}

// Arguments lie in the buffer as C varargs: 8-byte ones aligned, floats already promoted.
int nogpu_printf(Thread*, const char* f, const char* args) {
  std::string out;
  u64 at = 0;
  int conversions = 0;
  auto take = [&](void* value, u64 bytes) {
    at = (at + bytes - 1) / bytes * bytes;
    memcpy(value, args + at, bytes);
    at += bytes;
  };
  while (*f) {
    if (*f != '%') {
      out += *f++;
      continue;
    }
    if (f[1] == '%') {
      out += '%';
      f += 2;
      continue;
    }
    std::string spec = "%";
    bool wide = false;
    for (f++; *f && !strchr("diouxXeEfFgGaAcsp", *f); f++) {
      if (*f == '*') {
        int n;
        take(&n, 4);
        spec += std::to_string(n);
      } else
        spec += *f;
      if (*f == 'l' || *f == 'z' || *f == 'j' || *f == 't') wide = true;
    }
    if (!*f) break;
    const char c = *f++;
    spec += c;
    char text[512];
    if (strchr("eEfFgGaA", c)) {
      double v;
      take(&v, 8);
      snprintf(text, sizeof text, spec.c_str(), v);
    } else if (c == 's') {
      const char* v;
      take(&v, 8);
      snprintf(text, sizeof text, spec.c_str(), v);
    } else if (c == 'p' || wide) {
      long v;
      take(&v, 8);
      snprintf(text, sizeof text, spec.c_str(), v);
    } else {
      int v;
      take(&v, 4);
      snprintf(text, sizeof text, spec.c_str(), v);
    }
    out += text;
    conversions++;
  }
  fwrite(out.data(), 1, out.size(), stdout);
  return conversions;
}
}
