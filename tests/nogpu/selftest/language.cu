// SPDX-License-Identifier: Apache-2.0
//
// What nvcc makes of ordinary CUDA C++: control flow, calls, math functions, intrinsics, CUB's
// block algorithms, wmma.
#include "check.h"
#include <algorithm>
#include <cub/cub.cuh>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
#include <numeric>
#include <thread>

__noinline__ __device__ int fibonacci(int n) {
  return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}
__global__ void control(const int* a, int* o) {
  int t = threadIdx.x, r;
  switch (a[t]) {
    case 0:
      r = 11;
      break;
    case 1:
      r = a[5] + 7;
      break;
    case 2:
      r = t * 3;
      break;
    case 3:
      r = -1;
      break;
    case 4:
      r = a[1] * a[2];
      break;
    case 5:
      r = 99;
      break;
    case 6:
      r = 1234;
      break;
    case 7:
      r = t ^ 5;
      break;
    default:
      r = 0;
  }
  int local[16];
  for (int i = 0; i < 16; i++) local[i] = a[(i * 7 + t) & 31];
  o[3 * t] = r;
  o[3 * t + 1] = fibonacci(t % 12);
  o[3 * t + 2] = local[a[t] & 15];
}
TEST(control_flow_and_calls) {
  std::vector<int> a(32);
  for (int i = 0; i < 32; i++) a[i] = i % 9;
  Device<int> d(a), o(96);
  control<<<1, 32>>>(d, o);
  SYNC();
  auto r = o.get();
  const int f[12] = {0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89};
  for (int t = 0; t < 32; t++) {
    const int cases[9] = {11, a[5] + 7, t * 3, -1, a[1] * a[2], 99, 1234, t ^ 5, 0};
    EXPECT(r[3 * t] == cases[a[t]] && r[3 * t + 1] == f[t % 12] &&
           r[3 * t + 2] == a[((a[t] & 15) * 7 + t) & 31]);
  }
}

template <class T>
__host__ __device__ T all_math(T x, int part) {
  T p = x < 0 ? -x : x;
  switch (part) {
    case 0:
      return exp(x);
    case 1:
      return log1p(p);
    case 2:
      return sin(x) * cos(x);
    case 3:
      return pow(p, T(1.3));
    case 4:
      return erf(x);
    case 5:
      return tgamma(p + 1);
    case 6:
      return cbrt(x);
    case 7:
      return fmod(x, T(0.7));
    case 8:
      return floor(x) + ceil(x) + rint(x) + trunc(x) + round(x);
    case 9:
      return sqrt(p) + x / 3;
    case 10:
      return expm1(x);
    case 11:
      return atan2(x, T(1.3)) + tanh(x);
    case 12:
      return lgamma(p + 1);
    case 13:
      return ldexp(x, 3) + copysign(T(1), x) + fmax(x, T(0.1));
    case 14:
      return log2(p + 2) + exp2(x);
    default:
      return sinh(x) + acos(x / 6) + hypot(x, T(2));
  }
}
template <class T>
__global__ void math(const T* a, T* o) {
  o[blockIdx.x * blockDim.x + threadIdx.x] = all_math(a[threadIdx.x], blockIdx.x);
}
template <class T>
void math_test(double tolerance) {
  std::vector<T> a(64);
  for (int i = 0; i < 64; i++) a[i] = T((i - 31) * 0.17);
  Device<T> d(a), o(64 * 16);
  math<T><<<16, 64>>>(d, o);
  SYNC();
  auto r = o.get();
  for (int p = 0; p < 16; p++)
    for (int i = 0; i < 64; i++)
      EXPECT(near(r[p * 64 + i], all_math<double>(a[i], p), p == 7 ? 1e-5 : tolerance));
}
TEST(math_float) {
  math_test<float>(2e-6);
}
TEST(math_double) {
  math_test<double>(1e-13);
}
__global__ void fast_math(const float* a, float* o) {
  float x = a[threadIdx.x];
  o[threadIdx.x] = __expf(x) + __logf(fabsf(x) + 1) + __fdividef(x, 3) + __sinf(x) +
                   rsqrtf(fabsf(x) + 1) + __powf(fabsf(x) + 1, 0.3f) + __saturatef(x) + normcdff(x);
}
TEST(fast_math_) {
  std::vector<float> a(64);
  for (int i = 0; i < 64; i++) a[i] = (i - 31) * 0.1f;
  Device<float> d(a), o(64);
  fast_math<<<1, 64>>>(d, o);
  SYNC();
  auto r = o.get();
  for (int i = 0; i < 64; i++) {
    double x = a[i], p = std::fabs(x);
    EXPECT(near(r[i],
                std::exp(x) + std::log(p + 1) + x / 3 + std::sin(x) + 1 / std::sqrt(p + 1) +
                    std::pow(p + 1, 0.3) + std::clamp(x, 0., 1.) +
                    0.5 * std::erfc(-x / std::sqrt(2.)),
                1e-5));
  }
}
__global__ void integers(const unsigned* a, unsigned* o) {
  unsigned x = a[threadIdx.x];
  unsigned long long y = x * 0x9E3779B97F4A7C15ull;
  unsigned* p = o + threadIdx.x * 12;
  p[0] = __popc(x) + 100 * __clz(x) + 10000 * __ffs(x);
  p[1] = __brev(x);
  p[2] = __umulhi(x, 12345u);
  p[3] = (unsigned)__umul64hi(y, y);
  p[4] = __byte_perm(x, ~x, 0x3517);
  p[5] = __funnelshift_l(x, x, 7);
  p[6] = __vadd4(x, 0x01020304u);
  p[7] = x / 7 + x % 13 + (unsigned)((int)x / -5) + (unsigned)((int)x % 9);
  p[8] = (unsigned)(y % 1000003ull) + (unsigned)(y / 77);
  p[9] = __sad((int)x, 5, 1u) + __usad(x, 77, 2);
  p[10] = __popcll(y) + 100 * __clzll(y) + 10000 * __ffsll(y);
  p[11] = __dp4a((int)x, 0x01020304, 5) + __mul24((int)x & 0xfff, 7);
}
TEST(integer_intrinsics) {
  std::vector<unsigned> a(64);
  for (auto& x : a) x = random_bits();
  a[0] = 0;
  a[1] = ~0u;
  a[2] = 0x80000000u;
  Device<unsigned> d(a), o(64 * 12);
  integers<<<1, 64>>>(d, o);
  SYNC();
  auto r = o.get();
  for (int i = 0; i < 64; i++) {
    unsigned x = a[i], *p = &r[i * 12], reversed = 0, bytes = 0, sum = 0;
    unsigned long long y = x * 0x9E3779B97F4A7C15ull, both = (unsigned long long)~x << 32 | x;
    for (int k = 0; k < 32; k++) reversed |= (x >> k & 1) << (31 - k);
    const int selected[4] = {7, 1, 5, 3};
    for (int k = 0; k < 4; k++) {
      bytes |= (unsigned)(both >> (8 * selected[k]) & 255) << (8 * k);
      sum |= ((x >> 8 * k) + (0x01020304u >> 8 * k) & 255) << 8 * k;
    }
    int dot = 5;
    for (int k = 0; k < 4; k++) dot += (signed char)(x >> 8 * k) * (4 - k);
    EXPECT(p[0] ==
           __builtin_popcount(x) + 100u * (x ? __builtin_clz(x) : 32) + 10000u * __builtin_ffs(x));
    EXPECT(p[1] == reversed && p[2] == (unsigned)((unsigned long long)x * 12345 >> 32) &&
           p[3] == (unsigned)((unsigned __int128)y * y >> 64));
    EXPECT(p[4] == bytes && p[5] == (x << 7 | x >> 25) && p[6] == sum);
    EXPECT(p[7] == x / 7 + x % 13 + (unsigned)((int)x / -5) + (unsigned)((int)x % 9) &&
           p[8] == (unsigned)(y % 1000003) + (unsigned)(y / 77));
    EXPECT(p[9] == ((int)x > 5 ? x - 5 : 5 - x) + 1 + (x > 77 ? x - 77 : 77 - x) + 2);
    EXPECT(p[10] == __builtin_popcountll(y) + 100u * (y ? __builtin_clzll(y) : 64) +
                        10000u * __builtin_ffsll(y) &&
           p[11] == (unsigned)(dot + (int)(x & 0xfff) * 7));
  }
}

__global__ void block_scan(const int* a, int* o) {
  typedef cub::BlockScan<int, 128> Scan;
  __shared__ typename Scan::TempStorage t;
  int v = a[blockIdx.x * 128 + threadIdx.x];
  Scan(t).ExclusiveSum(v, v);
  o[blockIdx.x * 128 + threadIdx.x] = v;
}
__global__ void block_sort(const float* k, float* ko, int* vo) {
  typedef cub::BlockRadixSort<float, 128, 2, int> Sort;
  __shared__ typename Sort::TempStorage t;
  float key[2];
  int value[2];
  for (int j = 0; j < 2; j++) {
    value[j] = threadIdx.x * 2 + j;
    key[j] = k[value[j]];
  }
  Sort(t).SortDescending(key, value);
  for (int j = 0; j < 2; j++) {
    ko[threadIdx.x * 2 + j] = key[j];
    vo[threadIdx.x * 2 + j] = value[j];
  }
}
TEST(cub_block_algorithms) {
  std::vector<int> a(512);
  for (auto& x : a) x = random_bits() % 9;
  Device<int> d(a), o(512), vo(256);
  block_scan<<<4, 128>>>(d, o);
  std::vector<float> k(256);
  for (auto& x : k) x = random_float();
  Device<float> dk(k), ko(256);
  block_sort<<<1, 128>>>(dk, ko, vo);
  SYNC();
  auto r = o.get(), v = vo.get();
  auto s = ko.get();
  for (int i = 0; i < 512; i++)
    EXPECT(r[i] == std::accumulate(a.begin() + i / 128 * 128, a.begin() + i, 0));
  for (int i = 0; i < 256; i++) EXPECT((i == 0 || s[i - 1] >= s[i]) && k[v[i]] == s[i]);
}

using namespace nvcuda;
template <class T, class Acc, class LayoutB>
__global__ void wmma_product(const T* a, const T* b, Acc* c, int lda, int ldb) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, T, LayoutB> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, Acc> fc;
  wmma::fill_fragment(fc, (Acc)1.f);
  for (int k = 0; k < 32; k += 16) {
    wmma::load_matrix_sync(fa, a + k, lda);
    wmma::load_matrix_sync(fb, std::is_same<LayoutB, wmma::col_major>::value ? b + k : b + k * ldb,
                           ldb);
    wmma::mma_sync(fc, fa, fb, fc);
  }
  for (int i = 0; i < fc.num_elements; i++) fc.x[i] = (Acc)((float)fc.x[i] * 2.f);
  wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
}
template <class T, class Acc, class LayoutB>
void wmma_test() {
  std::vector<T> a(16 * 32), b(16 * 32);
  for (auto& x : a) x = (T)(float)((int)(random_bits() % 5) - 2);
  for (auto& x : b) x = (T)(float)((int)(random_bits() % 5) - 2);
  Device<T> da(a), db(b);
  Device<Acc> c(256);
  const bool column = std::is_same<LayoutB, wmma::col_major>::value;
  wmma_product<T, Acc, LayoutB><<<1, 32>>>(da, db, c, 32, column ? 32 : 16);
  SYNC();
  auto r = c.get();
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 16; j++) {
      float s = 1;
      for (int k = 0; k < 32; k++)
        s += (float)a[i * 32 + k] * (float)b[column ? j * 32 + k : k * 16 + j];
      EXPECT((float)r[i * 16 + j] == 2 * s);
    }
}
TEST(wmma_fragments) {
  wmma_test<half, float, wmma::col_major>();
  wmma_test<half, float, wmma::row_major>();
  wmma_test<half, half, wmma::col_major>();
  wmma_test<__nv_bfloat16, float, wmma::col_major>();
  wmma_test<__nv_bfloat16, float, wmma::row_major>();
}

__global__ void increment(int* p, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) p[i]++;
}
TEST(host_threads) {  // several host threads, each with its own stream
  Device<int> d(4096, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; t++)
    threads.emplace_back([&, t] {
      cudaStream_t s;
      cudaStreamCreate(&s);
      for (int i = 0; i < 50; i++) increment<<<4, 256, 0, s>>>(d + t * 1024, 1024);
      cudaStreamSynchronize(s);
      cudaStreamDestroy(s);
    });
  for (auto& t : threads) t.join();
  SYNC();
  for (int x : d.get()) EXPECT(x == 50);
}
