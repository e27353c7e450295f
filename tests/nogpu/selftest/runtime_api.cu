// SPDX-License-Identifier: Apache-2.0
//
// The CUDA runtime API: memory, streams, events, errors, attributes, graphs, cooperative launches.
#include "check.h"
#include <cooperative_groups.h>
#include <numeric>
namespace cg = cooperative_groups;

__global__ void add_one(int* p, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) p[i]++;
}
__global__ void scale(float* p, float f, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) p[i] *= f;
}
__global__ void dynamic_sum(const int* p, int* o) {
  extern __shared__ int s[];
  s[threadIdx.x] = p[threadIdx.x];
  __syncthreads();
  for (int k = blockDim.x / 2; k; k /= 2) {
    if (threadIdx.x < k) s[threadIdx.x] += s[threadIdx.x + k];
    __syncthreads();
  }
  if (!threadIdx.x) *o = s[0];
}
__global__ void fails() {
  __trap();
}

TEST(device_queries) {
  int n, d, v, major, minor;
  CUDA(cudaGetDeviceCount(&n));
  CUDA(cudaGetDevice(&d));
  EXPECT(n == 1 && d == 0);
  CUDA(cudaSetDevice(0));
  EXPECT(cudaSetDevice(1) == cudaErrorInvalidDevice &&
         cudaGetLastError() == cudaErrorInvalidDevice && cudaGetLastError() == cudaSuccess);
  cudaDeviceProp p;
  CUDA(cudaGetDeviceProperties(&p, 0));
  CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
  EXPECT(p.major == major && p.minor == minor && major >= 8 && p.warpSize == 32 &&
         p.maxThreadsPerBlock == 1024);
  CUDA(cudaDeviceGetAttribute(&v, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
  EXPECT(v == (int)p.sharedMemPerBlockOptin && v > 48 * 1024);
  CUDA(cudaRuntimeGetVersion(&v));
  EXPECT(v >= 13000);
  EXPECT(!strcmp(cudaGetErrorName(cudaErrorInvalidValue), "cudaErrorInvalidValue") &&
         !strcmp(cudaGetErrorString(cudaSuccess), "no error"));
}
TEST(memory_management) {
  void *p = (void*)1, *q;
  CUDA(cudaMalloc(&p, 0));
  EXPECT(p == nullptr);
  CUDA(cudaFree(nullptr));
  CUDA(cudaMalloc(&p, 1000));
  EXPECT((uintptr_t)p % 256 == 0);
  EXPECT(cudaFree((char*)p + 4) == cudaErrorInvalidValue &&
         cudaGetLastError() == cudaErrorInvalidValue);
  std::vector<unsigned char> h(1000, 1);
  CUDA(cudaMemcpy(h.data(), p, 1000, cudaMemcpyDeviceToHost));
  for (auto c : h) EXPECT(c == 0xff);  // poison
  size_t free1, free2, total;
  CUDA(cudaMemGetInfo(&free1, &total));
  CUDA(cudaMalloc(&q, 1 << 20));
  CUDA(cudaMemGetInfo(&free2, &total));
  EXPECT(free1 - free2 == 1 << 20 && free1 < total);
  CUDA(cudaFree(q));
  EXPECT(cudaMalloc(&q, total + 1) == cudaErrorMemoryAllocation &&
         cudaGetLastError() == cudaErrorMemoryAllocation);
  cudaPointerAttributes a;
  CUDA(cudaPointerGetAttributes(&a, (char*)p + 10));
  EXPECT(a.type == cudaMemoryTypeDevice && a.device == 0);
  CUDA(cudaPointerGetAttributes(&a, h.data()));
  EXPECT(a.type == cudaMemoryTypeUnregistered);
  CUDA(cudaFree(p));
  int *pinned, *managed;
  CUDA(cudaMallocHost(&pinned, 400));
  CUDA(cudaMallocManaged(&managed, 400));
  for (int i = 0; i < 100; i++) pinned[i] = managed[i] = i;
  add_one<<<1, 128>>>(pinned, 100);
  add_one<<<1, 128>>>(managed, 100);
  SYNC();
  for (int i = 0; i < 100; i++) EXPECT(pinned[i] == i + 1 && managed[i] == i + 1);
  CUDA(cudaPointerGetAttributes(&a, pinned));
  EXPECT(a.type == cudaMemoryTypeHost);
  CUDA(cudaFreeHost(pinned));
  CUDA(cudaFree(managed));
  CUDA(cudaHostAlloc(&pinned, 64, cudaHostAllocMapped));
  CUDA(cudaFreeHost(pinned));
  std::vector<int> plain(100, 5);
  CUDA(cudaHostRegister(plain.data(), 400, 0));
  add_one<<<1, 128>>>(plain.data(), 100);
  SYNC();
  CUDA(cudaHostUnregister(plain.data()));
  EXPECT(plain[99] == 6);
}
TEST(copies) {
  std::vector<int> h(100);
  std::iota(h.begin(), h.end(), 0);
  Device<int> d(h), e(100, 0);
  CUDA(cudaMemcpy(e, d, 400, cudaMemcpyDefault));
  EXPECT(e.get() == h);
  size_t pitch;
  char* m;
  CUDA(cudaMallocPitch(&m, &pitch, 40, 10));
  EXPECT(pitch >= 40 && pitch % 32 == 0);
  CUDA(cudaMemcpy2D(m, pitch, h.data(), 40, 40, 10, cudaMemcpyHostToDevice));
  std::vector<int> back(100, -1);
  CUDA(cudaMemcpy2DAsync(back.data(), 40, m, pitch, 40, 10, cudaMemcpyDeviceToHost, 0));
  CUDA(cudaDeviceSynchronize());
  EXPECT(back == h);
  CUDA(cudaMemset2D(m, pitch, 0, 20, 10));
  CUDA(cudaMemcpy2D(back.data(), 40, m, pitch, 40, 10, cudaMemcpyDeviceToHost));
  EXPECT(back[0] == 0 && back[4] == 0 && back[5] == 5 && back[94] == 0 && back[99] == 99);
  EXPECT(cudaMemcpy2D(m, 20, h.data(), 40, 40, 10, cudaMemcpyHostToDevice) ==
         cudaErrorInvalidPitchValue);
  EXPECT(cudaMemcpy(e, d, 404, cudaMemcpyDeviceToDevice) == cudaErrorInvalidValue);
  cudaGetLastError();
  CUDA(cudaMemsetAsync(e, 1, 400, 0));
  EXPECT(e.get()[7] == 0x01010101);
  CUDA(cudaFree(m));
}
__constant__ int table[4] = {1, 2, 3, 4};
__device__ float global_value = 2.5f;
__device__ int* pointer_to_itself;
__managed__ int shared_counter = 7;
__global__ void use_symbols(float* o) {
  o[threadIdx.x] = table[threadIdx.x & 3] * global_value;
  if (!threadIdx.x) shared_counter++;
}
TEST(symbols) {
  Device<float> o(4);
  use_symbols<<<1, 4>>>(o);
  SYNC();
  EXPECT(o.get()[3] == 10 && shared_counter == 8);
  shared_counter = 20;
  int t[4] = {5, 6, 7, 8};
  CUDA(cudaMemcpyToSymbol(table, t, 16));
  float *p, v;
  size_t n;
  CUDA(cudaGetSymbolAddress((void**)&p, global_value));
  CUDA(cudaGetSymbolSize(&n, global_value));
  EXPECT(n == 4);
  v = 3;
  CUDA(cudaMemcpy(p, &v, 4, cudaMemcpyHostToDevice));
  use_symbols<<<1, 4>>>(o);
  SYNC();
  EXPECT(o.get()[3] == 24 && shared_counter == 21);
  CUDA(cudaMemcpyFromSymbol(&v, global_value, 4));
  EXPECT(v == 3);
  EXPECT(cudaMemcpyToSymbol(table, t, 16, 4) == cudaErrorInvalidValue &&
         cudaGetLastError() == cudaErrorInvalidValue);
}
TEST(streams_and_events) {
  cudaStream_t a, b;
  cudaEvent_t x, y;
  CUDA(cudaStreamCreate(&a));
  CUDA(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
  CUDA(cudaEventCreate(&x));
  CUDA(cudaEventCreate(&y));
  Device<int> d(1000, 0);
  CUDA(cudaEventRecord(x, a));
  add_one<<<4, 256, 0, a>>>(d, 1000);
  CUDA(cudaEventRecord(y, a));
  CUDA(cudaStreamWaitEvent(b, y, 0));
  add_one<<<4, 256, 0, b>>>(d, 1000);
  CUDA(cudaStreamSynchronize(b));
  CUDA(cudaEventSynchronize(y));
  CUDA(cudaEventQuery(y));
  CUDA(cudaStreamQuery(a));
  float ms = -1;
  CUDA(cudaEventElapsedTime(&ms, x, y));
  EXPECT(ms >= 0 && ms < 60000 && d.get()[999] == 2);
  int called = 0;
  CUDA(cudaLaunchHostFunc(
      a, [](void* p) { ++*(int*)p; }, &called));
  CUDA(cudaStreamSynchronize(a));
  EXPECT(called == 1);
  CUDA(cudaEventDestroy(x));
  CUDA(cudaEventDestroy(y));
  CUDA(cudaStreamDestroy(a));
  CUDA(cudaStreamDestroy(b));
  EXPECT(cudaStreamSynchronize(b) == cudaErrorInvalidResourceHandle);
  cudaGetLastError();
}
TEST(async_allocation) {
  cudaStream_t s;
  CUDA(cudaStreamCreate(&s));
  cudaMemPool_t pool;
  CUDA(cudaDeviceGetDefaultMemPool(&pool, 0));
  uint64_t threshold = ~0ull, got = 0;
  CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  CUDA(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &got));
  EXPECT(got == threshold);
  int* p;
  CUDA(cudaMallocAsync(&p, 4000, s));
  CUDA(cudaMemsetAsync(p, 0, 4000, s));
  add_one<<<4, 256, 0, s>>>(p, 1000);
  int v;
  CUDA(cudaMemcpyAsync(&v, p + 999, 4, cudaMemcpyDeviceToHost, s));
  CUDA(cudaFreeAsync(p, s));
  CUDA(cudaStreamSynchronize(s));
  EXPECT(v == 1);
  CUDA(cudaMallocFromPoolAsync((void**)&p, 16, pool, s));
  CUDA(cudaFreeAsync(p, s));
  CUDA(cudaMemPoolTrimTo(pool, 0));
  CUDA(cudaStreamDestroy(s));
}
TEST(function_attributes) {
  cudaFuncAttributes a;
  CUDA(cudaFuncGetAttributes(&a, dynamic_sum));
  EXPECT(a.maxThreadsPerBlock == 1024 && a.sharedSizeBytes == 0 &&
         a.maxDynamicSharedSizeBytes == 48 * 1024 && a.ptxVersion >= 80);
  std::vector<int> h(256, 2);
  Device<int> d(h), o(1);
  dynamic_sum<<<1, 256, 100000>>>(d, o);
  EXPECT(cudaGetLastError() == cudaErrorInvalidValue);
  CUDA(cudaFuncSetAttribute(dynamic_sum, cudaFuncAttributeMaxDynamicSharedMemorySize, 100000));
  dynamic_sum<<<1, 256, 100000>>>(d, o);
  SYNC();
  EXPECT(o.get()[0] == 512);
  EXPECT(cudaFuncSetAttribute(dynamic_sum, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 20) ==
         cudaErrorInvalidValue);
  cudaGetLastError();
  int blocks, grid, block;
  CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, dynamic_sum, 256, 100000));
  EXPECT(blocks >= 1 && blocks <= 2);
  CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add_one, 256, 0));
  EXPECT(blocks == 8);
  CUDA(cudaOccupancyMaxPotentialBlockSize(&grid, &block, add_one));
  EXPECT(block >= 256 && grid >= 1);
}
TEST(launch_errors_are_not_sticky) {
  Device<int> d(10, 0);
  add_one<<<1, 2000>>>(d, 10);
  EXPECT(cudaPeekAtLastError() == cudaErrorInvalidConfiguration);
  EXPECT(cudaPeekAtLastError() == cudaErrorInvalidConfiguration);
  EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);
  EXPECT(cudaGetLastError() == cudaSuccess);
  add_one<<<1, dim3(1, 1, 65)>>>(d, 10);
  EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);
  add_one<<<dim3(1, 65536), 1>>>(d, 10);
  EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);
  add_one<<<1, 32>>>(d, 10);
  SYNC();
  EXPECT(d.get()[9] == 1);
}
TEST(launch_ex) {
  Device<int> d(100, 0);
  cudaLaunchConfig_t c = {};
  c.gridDim = dim3(1);
  c.blockDim = dim3(128);
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  c.attrs = &attribute;
  c.numAttrs = 1;
  CUDA(cudaLaunchKernelEx(&c, add_one, d.p, 100));
  SYNC();
  EXPECT(d.get()[50] == 1);
  int n = 100;
  void* args[] = {&d.p, &n};
  CUDA(cudaLaunchKernel((const void*)add_one, dim3(1), dim3(128), args, 0, nullptr));
  EXPECT(d.get()[50] == 2);
}
__global__ void grid_sum(int* v, int* o, int rounds) {
  cg::grid_group g = cg::this_grid();
  for (int r = 0; r < rounds; r++) {
    if (threadIdx.x == 0) v[blockIdx.x] = (blockIdx.x + 1) * (r + 1);
    g.sync();
    int s = 0;
    for (unsigned i = 0; i < gridDim.x; i++) s += v[i];
    if (threadIdx.x == 0) o[r * gridDim.x + blockIdx.x] = s;
    g.sync();
  }
}
TEST(cooperative_launch) {
  const int blocks = 12, rounds = 3;
  Device<int> v(blocks), o(blocks * rounds);
  int r = rounds;
  void* args[] = {&v.p, &o.p, &r};
  CUDA(
      cudaLaunchCooperativeKernel((const void*)grid_sum, dim3(blocks), dim3(64), args, 0, nullptr));
  SYNC();
  auto got = o.get();
  for (int i = 0; i < blocks * rounds; i++) EXPECT(got[i] == 78 * (i / blocks + 1));
  EXPECT(cudaLaunchCooperativeKernel((const void*)grid_sum, dim3(100000), dim3(64), args, 0,
                                     nullptr) == cudaErrorCooperativeLaunchTooLarge);
  cudaGetLastError();
}
TEST(graph_capture) {
  cudaStream_t s, side;
  cudaEvent_t fork, join;
  CUDA(cudaStreamCreate(&s));
  CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  CUDA(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  CUDA(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
  Device<int> d(100), copy(100, 0);
  Device<float> f(10);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  float factor = 2;
  CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  CUDA(cudaMemsetAsync(d, 0, 400, s));
  CUDA(cudaEventRecord(fork, s));
  CUDA(cudaStreamWaitEvent(side, fork, 0));
  CUDA(cudaMemsetAsync(f, 0, 40, side));
  scale<<<1, 32, 0, side>>>(f, factor, 10);
  CUDA(cudaEventRecord(join, side));
  for (int i = 0; i < 3; i++) add_one<<<1, 128, 0, s>>>(d, 100);
  CUDA(cudaStreamWaitEvent(s, join, 0));
  CUDA(cudaMemcpyAsync(copy, d, 400, cudaMemcpyDeviceToDevice, s));
  cudaStreamCaptureStatus status;
  CUDA(cudaStreamIsCapturing(s, &status));
  EXPECT(status == cudaStreamCaptureStatusActive);
  CUDA(cudaStreamEndCapture(s, &graph));
  factor = 100;                // arguments were copied
  EXPECT(copy.get()[0] == 0);  // nothing has run yet
  size_t nodes = 0;
  CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
  EXPECT(nodes == 7);
  CUDA(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 2; i++) {
    CUDA(cudaMemset(copy, 0, 400));
    CUDA(cudaGraphLaunch(exec, s));
    CUDA(cudaStreamSynchronize(s));
    EXPECT(copy.get()[99] == 3);
  }
  CUDA(cudaGraphExecDestroy(exec));
  CUDA(cudaGraphDestroy(graph));
  // An illegal call invalidates the capture.
  void* p;
  CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  EXPECT(cudaMalloc(&p, 16) == cudaErrorStreamCaptureUnsupported);
  EXPECT(cudaStreamEndCapture(s, &graph) == cudaErrorStreamCaptureInvalidated && graph == nullptr);
  cudaGetLastError();
  CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  add_one<<<1, 128>>>(d, 100);  // the legacy stream would have to wait for the capture
  EXPECT(cudaGetLastError() == cudaErrorStreamCaptureImplicit);
  EXPECT(cudaStreamEndCapture(s, &graph) == cudaErrorStreamCaptureInvalidated);
  cudaGetLastError();
  CUDA(cudaEventDestroy(fork));
  CUDA(cudaEventDestroy(join));
  CUDA(cudaStreamDestroy(s));
  CUDA(cudaStreamDestroy(side));
}
__global__ void prints(const char*) {
  printf("thread %d of %s: %5.2f %c %lld %%\n", threadIdx.x, "block", 1.5 + threadIdx.x, 'x',
         1ll << 40);
}
TEST(device_printf) {  // run.sh compares what it prints
  prints<<<1, 2>>>(nullptr);
  SYNC();
}
struct Shape {
  __device__ virtual int area(int) const { return 0; }
  int side;
};
struct Square : Shape {
  __device__ int area(int k) const override { return side * side * k; }
};
__global__ void virtual_calls(int* o) {
  Square* s = new Square;
  s->side = threadIdx.x;
  const Shape* p = s;
  o[threadIdx.x] = p->area(2);
  delete s;
}
typedef int (*Function)(int);
__device__ int twice(int x) {
  return 2 * x;
}
__device__ int square(int x) {
  return x * x;
}
__device__ Function functions[2] = {twice, square};
__global__ void pointer_calls(int* o) {
  o[threadIdx.x] = functions[threadIdx.x & 1](threadIdx.x);
}
TEST(indirect_calls) {
  Device<int> a(32), b(32);
  virtual_calls<<<1, 32>>>(a);
  pointer_calls<<<1, 32>>>(b);
  SYNC();
  for (int i = 0; i < 32; i++)
    EXPECT(a.get()[i] == 2 * i * i && b.get()[i] == (i & 1 ? i * i : 2 * i));
}
struct Big {
  float x[20];
  int n;
};
__global__ void struct_parameter(const __grid_constant__ Big b, float* o, char c, short s) {
  const Big* p = &b;
  o[threadIdx.x] = p->x[threadIdx.x % 20] * b.n + c + s;
}
TEST(parameters) {
  Big b;
  for (int i = 0; i < 20; i++) b.x[i] = i;
  b.n = 3;
  Device<float> o(32);
  struct_parameter<<<1, 32>>>(b, o, 4, 500);
  SYNC();
  for (int i = 0; i < 32; i++) EXPECT(o.get()[i] == i % 20 * 3 + 504);
}
TEST(zz_faults_are_sticky_until_reset) {  // last: it resets the device
  int* p;
  fails<<<1, 32>>>();
  EXPECT(cudaDeviceSynchronize() == cudaErrorLaunchFailure);
  EXPECT(cudaMalloc(&p, 4) == cudaErrorLaunchFailure &&
         cudaGetLastError() == cudaErrorLaunchFailure &&
         cudaGetLastError() == cudaErrorLaunchFailure);
  CUDA(cudaDeviceReset());
  CUDA(cudaMalloc(&p, 400));
  add_one<<<1, 32>>>(p, 32);
  SYNC();
  CUDA(cudaFree(p));
}
