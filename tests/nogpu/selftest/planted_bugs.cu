// SPDX-License-Identifier: Apache-2.0
//
// Kernels with one bug each. Usage: planted_bugs NAME; prints the error the runtime reports.
// run.sh knows which error and which report each of them must give.
#include <cassert>
#include <cstdio>
#include <cstring>
#include <cuda_runtime.h>

__global__ void past_end(int* p, int n) {
  p[threadIdx.x + n] = 1;
}
__global__ void before_start(const int* p, int* out) {
  out[threadIdx.x] = p[(int)threadIdx.x - 1];
}
__global__ void read_only(const int* p, int* out, int n) {
  out[threadIdx.x] = p[n];
}
__global__ void misaligned(const char* p, float4* out) {
  *out = *(const float4*)(p + 4);
}
__global__ void misaligned_shared(float* out, int k) {
  __shared__ __align__(16) float s[64];
  s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  float x, y;
  asm volatile("ld.shared.v2.f32 {%0,%1},[%2];"
               : "=f"(x), "=f"(y)
               : "r"((unsigned)__cvta_generic_to_shared(s + k)));
  out[threadIdx.x] = x + y;
}
__global__ void shared_static(float* out, int k) {
  __shared__ float s[64];
  s[threadIdx.x + k] = 1.f;
  __syncthreads();
  out[threadIdx.x] = s[threadIdx.x];
}
__global__ void shared_dynamic(float* out, int k) {
  extern __shared__ float d[];
  d[threadIdx.x] = 1.f;
  __syncthreads();
  out[threadIdx.x] = d[threadIdx.x + k];
}
__global__ void generic_shared(float* out, int k) {
  __shared__ float s[32];
  float* volatile q = k > 1000000 ? out : s;
  q[threadIdx.x + k] = 2.f;
}
__global__ void divergent(int* o) {
  if (threadIdx.x < 16) __syncthreads();
  o[threadIdx.x] = 1;
}
__global__ void two_barriers(int* o) {
  if (threadIdx.x < 32) {
    o[threadIdx.x] = 2;
    __syncthreads();
    o[threadIdx.x]++;
  } else {
    o[threadIdx.x] = 3;
    __syncthreads();
    o[threadIdx.x] += 5;
  }
}
__global__ void wrong_mask(int* o) {
  int v = threadIdx.x;
  if (threadIdx.x < 16)
    v = __shfl_down_sync(0xffffffffu, v, 1);
  else
    __syncthreads();
  o[threadIdx.x] = v;
}
__global__ void not_in_mask(int* o) {
  o[threadIdx.x] = __shfl_down_sync(0xffffu, (int)threadIdx.x, 1);
}
__global__ void exited_lanes(int* o) {
  if (threadIdx.x > 20) return;
  o[threadIdx.x] = __shfl_down_sync(0xffffffffu, (int)threadIdx.x, 1);
}
__global__ void traps(int n) {
  if (threadIdx.x == 5 && n) __trap();
}
__global__ void asserts(int n) {
  assert(n + (int)threadIdx.x != 7 && "planted");
}
__noinline__ __device__ int deep(int n, int* o) {
  int local[64];
  for (int i = 0; i < 64; i++) local[i] = o[(i + n) & 31];
  return n == 0 ? local[5] : deep(n - 1, o) + local[n & 63];
}
__global__ void recursion(int* o, int n) {
  o[threadIdx.x] = deep(n, o);
}
__global__ void race(int* o) {
  __shared__ int s[64];
  s[threadIdx.x] = threadIdx.x;
  o[threadIdx.x] = s[(threadIdx.x + 1) & 63];  // no __syncthreads
}
__global__ void race_forward(int* o) {  // wrong only under other thread orders
  __shared__ int s[64];
  s[threadIdx.x] = threadIdx.x;
  o[threadIdx.x] = threadIdx.x ? s[threadIdx.x - 1] : 0;
}
__global__ void missing_wait(const float4* in, float4* out) {
  __shared__ float4 s[32];
  unsigned to = (unsigned)__cvta_generic_to_shared(&s[threadIdx.x]);
  asm volatile("cp.async.ca.shared.global [%0],[%1],16; cp.async.commit_group;" ::"r"(to),
               "l"(in + threadIdx.x)
               : "memory");
  __syncthreads();  // no cp.async.wait_group
  out[threadIdx.x] = s[threadIdx.x];
}
__global__ void uninitialized(float* o) {
  __shared__ float s[64];
  o[threadIdx.x] = s[threadIdx.x];
}
__global__ void spins(volatile int* flag) {
  while (*flag == 0) {
  }
}
__global__ void exotic(double* o) {
  double d0 = 0, d1 = 0;
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1},{%2},{%3},{%0,%1};"
               : "+d"(d0), "+d"(d1)
               : "d"(1.0), "d"(2.0));
  o[threadIdx.x] = d0 + d1;
}
__global__ void good(int* o) {
  o[threadIdx.x] = threadIdx.x;
}
__global__ void __launch_bounds__(64) bounded(int* o) {
  o[threadIdx.x] = 1;
}

int main(int argc, char** argv) {
  const char* name = argc > 1 ? argv[1] : "";
  auto is = [&](const char* s) { return !strcmp(name, s); };
  int *o, *more;
  static int host[64];
  cudaMalloc(&o, 64 * 4);
  cudaMalloc(&more, 64 * 4);
  cudaMemset(o, 0, 64 * 4);
  if (is("past_end")) past_end<<<1, 64>>>(o, 8);
  if (is("far_past_end")) past_end<<<1, 64>>>(o, 1 << 20);
  if (is("before_start")) before_start<<<1, 64>>>(o, more);
  if (is("read_past_end")) read_only<<<1, 64>>>(o, more, 64);
  if (is("host_pointer")) past_end<<<1, 64>>>(host, 0);
  if (is("null_pointer")) past_end<<<1, 64>>>(nullptr, 0);
  if (is("use_after_free")) {
    cudaFree(more);
    past_end<<<1, 64>>>(more, 0);
  }
  if (is("misaligned")) misaligned<<<1, 1>>>((char*)o, (float4*)more);
  if (is("misaligned_shared")) misaligned_shared<<<1, 32>>>((float*)o, 1);
  if (is("shared_static")) shared_static<<<1, 64>>>((float*)o, 1);
  if (is("shared_dynamic")) shared_dynamic<<<1, 64, 256>>>((float*)o, 4);
  if (is("generic_shared")) generic_shared<<<1, 32>>>((float*)o, 3);
  if (is("divergent")) divergent<<<1, 64>>>(o);
  if (is("two_barriers")) two_barriers<<<1, 64>>>(o);
  if (is("wrong_mask")) wrong_mask<<<1, 64>>>(o);
  if (is("not_in_mask")) not_in_mask<<<1, 32>>>(o);
  if (is("exited_lanes")) exited_lanes<<<1, 32>>>(o);
  if (is("trap") || is("ignored_trap")) traps<<<1, 32>>>(1);
  if (is("assert")) asserts<<<2, 32>>>(0);
  if (is("recursion")) recursion<<<1, 32>>>(o, 100000);
  if (is("race")) race<<<1, 64>>>(o);
  if (is("race_forward")) race_forward<<<1, 64>>>(o);
  if (is("missing_wait")) {
    float4 *in, *out, h[32];
    cudaMalloc(&in, 512);
    cudaMalloc(&out, 512);
    cudaMemset(in, 0, 512);
    missing_wait<<<1, 32>>>(in, out);
    cudaMemcpy(h, out, 512, cudaMemcpyDeviceToHost);
    printf("%s\n", h[3].x == 0 ? "correct" : "wrong");
  }
  if (is("uninitialized")) {
    uninitialized<<<1, 64>>>((float*)o);
    cudaMemcpy(host, o, 256, cudaMemcpyDeviceToHost);
    printf("%s\n", host[0] == -1 && host[63] == -1 ? "poison" : "other");
  }
  if (is("spins")) spins<<<1, 1>>>(o);
  if (is("untranslated")) exotic<<<1, 32>>>((double*)o);
  if (is("ignored_untranslated")) {
    exotic<<<1, 32>>>((double*)o);
    return 0;
  }
  if (is("ignored_trap")) return 0;
  if (is("too_many_threads")) good<<<1, 1025>>>(o);
  if (is("empty_block")) good<<<1, 0>>>(o);
  if (is("empty_grid")) good<<<0, 32>>>(o);
  if (is("too_much_shared")) shared_dynamic<<<1, 64, 60000>>>((float*)o, 0);
  if (is("launch_bounds")) bounded<<<1, 128>>>(o);
  if (is("host_reads_device")) {
    cudaDeviceSynchronize();
    printf("%d\n", o[3]);
    return 0;
  }
  if (is("unordered") || is("ordered") || is("recorded_too_early")) {
    cudaStream_t one, two;
    cudaEvent_t between;
    cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking);
    cudaEventCreate(&between);
    cudaDeviceSynchronize();
    if (is("recorded_too_early")) cudaEventRecord(between, one);
    cudaMemsetAsync(o, 1, 256, one);
    if (is("ordered")) cudaEventRecord(between, one);
    if (!is("unordered")) cudaStreamWaitEvent(two, between, 0);
    cudaMemcpyAsync(host, o + 8, 4, cudaMemcpyDeviceToHost, two);
    cudaMemsetAsync(o + 32, 2, 128, two);
  }
  if (is("leak")) {
    cudaFree(o);
    return 0;
  }
  if (is("host_copy_past_end")) {
    int e = cudaMemcpy(host, o, 260, cudaMemcpyDeviceToHost);
    printf("%s\n", cudaGetErrorName((cudaError_t)e));
  }
  if (is("wrong_direction")) {
    int e = cudaMemcpy(host, o, 256, cudaMemcpyHostToDevice);
    printf("%s\n", cudaGetErrorName((cudaError_t)e));
  }
  if (is("double_free")) {
    cudaFree(more);
    int e = cudaFree(more);
    printf("%s\n", cudaGetErrorName((cudaError_t)e));
    return 0;
  }
  cudaError_t first = cudaGetLastError(), sync = cudaDeviceSynchronize(),
              again = cudaGetLastError();
  if (is("race_forward")) {
    cudaMemcpy(host, o, 256, cudaMemcpyDeviceToHost);
    for (int i = 1; i < 64; i++)
      if (sync == cudaSuccess && host[i] != i - 1) {
        printf("wrong result\n");
        return 1;
      }
  }
  printf("launch %s, sync %s, after %s\n", cudaGetErrorName(first), cudaGetErrorName(sync),
         cudaGetErrorName(again));
  if (is("reset")) {  // a fault, then a fresh start
    traps<<<1, 32>>>(1);
    printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
    printf("%s\n", cudaGetErrorName(cudaMalloc(&o, 4)));
    cudaDeviceReset();
    cudaMalloc(&o, 256);
    good<<<1, 64>>>(o);
    printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
  }
  return 0;
}
