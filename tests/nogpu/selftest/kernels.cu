// SPDX-License-Identifier: Apache-2.0
//
// Kernels as a mixture-of-experts Transformer has them, against plain CPU code.
#include "check.h"
#include <algorithm>
#include <cub/cub.cuh>
#include <cuda_bf16.h>
#include <numeric>

typedef __nv_bfloat16 bf16;
static float up(bf16 x) {
  return __bfloat162float(x);
}
static std::vector<bf16> random_bf16(size_t n, float scale = 1) {
  std::vector<bf16> v(n);
  for (auto& x : v) x = __float2bfloat16(random_float() * scale);
  return v;
}

// ---------------------------------------------------------------- normalisation, rotary embedding
__device__ float block_sum(float v) {
  __shared__ float partial[32];
  for (int o = 16; o; o /= 2) v += __shfl_xor_sync(~0u, v, o);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  v = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0;
  if (threadIdx.x < 32) {
    for (int o = 16; o; o /= 2) v += __shfl_xor_sync(~0u, v, o);
    if (threadIdx.x == 0) partial[0] = v;
  }
  __syncthreads();
  v = partial[0];
  __syncthreads();
  return v;
}
__global__ void rms_norm(const bf16* x, const bf16* weight, bf16* y, int width) {
  const uint4* row = (const uint4*)(x + (size_t)blockIdx.x * width);
  float sum = 0;
  for (int i = threadIdx.x; i < width / 8; i += blockDim.x) {
    uint4 v = row[i];
    const __nv_bfloat162* p = (const __nv_bfloat162*)&v;
    for (int k = 0; k < 4; k++) {
      float2 f = __bfloat1622float2(p[k]);
      sum += f.x * f.x + f.y * f.y;
    }
  }
  float scale = rsqrtf(block_sum(sum) / width + 1e-5f);
  for (int i = threadIdx.x; i < width; i += blockDim.x)
    y[(size_t)blockIdx.x * width + i] = __float2bfloat16(
        __bfloat162float(x[(size_t)blockIdx.x * width + i]) * scale * __bfloat162float(weight[i]));
}
TEST(rms_norm_) {
  const int rows = 5, width = 512;
  auto x = random_bf16(rows * width), w = random_bf16(width);
  Device<bf16> dx(x), dw(w), dy(rows * width);
  rms_norm<<<rows, 128>>>(dx, dw, dy, width);
  SYNC();
  auto y = dy.get();
  for (int r = 0; r < rows; r++) {
    double s = 0;
    for (int i = 0; i < width; i++) s += up(x[r * width + i]) * up(x[r * width + i]);
    for (int i = 0; i < width; i++)
      EXPECT(near(up(y[r * width + i]),
                  up(x[r * width + i]) / std::sqrt(s / width + 1e-5) * up(w[i]), 1e-2));
  }
}
__global__ void rotary(float2* q, int heads, int half, float base) {
  int position = blockIdx.x, head = blockIdx.y, i = threadIdx.x;
  float s, c;
  sincosf(position * powf(base, -(float)i / half), &s, &c);
  float2& v = q[((size_t)position * heads + head) * half + i];
  v = make_float2(v.x * c - v.y * s, v.x * s + v.y * c);
}
TEST(rotary_) {
  const int positions = 50, heads = 3, half = 32;
  std::vector<float2> q(positions * heads * half);
  for (auto& v : q) v = make_float2(random_float(), random_float());
  Device<float2> d(q);
  rotary<<<dim3(positions, heads), half>>>(d, heads, half, 10000.f);
  SYNC();
  auto r = d.get();
  for (int p = 0; p < positions; p++)
    for (int h = 0; h < heads; h++)
      for (int i = 0; i < half; i++) {
        double a = p * std::pow(10000., -(double)i / half);
        float2 v = q[(p * heads + h) * half + i], w = r[(p * heads + h) * half + i];
        EXPECT(near(w.x, v.x * std::cos(a) - v.y * std::sin(a), 1e-5) &&
               near(w.y, v.x * std::sin(a) + v.y * std::cos(a), 1e-5));
      }
}

// ---------------------------------------------------------------- attention: bf16 tensor cores,
// online softmax, cp.async double buffering
__device__ unsigned shared_address(const void* p) {
  return (unsigned)__cvta_generic_to_shared(p);
}
__device__ void load_x4(unsigned* r, const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(p)));
}
__device__ void load_x2(unsigned* r, const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1},[%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(p)));
}
__device__ void load_x2_transposed(unsigned* r, const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1},[%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(p)));
}
__device__ void mma_bf16(float* d, const unsigned* a, const unsigned* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ unsigned pack(float lo, float hi) {
  __nv_bfloat162 p = __floats2bfloat162_rn(lo, hi);
  return *(unsigned*)&p;
}

template <int D>
struct Tile {
  bf16 row[64][D + 8];
};  // padded against bank conflicts
template <int D>
__device__ void fetch(Tile<D>& t, const bf16* from, int first, int rows) {
  for (int i = threadIdx.x; i < 64 * D / 8; i += blockDim.x) {
    int r = i / (D / 8), c = i % (D / 8) * 8, valid = first + r < rows ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(shared_address(&t.row[r][c])),
                 "l"(from + (size_t)(first + r < rows ? first + r : 0) * D + c), "r"(valid)
                 : "memory");
  }
}
// One block: 64 queries of one head, 4 warps of 16 queries each.
template <int D>
__global__ void __launch_bounds__(128)
    attention(const bf16* q, const bf16* k, const bf16* v, bf16* o, int n, float scale) {
  extern __shared__ __align__(128) unsigned char raw[];
  Tile<D>&tq = *(Tile<D>*)raw, *tk = (Tile<D>*)raw + 1, *tv = (Tile<D>*)raw + 3;
  const size_t head = (size_t)blockIdx.y * n * D;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, q0 = blockIdx.x * 64,
            tiles = blockIdx.x + 1;
  fetch<D>(tq, q + head, q0, n);
  fetch<D>(tk[0], k + head, 0, n);
  fetch<D>(tv[0], v + head, 0, n);
  asm volatile("cp.async.commit_group;" ::: "memory");
  float acc[D / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  for (int t = 0; t < tiles; t++) {
    if (t + 1 < tiles) {
      fetch<D>(tk[(t + 1) & 1], k + head, (t + 1) * 64, n);
      fetch<D>(tv[(t + 1) & 1], v + head, (t + 1) * 64, n);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    float s[8][4] = {};
    for (int d = 0; d < D; d += 16) {
      unsigned a[4], b[2];
      load_x4(a, &tq.row[warp * 16 + lane % 16][d + lane / 16 * 8]);
      for (int j = 0; j < 8; j++) {
        load_x2(b, &tk[t & 1].row[j * 8 + lane % 8][d + lane / 8 % 2 * 8]);
        mma_bf16(s[j], a, b);
      }
    }
    for (int h = 0; h < 2; h++) {  // this lane's two rows
      int row = q0 + warp * 16 + lane / 4 + 8 * h;
      float m = top[h];
      for (int j = 0; j < 8; j++)
        for (int e = 0; e < 2; e++) {
          int column = t * 64 + j * 8 + lane % 4 * 2 + e;
          float& x = s[j][2 * h + e];
          x = column <= row && column < n ? x * scale * 1.44269504f : -INFINITY;
          m = fmaxf(m, x);
        }
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
      float keep = m == -INFINITY ? 1 : exp2f(top[h] - m);
      top[h] = m;
      sum[h] *= keep;
      for (int d = 0; d < D / 8; d++) {
        acc[d][2 * h] *= keep;
        acc[d][2 * h + 1] *= keep;
      }
      for (int j = 0; j < 8; j++)
        for (int e = 0; e < 2; e++) {
          float& x = s[j][2 * h + e];
          x = m == -INFINITY ? 0 : exp2f(x - m);
          sum[h] += x;
        }
    }
    for (int j = 0; j < 4; j++) {
      unsigned p[4] = {pack(s[2 * j][0], s[2 * j][1]), pack(s[2 * j][2], s[2 * j][3]),
                       pack(s[2 * j + 1][0], s[2 * j + 1][1]),
                       pack(s[2 * j + 1][2], s[2 * j + 1][3])},
               b[2];
      for (int d = 0; d < D / 8; d++) {
        load_x2_transposed(b, &tv[t & 1].row[j * 16 + lane % 16][d * 8]);
        mma_bf16(acc[d], p, b);
      }
    }
    __syncthreads();
  }
  for (int h = 0; h < 2; h++) {
    float total = sum[h];
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    int row = q0 + warp * 16 + lane / 4 + 8 * h;
    if (row < n)
      for (int d = 0; d < D / 8; d++)
        *(unsigned*)&o[head + (size_t)row * D + d * 8 + lane % 4 * 2] =
            pack(acc[d][2 * h] / total, acc[d][2 * h + 1] / total);
  }
}
TEST(flash_attention) {
  const int n = 150, heads = 2, D = 64;
  auto q = random_bf16(heads * n * D), k = random_bf16(heads * n * D),
       v = random_bf16(heads * n * D);
  Device<bf16> dq(q), dk(k), dv(v), out(heads * n * D);
  const int bytes = 5 * sizeof(Tile<D>);
  CUDA(cudaFuncSetAttribute(attention<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  attention<D><<<dim3((n + 63) / 64, heads), 128, bytes>>>(dq, dk, dv, out, n, 0.125f);
  SYNC();
  auto o = out.get();
  for (int h = 0; h < heads; h++)
    for (int i = 0; i < n; i++) {
      std::vector<double> w(i + 1);
      double top = -1e30, sum = 0;
      for (int j = 0; j <= i; j++) {
        for (int d = 0; d < D; d++) w[j] += up(q[(h * n + i) * D + d]) * up(k[(h * n + j) * D + d]);
        top = std::max(top, w[j] *= 0.125);
      }
      for (double& x : w) sum += x = std::exp(x - top);
      for (int d = 0; d < D; d++) {
        double want = 0;
        for (int j = 0; j <= i; j++) want += w[j] / sum * up(v[(h * n + j) * D + d]);
        EXPECT(near(up(o[(h * n + i) * D + d]), want, 1.5e-2));
      }
    }
}

// ---------------------------------------------------------------- routing
const int EXPERTS = 64;
__global__ void route(const float* logits, int* chosen, float* weight,
                      int top_k) {  // one warp-sized block per token
  typedef cub::BlockRadixSort<float, 32, 2, int> Sort;
  __shared__ typename Sort::TempStorage storage;
  float key[2];
  int value[2];
  float top = -INFINITY;
  for (int i = 0; i < 2; i++) {
    value[i] = threadIdx.x * 2 + i;
    key[i] = logits[blockIdx.x * EXPERTS + value[i]];
    top = fmaxf(top, key[i]);
  }
  for (int o = 16; o; o /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
  float sum = 0;
  for (int i = 0; i < 2; i++) {
    key[i] = __expf(key[i] - top);
    sum += key[i];
  }
  sum = cub::WarpReduce<float>(*(typename cub::WarpReduce<float>::TempStorage*)&storage).Sum(sum);
  sum = __shfl_sync(~0u, sum, 0);
  __syncthreads();
  Sort(storage).SortDescending(key, value);
  for (int i = 0; i < 2; i++) {
    int at = threadIdx.x * 2 + i;
    if (at < top_k) {
      chosen[blockIdx.x * top_k + at] = value[i];
      weight[blockIdx.x * top_k + at] = key[i] / sum;
    }
  }
}
__global__ void count_experts(const int* chosen, int n, int* counts) {
  __shared__ int local[EXPERTS];
  for (int i = threadIdx.x; i < EXPERTS; i += blockDim.x) local[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&local[chosen[i]], 1);
  __syncthreads();
  for (int i = threadIdx.x; i < EXPERTS; i += blockDim.x)
    if (local[i]) atomicAdd(&counts[i], local[i]);
}
TEST(router_and_dispatch) {
  const int tokens = 300, top_k = 4, n = tokens * top_k;
  std::vector<float> logits(tokens * EXPERTS);
  for (auto& x : logits) x = random_float() * 4;
  Device<float> dl(logits), weight(n);
  Device<int> chosen(n), sorted(n), order(n), counts(EXPERTS, 0), offsets(EXPERTS);
  std::vector<int> identity(n);
  std::iota(identity.begin(), identity.end(), 0);
  Device<int> index(identity);
  route<<<tokens, 32>>>(dl, chosen, weight, top_k);
  count_experts<<<4, 128>>>(chosen, n, counts);
  size_t bytes = 0, more = 0;
  CUDA(cub::DeviceRadixSort::SortPairs(nullptr, bytes, chosen.p, sorted.p, index.p, order.p, n, 0,
                                       6));
  CUDA(cub::DeviceScan::ExclusiveSum(nullptr, more, counts.p, offsets.p, EXPERTS));
  Device<char> temporary(std::max(bytes, more));
  CUDA(cub::DeviceRadixSort::SortPairs(temporary.p, bytes, chosen.p, sorted.p, index.p, order.p, n,
                                       0, 6));
  CUDA(cub::DeviceScan::ExclusiveSum(temporary.p, more, counts.p, offsets.p, EXPERTS));
  SYNC();
  auto c = chosen.get(), s = order.get(), f = offsets.get();
  auto w = weight.get();
  for (int t = 0; t < tokens; t++) {
    std::vector<int> e(EXPERTS);
    std::iota(e.begin(), e.end(), 0);
    std::stable_sort(e.begin(), e.end(), [&](int a, int b) {
      return logits[t * EXPERTS + a] > logits[t * EXPERTS + b];
    });
    double sum = 0;
    for (int i = 0; i < EXPERTS; i++)
      sum += std::exp(logits[t * EXPERTS + i] - logits[t * EXPERTS + e[0]]);
    for (int i = 0; i < top_k; i++)
      EXPECT(c[t * top_k + i] == e[i] &&
             near(w[t * top_k + i],
                  std::exp(logits[t * EXPERTS + e[i]] - logits[t * EXPERTS + e[0]]) / sum, 1e-5));
  }
  std::vector<int> want = identity;
  std::stable_sort(want.begin(), want.end(), [&](int a, int b) { return c[a] < c[b]; });
  EXPECT(s == want);
  for (int e = 0, at = 0; e < EXPERTS; e++) {
    EXPECT(f[e] == at);
    for (int i = 0; i < n; i++) at += c[i] == e;
  }
}

// ---------------------------------------------------------------- loss and optimizer
__global__ void cross_entropy(const bf16* logits, const int* target, float* loss, bf16* gradient,
                              int width) {
  typedef cub::BlockReduce<float, 128> Reduce;
  __shared__ typename Reduce::TempStorage storage;
  __shared__ float shared_top, shared_sum;
  const bf16* row = logits + (size_t)blockIdx.x * width;
  float top = -INFINITY, sum = 0;
  for (int i = threadIdx.x; i < width; i += 128) {
    float x = __bfloat162float(row[i]);
    if (x > top) {
      sum = sum * __expf(top - x) + 1;
      top = x;
    } else
      sum += __expf(x - top);
  }
  float all = Reduce(storage).Reduce(top, [](float a, float b) { return fmaxf(a, b); });
  if (threadIdx.x == 0) shared_top = all;
  __syncthreads();
  float total = Reduce(storage).Sum(top == -INFINITY ? 0 : sum * __expf(top - shared_top));
  if (threadIdx.x == 0) {
    shared_sum = total;
    loss[blockIdx.x] = logf(total) + shared_top - __bfloat162float(row[target[blockIdx.x]]);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < width; i += 128)
    gradient[(size_t)blockIdx.x * width + i] = __float2bfloat16(
        __expf(__bfloat162float(row[i]) - shared_top) / shared_sum - (i == target[blockIdx.x]));
}
TEST(cross_entropy_) {
  const int rows = 6, width = 1000;
  auto logits = random_bf16(rows * width, 6);
  std::vector<int> target(rows);
  for (auto& t : target) t = random_bits() % width;
  Device<bf16> dl(logits), dg(rows * width);
  Device<int> dt(target);
  Device<float> loss(rows);
  cross_entropy<<<rows, 128>>>(dl, dt, loss, dg, width);
  SYNC();
  auto l = loss.get();
  auto g = dg.get();
  for (int r = 0; r < rows; r++) {
    double sum = 0;
    for (int i = 0; i < width; i++) sum += std::exp((double)up(logits[r * width + i]));
    EXPECT(near(l[r], std::log(sum) - up(logits[r * width + target[r]]), 1e-5));
    for (int i = 0; i < width; i++)
      EXPECT(near(up(g[r * width + i]),
                  std::exp((double)up(logits[r * width + i])) / sum - (i == target[r]), 5e-3));
  }
}
__global__ void adamw(float4* p, const float4* g, float4* m, float4* v, int n, float rate, float b1,
                      float b2, float eps, float decay, int step) {
  float c1 = 1 - powf(b1, step), c2 = 1 - powf(b2, step);
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n / 4; i += gridDim.x * blockDim.x) {
    float4 P = p[i], G = __ldg(g + i), M = m[i], V = v[i];
    float *pp = &P.x, *gg = &G.x, *mm = &M.x, *vv = &V.x;
    for (int k = 0; k < 4; k++) {
      mm[k] = b1 * mm[k] + (1 - b1) * gg[k];
      vv[k] = b2 * vv[k] + (1 - b2) * gg[k] * gg[k];
      pp[k] -= rate * (mm[k] / c1 / (sqrtf(vv[k] / c2) + eps) + decay * pp[k]);
    }
    p[i] = P;
    m[i] = M;
    v[i] = V;
  }
}
TEST(adamw_) {
  const int n = 4096;
  std::vector<float> p(n), g(n), m(n, 0), v(n, 0);
  for (int i = 0; i < n; i++) {
    p[i] = random_float();
    g[i] = random_float();
  }
  Device<float> dp(p), dg(g), dm(m), dv(v);
  for (int step = 1; step <= 3; step++) {
    adamw<<<3, 128>>>((float4*)dp.p, (float4*)dg.p, (float4*)dm.p, (float4*)dv.p, n, 1e-2f, 0.9f,
                      0.95f, 1e-8f, 0.1f, step);
    for (int i = 0; i < n; i++) {
      m[i] = 0.9f * m[i] + 0.1f * g[i];
      v[i] = 0.95f * v[i] + 0.05f * g[i] * g[i];
      p[i] -= 1e-2f * (m[i] / (1 - std::pow(0.9f, step)) /
                           (std::sqrt(v[i] / (1 - std::pow(0.95f, step))) + 1e-8f) +
                       0.1f * p[i]);
    }
  }
  SYNC();
  auto r = dp.get();
  for (int i = 0; i < n; i++) EXPECT(near(r[i], p[i], 1e-5));
}
