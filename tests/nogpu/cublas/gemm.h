// SPDX-License-Identifier: Apache-2.0
//
// Matrix product on the CPU: D = alpha * A * B + beta * C (+ bias), element types by cudaDataType.
#pragma once
#include <library_types.h>
#include <stdint.h>

struct Matrix {  // element (i, j) at data + (i * row_stride + j * column_stride) elements
  const void* data;
  cudaDataType type;
  int64_t row_stride, column_stride;
};
struct Product {
  int64_t m, n, k;
  float alpha, beta;
  Matrix a, b, c;  // m x k, k x n, m x n
  void* d;
  cudaDataType d_type;
  int64_t d_row_stride, d_column_stride;
  const void* bias = nullptr;  // one entry per row
  cudaDataType bias_type = CUDA_R_32F;
};
void multiply(const Product&);
bool known_type(cudaDataType);
int64_t type_bytes(cudaDataType);
