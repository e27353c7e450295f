// SPDX-License-Identifier: Apache-2.0
#include "gemm.h"
#include <algorithm>
#include <string.h>
#include <thread>
#include <vector>
#include "nogpu.h"

typedef float v8 __attribute__((vector_size(32)));

bool known_type(cudaDataType t) {
  return t == CUDA_R_32F || t == CUDA_R_16F || t == CUDA_R_16BF;
}
int64_t type_bytes(cudaDataType t) {
  return t == CUDA_R_32F ? 4 : 2;
}

static float load(const void* data, cudaDataType type, int64_t i) {
  if (type == CUDA_R_32F) return ((const float*)data)[i];
  if (type == CUDA_R_16F) return (float)((const _Float16*)data)[i];
  uint32_t bits = (uint32_t)((const uint16_t*)data)[i] << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
static void store(void* data, cudaDataType type, int64_t i, float f) {
  if (type == CUDA_R_32F) {
    ((float*)data)[i] = f;
    return;
  }
  if (type == CUDA_R_16F) {
    ((_Float16*)data)[i] = (_Float16)f;
    return;
  }
  uint32_t x;
  memcpy(&x, &f, 4);
  ((uint16_t*)data)[i] = f != f ? 0x7fff : (uint16_t)((x + 0x7fff + ((x >> 16) & 1)) >> 16);
}

// Register block: ROWS x COLUMNS of the result; K_BLOCK keeps both packed panels in the cache and
// bounds the length of a float sum.
static const int64_t ROWS = 16, COLUMNS = 6, K_BLOCK = 256;

static void block_product(const float* a, const float* b, int64_t k,
                          float* sum /* COLUMNS x ROWS */) {
  v8 acc[COLUMNS][2] = {};
  for (int64_t p = 0; p < k; p++, a += ROWS, b += COLUMNS) {
    v8 low, high;
    memcpy(&low, a, 32);
    memcpy(&high, a + 8, 32);
    for (int j = 0; j < COLUMNS; j++) {
      acc[j][0] += low * b[j];
      acc[j][1] += high * b[j];
    }
  }
  for (int j = 0; j < COLUMNS; j++)
    for (int h = 0; h < 2; h++)
      for (int i = 0; i < 8; i++) sum[j * ROWS + h * 8 + i] += acc[j][h][i];
}

// Columns [first, last) of the result.
static void multiply_columns(const Product& p, const std::vector<float>& packed_a, int64_t first,
                             int64_t last) {
  const int64_t row_panels = (p.m + ROWS - 1) / ROWS;
  std::vector<float> b(COLUMNS * K_BLOCK), sums(row_panels * ROWS * COLUMNS);
  for (int64_t j0 = first; j0 < last; j0 += COLUMNS) {
    const int64_t columns = std::min(COLUMNS, last - j0);
    std::fill(sums.begin(), sums.end(), 0.f);
    for (int64_t k0 = 0; k0 < p.k; k0 += K_BLOCK) {
      const int64_t depth = std::min(K_BLOCK, p.k - k0);
      for (int64_t k = 0; k < depth; k++)
        for (int64_t j = 0; j < COLUMNS; j++)
          b[k * COLUMNS + j] = j < columns
                                   ? load(p.b.data, p.b.type,
                                          (k0 + k) * p.b.row_stride + (j0 + j) * p.b.column_stride)
                                   : 0;
      for (int64_t r = 0; r < row_panels; r++)
        block_product(&packed_a[(r * p.k + k0) * ROWS], b.data(), depth, &sums[r * ROWS * COLUMNS]);
    }
    for (int64_t j = 0; j < columns; j++)
      for (int64_t i = 0; i < p.m; i++) {
        float v = p.alpha * sums[i / ROWS * ROWS * COLUMNS + j * ROWS + i % ROWS];
        if (p.beta != 0)
          v += p.beta *
               load(p.c.data, p.c.type,
                    i * p.c.row_stride + (j0 + j) * p.c.column_stride);  // beta 0: C is not read
        if (p.bias) v += load(p.bias, p.bias_type, i);
        store(p.d, p.d_type, i * p.d_row_stride + (j0 + j) * p.d_column_stride, v);
      }
  }
}

void multiply(const Product& p) {
  if (p.m <= 0 || p.n <= 0) return;
  const bool no_product = p.alpha == 0;  // A and B are not read then
  Product q = p;
  if (no_product) q.k = 0;
  std::vector<float> packed_a((q.m + ROWS - 1) / ROWS * ROWS * q.k);
  for (int64_t r = 0; r < q.m; r += ROWS)
    for (int64_t k = 0; k < q.k; k++)
      for (int64_t i = 0; i < ROWS; i++)
        packed_a[r * q.k + k * ROWS + i] =
            r + i < q.m ? load(q.a.data, q.a.type, (r + i) * q.a.row_stride + k * q.a.column_stride)
                        : 0;
  const int64_t panels = (q.n + COLUMNS - 1) / COLUMNS;
  int64_t workers = (double)q.m * q.n * q.k < 1e6 ? 1 : std::min<int64_t>(nogpu_threads(), panels);
  std::vector<std::thread> threads;
  for (int64_t t = 1; t < workers; t++)
    threads.emplace_back([&, t] {
      multiply_columns(q, packed_a, panels * t / workers * COLUMNS,
                       std::min(q.n, panels * (t + 1) / workers * COLUMNS));
    });
  multiply_columns(q, packed_a, 0, std::min(q.n, panels / workers * COLUMNS));
  for (auto& t : threads) t.join();
}
