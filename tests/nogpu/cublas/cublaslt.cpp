// SPDX-License-Identifier: Apache-2.0
//
// cuBLASLt subset: cublasLtMatmul with the default and the bias epilogue.
#include <cublasLt.h>
#include <algorithm>
#include <string.h>
#include "gemm.h"
#include "nogpu.h"

namespace {
// Our contents of the opaque structures.
struct Description {
  cublasComputeType_t compute;
  cudaDataType scale_type;
  cublasLtPointerMode_t pointer_mode;
  cublasOperation_t ta, tb;
  cublasLtEpilogue_t epilogue;
  const void* bias;
  int32_t bias_type;  // -1: as D
  int64_t bias_stride;
};
struct Layout {
  cudaDataType type;
  cublasLtOrder_t order;
  uint64_t rows, columns;
  int64_t ld, batch_stride;
  int32_t batch_count;
};
struct Preference {
  uint64_t workspace;
};
static_assert(sizeof(Description) <= sizeof(cublasLtMatmulDescOpaque_t) &&
                  sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t),
              "fits the opaque structures");

Description& of(cublasLtMatmulDesc_t d) {
  return *(Description*)d;
}
Layout& of(cublasLtMatrixLayout_t l) {
  return *(Layout*)l;
}

template <class T>
cublasStatus_t assign(T* field, const void* value, size_t bytes) {
  if (bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  memcpy(field, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
template <class T>
cublasStatus_t fetch(const T& field, void* value, size_t bytes, size_t* written) {
  if (written) *written = sizeof(T);
  if (!bytes) return written ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
  if (bytes != sizeof(T) || !value) return CUBLAS_STATUS_INVALID_VALUE;
  memcpy(value, &field, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

int64_t row_stride(const Layout& l) {
  return l.order == CUBLASLT_ORDER_ROW ? l.ld : 1;
}
int64_t column_stride(const Layout& l) {
  return l.order == CUBLASLT_ORDER_ROW ? 1 : l.ld;
}
int64_t extent(const Layout& l) {
  return l.rows && l.columns
             ? ((l.rows - 1) * row_stride(l) + (l.columns - 1) * column_stride(l) + 1) *
                   type_bytes(l.type)
             : 0;
}

// What cublasLtMatmul and the heuristic agree on.
cublasStatus_t validate(const Description& d, const Layout& a, const Layout& b, const Layout& c,
                        const Layout& out) {
  for (const Layout* l : {&a, &b, &c, &out}) {
    if (l->order != CUBLASLT_ORDER_COL && l->order != CUBLASLT_ORDER_ROW)
      return CUBLAS_STATUS_NOT_SUPPORTED;
    if (l->ld <
        (int64_t)std::max<uint64_t>(1, l->order == CUBLASLT_ORDER_COL ? l->rows : l->columns))
      return CUBLAS_STATUS_INVALID_VALUE;
    if (l->batch_count != out.batch_count || l->batch_count < 1) return CUBLAS_STATUS_INVALID_VALUE;
  }
  const bool na = d.ta == CUBLAS_OP_N, nb = d.tb == CUBLAS_OP_N;
  const uint64_t m = na ? a.rows : a.columns, k = na ? a.columns : a.rows,
                 kb = nb ? b.rows : b.columns, n = nb ? b.columns : b.rows;
  if (k != kb || out.rows != m || out.columns != n || c.rows != m || c.columns != n)
    return CUBLAS_STATUS_INVALID_VALUE;
  const bool compute =
      d.compute == CUBLAS_COMPUTE_32F || d.compute == CUBLAS_COMPUTE_32F_PEDANTIC ||
      d.compute == CUBLAS_COMPUTE_32F_FAST_TF32 || d.compute == CUBLAS_COMPUTE_32F_FAST_16F ||
      d.compute == CUBLAS_COMPUTE_32F_FAST_16BF;
  if (!compute || d.scale_type != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (!known_type(a.type) || a.type != b.type || c.type != out.type ||
      (out.type != a.type && out.type != CUDA_R_32F))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (d.epilogue != CUBLASLT_EPILOGUE_DEFAULT && d.epilogue != CUBLASLT_EPILOGUE_BIAS)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (d.epilogue == CUBLASLT_EPILOGUE_BIAS && out.order != CUBLASLT_ORDER_COL)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (d.pointer_mode != CUBLASLT_POINTER_MODE_HOST &&
      d.pointer_mode != CUBLASLT_POINTER_MODE_DEVICE)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  return CUBLAS_STATUS_SUCCESS;
}
}  // namespace

extern "C" {
cublasStatus_t cublasLtCreate(cublasLtHandle_t* h) {
  if (!h) return CUBLAS_STATUS_INVALID_VALUE;
  *h = (cublasLtHandle_t) new char;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) {
  delete (char*)h;
  return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion(void) {
  return CUBLAS_VERSION;
}
size_t cublasLtGetCudartVersion(void) {
  return CUDART_VERSION;
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t d, size_t bytes,
                                               cublasComputeType_t compute, cudaDataType_t scale) {
  if (bytes < sizeof(Description)) return CUBLAS_STATUS_INVALID_VALUE;
  memset((void*)d, 0, bytes);
  of(d) = {compute,     scale,       CUBLASLT_POINTER_MODE_HOST,
           CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT,
           nullptr,     -1,          0};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* d, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (!d) return CUBLAS_STATUS_INVALID_VALUE;
  *d = new cublasLtMatmulDescOpaque_t;
  return cublasLtMatmulDescInit_internal(*d, sizeof **d, compute, scale);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
  delete d;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t a, const void* v,
                                              size_t n) {
  if (!desc || !v) return CUBLAS_STATUS_INVALID_VALUE;
  Description& d = of(desc);
  switch (a) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
      return assign(&d.compute, v, n);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
      return assign(&d.scale_type, v, n);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
      return assign(&d.pointer_mode, v, n);
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return assign(&d.ta, v, n);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return assign(&d.tb, v, n);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return assign(&d.epilogue, v, n);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return assign(&d.bias, v, n);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return assign(&d.bias_type, v, n);
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE:
      return assign(&d.bias_stride, v, n);
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
      return CUBLAS_STATUS_SUCCESS;  // no effect on the result
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}
cublasStatus_t cublasLtMatmulDescGetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t a, void* v, size_t n,
                                              size_t* w) {
  if (!desc) return CUBLAS_STATUS_INVALID_VALUE;
  Description& d = of(desc);
  switch (a) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
      return fetch(d.compute, v, n, w);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
      return fetch(d.scale_type, v, n, w);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
      return fetch(d.pointer_mode, v, n, w);
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return fetch(d.ta, v, n, w);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return fetch(d.tb, v, n, w);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return fetch(d.epilogue, v, n, w);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return fetch(d.bias, v, n, w);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t l, size_t bytes,
                                                 cudaDataType type, uint64_t rows, uint64_t columns,
                                                 int64_t ld) {
  if (bytes < sizeof(Layout)) return CUBLAS_STATUS_INVALID_VALUE;
  memset((void*)l, 0, bytes);
  of(l) = {type, CUBLASLT_ORDER_COL, rows, columns, ld, 0, 1};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* l, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
  if (!l) return CUBLAS_STATUS_INVALID_VALUE;
  *l = new cublasLtMatrixLayoutOpaque_t;
  return cublasLtMatrixLayoutInit_internal(*l, sizeof **l, type, rows, columns, ld);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) {
  delete l;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t a, const void* v,
                                                size_t n) {
  if (!layout || !v) return CUBLAS_STATUS_INVALID_VALUE;
  Layout& l = of(layout);
  switch (a) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
      return assign(&l.type, v, n);
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
      return assign(&l.order, v, n);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
      return assign(&l.rows, v, n);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
      return assign(&l.columns, v, n);
    case CUBLASLT_MATRIX_LAYOUT_LD:
      return assign(&l.ld, v, n);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return assign(&l.batch_count, v, n);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return assign(&l.batch_stride, v, n);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}
cublasStatus_t cublasLtMatrixLayoutGetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t a, void* v,
                                                size_t n, size_t* w) {
  if (!layout) return CUBLAS_STATUS_INVALID_VALUE;
  Layout& l = of(layout);
  switch (a) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
      return fetch(l.type, v, n, w);
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
      return fetch(l.order, v, n, w);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
      return fetch(l.rows, v, n, w);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
      return fetch(l.columns, v, n, w);
    case CUBLASLT_MATRIX_LAYOUT_LD:
      return fetch(l.ld, v, n, w);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return fetch(l.batch_count, v, n, w);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return fetch(l.batch_stride, v, n, w);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t p, size_t bytes) {
  memset((void*)p, 0, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* p) {
  *p = new cublasLtMatmulPreferenceOpaque_t;
  return cublasLtMatmulPreferenceInit_internal(*p, sizeof **p);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
  delete p;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t a,
                                                    const void* v, size_t n) {
  if (!p || !v) return CUBLAS_STATUS_INVALID_VALUE;
  return a == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? assign(&((Preference*)p)->workspace, v, n)
                                                       : CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t d,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out,
                                              cublasLtMatmulPreference_t, int requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* returned) {
  if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!d || !a || !b || !c || !out || requested <= 0 || !results || !returned)
    return CUBLAS_STATUS_INVALID_VALUE;
  *returned = 0;
  if (cublasStatus_t e = validate(of(d), of(a), of(b), of(c), of(out))) return e;
  memset((void*)results, 0, sizeof *results);
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].wavesCount = 1;
  *returned = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* out,
                              cublasLtMatrixLayout_t out_layout, const cublasLtMatmulAlgo_t*,
                              void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!desc || !a_layout || !b_layout || !c_layout || !out_layout || !alpha || !beta || !a || !b ||
      !out)
    return CUBLAS_STATUS_INVALID_VALUE;
  const Description d = of(desc);
  const Layout la = of(a_layout), lb = of(b_layout), lc = of(c_layout), ld = of(out_layout);
  if (cublasStatus_t e = validate(d, la, lb, lc, ld)) return e;
  if (d.epilogue == CUBLASLT_EPILOGUE_BIAS && !d.bias) return CUBLAS_STATUS_INVALID_VALUE;
  const bool host = d.pointer_mode == CUBLASLT_POINTER_MODE_HOST;
  const float host_alpha = host ? *(const float*)alpha : 0,
              host_beta = host ? *(const float*)beta : 0;
  if (host && host_beta != 0 && !c) return CUBLAS_STATUS_INVALID_VALUE;
  if (workspace_bytes &&
      !nogpu::check_range("cublasLtMatmul", "workspace", workspace, workspace_bytes))
    return CUBLAS_STATUS_EXECUTION_FAILED;
  cudaError_t e = nogpu::submit(stream, [=] {
    const char* f = "cublasLtMatmul";
    if (!host &&
        (!nogpu::check_range(f, "alpha", alpha, 4) || !nogpu::check_range(f, "beta", beta, 4)))
      return cudaErrorIllegalAddress;
    const float x = host ? host_alpha : *(const float*)alpha,
                y = host ? host_beta : *(const float*)beta;
    const bool na = d.ta == CUBLAS_OP_N, nb = d.tb == CUBLAS_OP_N;
    const cudaDataType bias_type = d.bias_type == -1 ? ld.type : (cudaDataType)d.bias_type;
    for (int64_t i = 0; i < ld.batch_count; i++) {
      const char *pa = (const char*)a + i * la.batch_stride * type_bytes(la.type),
                 *pb = (const char*)b + i * lb.batch_stride * type_bytes(lb.type);
      const char *pc = (const char*)c + i * lc.batch_stride * type_bytes(lc.type), *bias = nullptr;
      char* pd = (char*)out + i * ld.batch_stride * type_bytes(ld.type);
      if (!nogpu::check_range(f, "A", pa, extent(la)) ||
          !nogpu::check_range(f, "B", pb, extent(lb)) ||
          !nogpu::check_range(f, "D", pd, extent(ld)))
        return cudaErrorIllegalAddress;
      if (y != 0 && !nogpu::check_range(f, "C", pc, extent(lc))) return cudaErrorIllegalAddress;
      if (d.epilogue == CUBLASLT_EPILOGUE_BIAS) {
        bias = (const char*)d.bias + i * d.bias_stride * type_bytes(bias_type);
        if (!nogpu::check_range(f, "bias", bias, ld.rows * type_bytes(bias_type)))
          return cudaErrorIllegalAddress;
      }
      Product p = {(int64_t)ld.rows,
                   (int64_t)ld.columns,
                   (int64_t)(na ? la.columns : la.rows),
                   x,
                   y,
                   {pa, la.type, na ? row_stride(la) : column_stride(la),
                    na ? column_stride(la) : row_stride(la)},
                   {pb, lb.type, nb ? row_stride(lb) : column_stride(lb),
                    nb ? column_stride(lb) : row_stride(lb)},
                   {pc, lc.type, row_stride(lc), column_stride(lc)},
                   pd,
                   ld.type,
                   row_stride(ld),
                   column_stride(ld),
                   bias,
                   bias_type};
      multiply(p);
    }
    return cudaSuccess;
  });
  return e == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
}
