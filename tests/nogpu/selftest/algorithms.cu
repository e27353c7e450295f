// SPDX-License-Identifier: Apache-2.0
//
// CUB device-wide algorithms, cooperative groups, libcu++ atomics and Thrust.
#include "check.h"
#include <algorithm>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cub/cub.cuh>
#include <cuda/atomic>
#include <numeric>
#include <thrust/device_vector.h>
#include <thrust/functional.h>
#include <thrust/gather.h>
#include <thrust/host_vector.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sort.h>
#include <thrust/transform.h>
#include <thrust/unique.h>
namespace cg = cooperative_groups;

const int N = 30000;
static std::vector<unsigned> keys() {
  std::vector<unsigned> k(N);
  for (auto& x : k) x = random_bits() >> 16;
  return k;
}
// Runs a CUB call twice: for the size of its temporary storage, then for real.
template <class F>
void cub_call(F f) {
  size_t bytes = 0;
  CUDA(f((void*)nullptr, bytes));
  Device<char> t(bytes + 1);
  CUDA(f((void*)t.p, bytes));
  SYNC();
}
TEST(radix_sort_pairs) {
  auto k = keys();
  std::vector<int> v(N);
  std::iota(v.begin(), v.end(), 0);
  Device<unsigned> dk(k), ko(N);
  Device<int> dv(v), vo(N);
  cub_call([&](void* t, size_t& n) {
    return cub::DeviceRadixSort::SortPairs(t, n, dk.p, ko.p, dv.p, vo.p, N);
  });
  std::stable_sort(v.begin(), v.end(), [&](int a, int b) { return k[a] < k[b]; });
  EXPECT(vo.get() == v);
}
TEST(radix_sort_small_floats_descending) {
  std::vector<float> k(700);
  for (auto& x : k) x = random_float();
  Device<float> dk(k), ko(k.size());
  cub_call([&](void* t, size_t& n) {
    return cub::DeviceRadixSort::SortKeysDescending(t, n, dk.p, ko.p, (int)k.size());
  });
  std::sort(k.begin(), k.end(), std::greater<float>());
  EXPECT(ko.get() == k);
}
TEST(scan) {
  std::vector<int> v(N);
  for (auto& x : v) x = random_bits() % 7;
  Device<int> d(v), o(N);
  cub_call([&](void* t, size_t& n) { return cub::DeviceScan::ExclusiveSum(t, n, d.p, o.p, N); });
  std::exclusive_scan(v.begin(), v.end(), v.begin(), 0);
  EXPECT(o.get() == v);
}
TEST(select_and_partition) {
  auto k = keys();
  Device<unsigned> d(k), o(N);
  Device<int> count(1);
  auto third = [] __host__ __device__(unsigned x) { return x % 3 == 0; };
  cub_call(
      [&](void* t, size_t& n) { return cub::DeviceSelect::If(t, n, d.p, o.p, count.p, N, third); });
  std::vector<unsigned> want;
  for (unsigned x : k)
    if (third(x)) want.push_back(x);
  auto got = o.get();
  EXPECT(count.get()[0] == (int)want.size() && std::equal(want.begin(), want.end(), got.begin()));
}
TEST(histogram) {
  std::vector<int> v(N), want(16);
  for (auto& x : v) want[x = random_bits() % 16]++;
  Device<int> d(v), h(16);
  cub_call([&](void* t, size_t& n) {
    return cub::DeviceHistogram::HistogramEven(t, n, d.p, h.p, 17, 0, 16, N);
  });
  EXPECT(h.get() == want);
}
TEST(reductions) {
  std::vector<float> v(N);
  for (auto& x : v) x = (int)(random_bits() % 100);
  Device<float> d(v), o(1);
  cub_call([&](void* t, size_t& n) { return cub::DeviceReduce::Sum(t, n, d.p, o.p, N); });
  EXPECT(o.get()[0] == std::accumulate(v.begin(), v.end(), 0.f));
  std::vector<int> offsets;
  for (int i = 0; i <= N; i += 100) offsets.push_back(i);
  Device<int> at(offsets);
  const int segments = (int)offsets.size() - 1;
  Device<float> sums(segments);
  cub_call([&](void* t, size_t& n) {
    return cub::DeviceSegmentedReduce::Sum(t, n, d.p, sums.p, segments, at.p, at + 1);
  });
  auto s = sums.get();
  for (int i = 0; i < segments; i++)
    EXPECT(s[i] == std::accumulate(v.begin() + i * 100, v.begin() + i * 100 + 100, 0.f));
}
TEST(run_length_encoding) {
  std::vector<int> v(N);
  for (int i = 0; i < N; i++) v[i] = i / 37;
  Device<int> d(v), unique(N), lengths(N), runs(1);
  cub_call([&](void* t, size_t& n) {
    return cub::DeviceRunLengthEncode::Encode(t, n, d.p, unique.p, lengths.p, runs.p, N);
  });
  EXPECT(runs.get()[0] == (N + 36) / 37 && lengths.get()[5] == 37 && unique.get()[9] == 9);
}
TEST(segmented_sort) {
  std::vector<float> k(5000);
  for (auto& x : k) x = random_float();
  std::vector<int> offsets = {0, 3, 3, 500, 1000, 4999, 5000};
  Device<float> d(k), o(k.size());
  Device<int> at(offsets);
  cub_call([&](void* t, size_t& n) {
    return cub::DeviceSegmentedSort::SortKeys(t, n, d.p, o.p, 5000, 6, at.p, at + 1);
  });
  for (int i = 0; i < 6; i++) std::sort(k.begin() + offsets[i], k.begin() + offsets[i + 1]);
  EXPECT(o.get() == k);
}
__global__ void groups(const int* a, int* o) {
  auto block = cg::this_thread_block();
  auto warp = cg::tiled_partition<32>(block);
  auto eight = cg::tiled_partition<8>(warp);
  int v = a[block.thread_rank()];
  int sum = cg::reduce(warp, v, cg::plus<int>()), top = cg::reduce(eight, v, cg::greater<int>()),
      other = eight.shfl_xor(v, 3);
  o[block.thread_rank()] = sum * 1000 + top * 10 + other;
  warp.sync();
  block.sync();
}
__global__ void aggregated(const int* a, int* o, int* count) {
  if (a[threadIdx.x] <= 3) return;
  auto g = cg::coalesced_threads();
  int rank = g.thread_rank(), base = 0;
  if (rank == 0) base = atomicAdd(count, (int)g.size());
  o[g.shfl(base, 0) + rank] = a[threadIdx.x];
}
TEST(cooperative_groups_) {
  std::vector<int> a(64);
  for (int i = 0; i < 64; i++) a[i] = i * 37 % 50;
  Device<int> d(a), o(64), list(64, 0), count(1, 0);
  groups<<<1, 64>>>(d, o);
  aggregated<<<1, 32>>>(d, list, count);
  SYNC();
  auto r = o.get();
  for (int i = 0; i < 64; i++)
    EXPECT(r[i] == std::accumulate(a.begin() + (i & 32), a.begin() + (i & 32) + 32, 0) * 1000 +
                       *std::max_element(a.begin() + (i & ~7), a.begin() + (i & ~7) + 8) * 10 +
                       a[i ^ 3]);
  std::vector<int> want, got = list.get();
  for (int i = 0; i < 32; i++)
    if (a[i] > 3) want.push_back(a[i]);
  got.resize(count.get()[0]);
  std::sort(want.begin(), want.end());
  std::sort(got.begin(), got.end());
  EXPECT(got == want);
}
__global__ void spin_lock(int* lock, int* value) {
  for (int turn = 0; turn < 32; turn++)
    if ((int)(threadIdx.x & 31) == turn) {
      while (atomicCAS(lock, 0, 1)) {
      }
      __threadfence();
      *value = *value + 1;
      __threadfence();
      atomicExch(lock, 0);
    }
}
__global__ void library_atomics(int* counter, float* top) {
  cuda::atomic_ref<int, cuda::thread_scope_device> c(*counter);
  c.fetch_add(3, cuda::memory_order_relaxed);
  cuda::atomic_ref<float, cuda::thread_scope_device> t(*top);
  t.fetch_max((float)threadIdx.x);
}
__global__ void last_block(const float* in, float* partial, unsigned* tickets,
                           float* out) {  // threadfence reduction
  __shared__ bool last;
  float v = in[blockIdx.x * 32 + threadIdx.x];
  for (int o = 16; o; o /= 2) v += __shfl_down_sync(~0u, v, o);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = v;
    __threadfence();
    last = atomicAdd(tickets, 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float s = 0;
    for (unsigned i = 0; i < gridDim.x; i++) s += ((volatile float*)partial)[i];
    *out = s;
  }
}
TEST(synchronisation_between_blocks) {
  Device<int> lock(1, 0), value(1, 0), counter(1, 0);
  Device<float> top(1, 0), in(std::vector<float>(320, 1)), partial(10), out(1);
  Device<unsigned> tickets(1, 0);
  spin_lock<<<4, 64>>>(lock, value);
  library_atomics<<<4, 64>>>(counter, top);
  last_block<<<10, 32>>>(in, partial, tickets, out);
  SYNC();
  EXPECT(value.get()[0] == 256 && counter.get()[0] == 768 && top.get()[0] == 63 &&
         out.get()[0] == 320);
}
struct Axpy {
  __host__ __device__ float operator()(float x, float y) const { return 2 * x + y; }
};
TEST(thrust_) {
  thrust::host_vector<float> h(N), g(N);
  for (int i = 0; i < N; i++) {
    h[i] = random_bits() % 1000;
    g[i] = i % 3;
  }
  thrust::device_vector<float> a = h, b = g, c(N);
  thrust::transform(a.begin(), a.end(), b.begin(), c.begin(), Axpy());
  thrust::host_vector<float> r = c;
  for (int i = 0; i < N; i++) EXPECT(r[i] == 2 * h[i] + g[i]);
  EXPECT(near(thrust::reduce(a.begin(), a.end()), std::accumulate(h.begin(), h.end(), 0.), 1e-4));
  thrust::device_vector<int> ones(N, 1);
  thrust::exclusive_scan(ones.begin(), ones.end(), ones.begin());
  thrust::host_vector<int> s = ones;
  for (int i = 0; i < N; i++) EXPECT(s[i] == i);
  thrust::sort(a.begin(), a.end());
  std::sort(h.begin(), h.end());
  r = a;
  EXPECT(std::equal(h.begin(), h.end(), r.begin()));
  auto k = keys();
  thrust::device_vector<unsigned> d(k.begin(), k.end());
  thrust::stable_sort(d.begin(), d.end(),
                      [] __host__ __device__(unsigned x, unsigned y) { return (x ^ 1) < (y ^ 1); });
  int distinct = thrust::unique(d.begin(), d.end()) - d.begin();
  std::sort(k.begin(), k.end());
  EXPECT(distinct == std::unique(k.begin(), k.end()) - k.begin());
  thrust::device_vector<int> group(N), one(N, 1), groups_out(N), sums(N);
  thrust::transform(thrust::counting_iterator<int>(0), thrust::counting_iterator<int>(N),
                    group.begin(), [] __host__ __device__(int i) { return i / 37; });
  auto ends = thrust::reduce_by_key(group.begin(), group.end(), one.begin(), groups_out.begin(),
                                    sums.begin());
  EXPECT(ends.second - sums.begin() == (N + 36) / 37 && sums[0] == 37 && sums[5] == 37);
}
