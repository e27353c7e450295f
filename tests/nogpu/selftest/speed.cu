// SPDX-License-Identifier: Apache-2.0
//
// How fast the emulation is. Not a test.
#include <chrono>
#include <cstdio>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

__global__ void empty() {}
__global__ void arithmetic(float* o, int n) {
  float x = threadIdx.x * 0.001f;
  for (int i = 0; i < n; i++) {
    x = fmaf(x, 0.999f, 0.01f);
    if (x > 5.f) x -= 4.f;
  }
  o[blockIdx.x * blockDim.x + threadIdx.x] = x;
}
__global__ void stream_add(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
__global__ void shuffles(float* o, int n) {
  float x = threadIdx.x;
  for (int i = 0; i < n; i++) x += 0.5f * __shfl_xor_sync(~0u, x, 1 << (i % 5));
  o[blockIdx.x * blockDim.x + threadIdx.x] = x;
}
__global__ void barriers(float* o, int n) {
  __shared__ float s[256];
  float x = threadIdx.x;
  for (int i = 0; i < n; i++) {
    s[threadIdx.x] = x;
    __syncthreads();
    x = s[(threadIdx.x + 1) & 255];
    __syncthreads();
  }
  o[blockIdx.x * blockDim.x + threadIdx.x] = x;
}
__global__ void mmas(float* o, int n) {
  float d[4] = {};
  unsigned a = 0x3f803f80u, b = 0x3f803f80u;
  for (int i = 0; i < n; i++)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3},{%4,%4,%4,%4},{%5,%5},{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a), "r"(b));
  o[blockIdx.x * blockDim.x + threadIdx.x] = d[0];
}
__global__ void matmul(const float* A, const float* B, float* C, int n) {
  __shared__ float a[16][16], b[16][16];
  int x = threadIdx.x, y = threadIdx.y, r = blockIdx.y * 16 + y, c = blockIdx.x * 16 + x;
  float s = 0;
  for (int k = 0; k < n; k += 16) {
    a[y][x] = A[r * n + k + x];
    b[y][x] = B[(k + y) * n + c];
    __syncthreads();
#pragma unroll
    for (int q = 0; q < 16; q++) s += a[y][q] * b[q][x];
    __syncthreads();
  }
  C[r * n + c] = s;
}
template <class F>
void measure(const char* what, double work, const char* unit, F f) {
  f();  // translates the kernel
  auto t = std::chrono::steady_clock::now();
  f();
  cudaDeviceSynchronize();
  double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count();
  printf("%-28s %8.1f ms  %8.1f million %s/s\n", what, s * 1e3, work / s / 1e6, unit);
}
int main() {
  float *p, *q;
  const int n = 1 << 20;
  cudaMalloc(&p, n * 4);
  cudaMalloc(&q, n * 4);
  cudaMemset(p, 0, n * 4);
  cudaMemset(q, 0, n * 4);
  measure("empty kernel, 1M threads", 4096 * 256, "threads", [&] { empty<<<4096, 256>>>(); });
  measure("arithmetic", 16. * 256 * 10000, "loop rounds",
          [&] { arithmetic<<<16, 256>>>(p, 10000); });
  measure("c = a + b", n, "elements", [&] { stream_add<<<n / 256, 256>>>(p, q, p, n); });
  measure("shuffles", 16. * 256 * 200, "lane shuffles", [&] { shuffles<<<16, 256>>>(p, 200); });
  measure("__syncthreads, 256 threads", 16. * 256 * 200, "thread barriers",
          [&] { barriers<<<16, 256>>>(p, 100); });
  measure("mma m16n8k16", 16. * 8 * 100, "warp mma", [&] { mmas<<<16, 256>>>(p, 100); });
  measure("tiled matmul 256^3", 256. * 256 * 256, "fma",
          [&] { matmul<<<dim3(16, 16), dim3(16, 16)>>>(p, q, p, 256); });
}
