// SPDX-License-Identifier: Apache-2.0
//
// Launching kernels and asking about them.
#include <string.h>
#include "api.h"
#include "device_model.h"

static Dim3 dim(dim3 d) {
  return {d.x, d.y, d.z};
}

static cudaError_t launch(const void* f, dim3 grid, dim3 block, void** args, size_t dynamic_shared,
                          cudaStream_t stream, bool cooperative) {
  API_ENTER();
  cudaError_t error = cudaSuccess;
  Kernel* k = find_kernel(f, &error);
  if (!k) return finish(error);
  Launch l;
  l.kernel = k;
  l.grid = dim(grid);
  l.block = dim(block);
  l.dynamic_shared = (u32)min_<u64>(dynamic_shared, ~0u);
  l.cooperative = cooperative;
  if ((error = validate_launch(l))) return finish(error);
  l.params.assign(k->param_bytes, 0);
  for (size_t i = 0; i < k->param_offsets.size(); i++)
    memcpy(l.params.data() + k->param_offsets[i], args[i], k->param_sizes[i]);
  return finish(submit(stream, NodeKind::KERNEL, [l] { return run_launch(l); }));
}

static thread_local struct {
  dim3 grid, block;
  size_t shared;
  void* stream;
} pushed;

extern "C" {
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared,
                                     struct CUstream_st* stream) {
  pushed = {grid, block, shared, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared = pushed.shared;
  *(void**)stream = pushed.stream;
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* f, dim3 grid, dim3 block, void** args, size_t shared,
                             cudaStream_t stream) {
  return launch(f, grid, block, args, shared, stream, false);
}
cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3 grid, dim3 block, void** args, size_t shared,
                               cudaStream_t stream) {
  return launch((const void*)k, grid, block, args, shared, stream, false);
}
cudaError_t cudaLaunchCooperativeKernel(const void* f, dim3 grid, dim3 block, void** args,
                                        size_t shared, cudaStream_t stream) {
  return launch(f, grid, block, args, shared, stream, true);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void* f, void** args) {
  bool cooperative = false;
  for (unsigned i = 0; i < c->numAttrs; i++) {
    const cudaLaunchAttribute& a = c->attrs[i];
    if (a.id == cudaLaunchAttributeCooperative) cooperative = a.val.cooperative != 0;
    if (a.id == cudaLaunchAttributeClusterDimension &&
        (u64)a.val.clusterDim.x * a.val.clusterDim.y * a.val.clusterDim.z > 1) {
      log_line("error: thread-block clusters are not emulated");
      note_problem("a cluster launch is not emulated");
      return finish(cudaErrorNotSupported);
    }
  }
  return launch(f, c->gridDim, c->blockDim, args, c->dynamicSmemBytes, c->stream, cooperative);
}

cudaError_t cudaFuncSetAttribute(const void* f, cudaFuncAttribute attribute, int value) {
  API_ENTER();
  cudaError_t e = cudaSuccess;
  Kernel* k = find_kernel(f, &e);
  if (!k) return finish(e);
  switch (attribute) {
    case cudaFuncAttributeMaxDynamicSharedMemorySize:
      if (value < 0 || k->static_shared + (u64)value > device_model().shared_per_block_optin)
        return finish(cudaErrorInvalidValue);
      k->max_dynamic_shared = max_<u32>(value, 0);
      return cudaSuccess;
    case cudaFuncAttributePreferredSharedMemoryCarveout:
      return finish(value < -1 || value > 100 ? cudaErrorInvalidValue : cudaSuccess);
    case cudaFuncAttributeNonPortableClusterSizeAllowed:
    case cudaFuncAttributeClusterSchedulingPolicyPreference:
      return cudaSuccess;
    default:
      return finish(cudaErrorInvalidValue);
  }
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, const void* f) {
  API_ENTER();
  cudaError_t e = cudaSuccess;
  Kernel* k = find_kernel(f, &e);
  if (!k) return finish(e);
  memset(a, 0, sizeof *a);
  a->sharedSizeBytes = k->static_shared;
  a->localSizeBytes = k->local_bytes;
  a->maxThreadsPerBlock = (int)k->max_threads;
  a->numRegs = DeviceModel::REGISTERS_PER_THREAD;
  a->ptxVersion = a->binaryVersion = k->module->target;
  a->maxDynamicSharedSizeBytes = (int)k->max_dynamic_shared;
  a->preferredShmemCarveout = -1;
  return cudaSuccess;
}
cudaError_t cudaFuncSetCacheConfig(const void*, cudaFuncCache) {
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* f,
                                                                   int threads, size_t shared,
                                                                   unsigned) {
  API_ENTER();
  cudaError_t e = cudaSuccess;
  Kernel* k = find_kernel(f, &e);
  if (!k) return finish(e);
  if (threads <= 0) return finish(cudaErrorInvalidValue);
  *blocks = blocks_per_multiprocessor(k, (u32)threads, shared);
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* f, int threads,
                                                          size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, f, threads, shared, 0);
}
cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, const void* f, int blocks,
                                                      int threads) {
  API_ENTER();
  cudaError_t e = cudaSuccess;
  Kernel* k = find_kernel(f, &e);
  if (!k) return finish(e);
  if (blocks <= 0 || threads <= 0) return finish(cudaErrorInvalidValue);
  u64 each = device_model().shared_per_multiprocessor / blocks, reserved = k->static_shared + 1024;
  *bytes = each > reserved ? min_<u64>(each - reserved,
                                       device_model().shared_per_block_optin - k->static_shared)
                           : 0;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t*) {
  *clusters = 0;
  return finish(cudaErrorNotSupported);
}
}
