// SPDX-License-Identifier: Apache-2.0
//
// cuBLAS subset: GEMMs with 32-bit float accumulation.
#include <cublas_v2.h>
#include <new>
#include <vector>
#include "gemm.h"
#include "nogpu.h"

struct cublasContext {
  cudaStream_t stream = nullptr;
  cublasPointerMode_t pointer_mode = CUBLAS_POINTER_MODE_HOST;
  cublasMath_t math_mode = CUBLAS_DEFAULT_MATH;
  cublasAtomicsMode_t atomics_mode = CUBLAS_ATOMICS_NOT_ALLOWED;
};

static cublasStatus_t status_of(cudaError_t e) {
  return e == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

struct Shape {
  cublasOperation_t ta, tb;
  int64_t m, n, k, lda, ldb, ldc;
};
struct Types {
  cudaDataType a, b, c;
};

static bool valid_operation(cublasOperation_t t) {
  return t == CUBLAS_OP_N || t == CUBLAS_OP_T || t == CUBLAS_OP_C;
}
static int64_t at_least_1(int64_t v) {
  return v > 1 ? v : 1;
}

static cublasStatus_t check_shape(const Shape& s) {
  if (!valid_operation(s.ta) || !valid_operation(s.tb)) return CUBLAS_STATUS_INVALID_VALUE;
  if (s.m < 0 || s.n < 0 || s.k < 0) return CUBLAS_STATUS_INVALID_VALUE;
  if (s.lda < at_least_1(s.ta == CUBLAS_OP_N ? s.m : s.k) ||
      s.ldb < at_least_1(s.tb == CUBLAS_OP_N ? s.k : s.n) || s.ldc < at_least_1(s.m))
    return CUBLAS_STATUS_INVALID_VALUE;
  return CUBLAS_STATUS_SUCCESS;
}
// Inputs of one type; the output of that type or float.
static bool supported(const Types& t) {
  return known_type(t.a) && t.a == t.b && (t.c == t.a || t.c == CUDA_R_32F);
}
static bool supported(cublasComputeType_t c) {
  return c == CUBLAS_COMPUTE_32F || c == CUBLAS_COMPUTE_32F_PEDANTIC ||
         c == CUBLAS_COMPUTE_32F_FAST_TF32 || c == CUBLAS_COMPUTE_32F_FAST_16F ||
         c == CUBLAS_COMPUTE_32F_FAST_16BF;
}

static int64_t extent(int64_t rows, int64_t columns, int64_t ld, cudaDataType t) {
  return rows > 0 && columns > 0 ? ((columns - 1) * ld + rows) * type_bytes(t) : 0;
}

// One product on device pointers; false after reporting an operand that is not (all) in device
// memory.
static bool gemm(const char* function, const Shape& s, const Types& t, float alpha, const void* a,
                 const void* b, float beta, void* c) {
  const bool na = s.ta == CUBLAS_OP_N, nb = s.tb == CUBLAS_OP_N;
  if (s.m == 0 || s.n == 0) return true;
  if (alpha != 0 && s.k > 0) {
    if (!nogpu::check_range(function, "A", a, extent(na ? s.m : s.k, na ? s.k : s.m, s.lda, t.a)))
      return false;
    if (!nogpu::check_range(function, "B", b, extent(nb ? s.k : s.n, nb ? s.n : s.k, s.ldb, t.b)))
      return false;
  }
  if (!nogpu::check_range(function, "C", c, extent(s.m, s.n, s.ldc, t.c))) return false;
  Product p = {s.m,
               s.n,
               s.k,
               alpha,
               beta,
               {a, t.a, na ? 1 : s.lda, na ? s.lda : 1},
               {b, t.b, nb ? 1 : s.ldb, nb ? s.ldb : 1},
               {c, t.c, 1, s.ldc},
               c,
               t.c,
               1,
               s.ldc};
  multiply(p);
  return true;
}

// alpha and beta are read now (host) or when the product runs (device).
struct Scalars {
  float alpha = 0, beta = 0;
  const float *device_alpha = nullptr, *device_beta = nullptr;
  Scalars(cublasHandle_t h, const void* a, const void* b) {
    if (h->pointer_mode == CUBLAS_POINTER_MODE_HOST) {
      alpha = *(const float*)a;
      beta = *(const float*)b;
    } else {
      device_alpha = (const float*)a;
      device_beta = (const float*)b;
    }
  }
  bool resolve(const char* function, float* a, float* b) const {
    *a = alpha;
    *b = beta;
    if (!device_alpha) return true;
    if (!nogpu::check_range(function, "alpha", device_alpha, 4) ||
        !nogpu::check_range(function, "beta", device_beta, 4))
      return false;
    *a = *device_alpha;
    *b = *device_beta;
    return true;
  }
};

static cublasStatus_t strided(const char* function, cublasHandle_t h, const Shape& s,
                              const Types& t, const void* alpha, const void* a, int64_t sa,
                              const void* b, int64_t sb, const void* beta, void* c, int64_t sc,
                              int64_t count, cublasComputeType_t compute) {
  if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (cublasStatus_t e = check_shape(s)) return e;
  if (count < 0 || !alpha || !beta) return CUBLAS_STATUS_INVALID_VALUE;
  if (!supported(compute) || !supported(t)) return CUBLAS_STATUS_NOT_SUPPORTED;
  Scalars scalars(h, alpha, beta);
  return status_of(nogpu::submit(h->stream, [=] {
    float x, y;
    if (!scalars.resolve(function, &x, &y)) return cudaErrorIllegalAddress;
    for (int64_t i = 0; i < count; i++)
      if (!gemm(function, s, t, x, (const char*)a + i * sa * type_bytes(t.a),
                (const char*)b + i * sb * type_bytes(t.b), y, (char*)c + i * sc * type_bytes(t.c)))
        return cudaErrorIllegalAddress;
    return cudaSuccess;
  }));
}

static bool pointers(const char* function, const char* operand, const void* const* array,
                     int64_t count) {
  return nogpu::check_range(function, operand, array, count * sizeof(void*));
}

static cublasStatus_t batched(const char* function, cublasHandle_t h, const Shape& s,
                              const Types& t, const void* alpha, const void* const* a,
                              const void* const* b, const void* beta, void* const* c, int64_t count,
                              cublasComputeType_t compute) {
  if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (cublasStatus_t e = check_shape(s)) return e;
  if (count < 0 || !alpha || !beta) return CUBLAS_STATUS_INVALID_VALUE;
  if (!supported(compute) || !supported(t)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (count == 0) return CUBLAS_STATUS_SUCCESS;
  Scalars scalars(h, alpha, beta);
  return status_of(nogpu::submit(h->stream, [=] {
    float x, y;
    if (!scalars.resolve(function, &x, &y)) return cudaErrorIllegalAddress;
    if (!pointers(function, "Aarray", a, count) || !pointers(function, "Barray", b, count) ||
        !pointers(function, "Carray", c, count))
      return cudaErrorIllegalAddress;
    for (int64_t i = 0; i < count; i++)
      if (!gemm(function, s, t, x, a[i], b[i], y, c[i])) return cudaErrorIllegalAddress;
    return cudaSuccess;
  }));
}

// Everything but the matrices' pointers is in host arrays, one entry per group.
static cublasStatus_t grouped(const char* function, cublasHandle_t h, const cublasOperation_t* ta,
                              const cublasOperation_t* tb, const int* m, const int* n, const int* k,
                              const float* alpha, const void* const* a, const int* lda,
                              const void* const* b, const int* ldb, const float* beta,
                              void* const* c, const int* ldc, int groups, const int* sizes,
                              const Types& t, cublasComputeType_t compute) {
  if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (groups < 0) return CUBLAS_STATUS_INVALID_VALUE;
  if (groups == 0) return CUBLAS_STATUS_SUCCESS;
  if (!ta || !tb || !m || !n || !k || !alpha || !beta || !lda || !ldb || !ldc || !sizes || !a ||
      !b || !c)
    return CUBLAS_STATUS_INVALID_VALUE;
  struct Group {
    Shape shape;
    float alpha, beta;
    int64_t size;
  };
  std::vector<Group> all;
  int64_t total = 0;
  for (int g = 0; g < groups; g++) {
    Group x = {
        {ta[g], tb[g], m[g], n[g], k[g], lda[g], ldb[g], ldc[g]}, alpha[g], beta[g], sizes[g]};
    if (cublasStatus_t e = check_shape(x.shape)) return e;
    if (x.size < 0) return CUBLAS_STATUS_INVALID_VALUE;
    total += x.size;
    all.push_back(x);
  }
  if (h->pointer_mode != CUBLAS_POINTER_MODE_HOST) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (!supported(compute) || !supported(t)) return CUBLAS_STATUS_NOT_SUPPORTED;
  return status_of(nogpu::submit(h->stream, [=] {
    if (!pointers(function, "Aarray", a, total) || !pointers(function, "Barray", b, total) ||
        !pointers(function, "Carray", c, total))
      return cudaErrorIllegalAddress;
    int64_t at = 0;
    for (const Group& g : all)
      for (int64_t i = 0; i < g.size; i++, at++)
        if (!gemm(function, g.shape, t, g.alpha, a[at], b[at], g.beta, c[at]))
          return cudaErrorIllegalAddress;
    return cudaSuccess;
  }));
}

static const Types FLOATS = {CUDA_R_32F, CUDA_R_32F, CUDA_R_32F};

extern "C" {
cublasStatus_t cublasCreate_v2(cublasHandle_t* h) {
  if (!h) return CUBLAS_STATUS_INVALID_VALUE;
  *h = new (std::nothrow) cublasContext;
  return *h ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t h) {
  if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
  delete h;
  return CUBLAS_STATUS_SUCCESS;
}
#define NEED(h)                                     \
  do {                                              \
    if (!(h)) return CUBLAS_STATUS_NOT_INITIALIZED; \
  } while (0)
cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int* v) {
  if (!v) return CUBLAS_STATUS_INVALID_VALUE;
  *v = CUBLAS_VERSION;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t h, cudaStream_t s) {
  NEED(h);
  h->stream = s;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetStream_v2(cublasHandle_t h, cudaStream_t* s) {
  NEED(h);
  *s = h->stream;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t h, cublasPointerMode_t m) {
  NEED(h);
  if (m != CUBLAS_POINTER_MODE_HOST && m != CUBLAS_POINTER_MODE_DEVICE)
    return CUBLAS_STATUS_INVALID_VALUE;
  h->pointer_mode = m;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t h, cublasPointerMode_t* m) {
  NEED(h);
  *m = h->pointer_mode;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t h, cublasMath_t m) {
  NEED(h);
  h->math_mode = m;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetMathMode(cublasHandle_t h, cublasMath_t* m) {
  NEED(h);
  *m = h->math_mode;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetAtomicsMode(cublasHandle_t h, cublasAtomicsMode_t m) {
  NEED(h);
  h->atomics_mode = m;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetAtomicsMode(cublasHandle_t h, cublasAtomicsMode_t* m) {
  NEED(h);
  *m = h->atomics_mode;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t h, void* p, size_t bytes) {
  NEED(h);
  if ((size_t)p % 256) return CUBLAS_STATUS_INVALID_VALUE;
  if (p && bytes && !nogpu::check_range("cublasSetWorkspace", "workspace", p, bytes))
    return CUBLAS_STATUS_EXECUTION_FAILED;
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasGetStatusName(cublasStatus_t s) {
  switch (s) {
// It is never content with a list of macros.
// clang-format off
#define NAME(x) case x: return #x;
    NAME(CUBLAS_STATUS_SUCCESS)
    NAME(CUBLAS_STATUS_NOT_INITIALIZED)
    NAME(CUBLAS_STATUS_ALLOC_FAILED)
    NAME(CUBLAS_STATUS_INVALID_VALUE)
    NAME(CUBLAS_STATUS_ARCH_MISMATCH)
    NAME(CUBLAS_STATUS_MAPPING_ERROR)
    NAME(CUBLAS_STATUS_EXECUTION_FAILED)
    NAME(CUBLAS_STATUS_INTERNAL_ERROR)
    NAME(CUBLAS_STATUS_NOT_SUPPORTED)
    NAME(CUBLAS_STATUS_LICENSE_ERROR)
// clang-format on
#undef NAME
  }
  return "unknown cuBLAS status";
}
const char* cublasGetStatusString(cublasStatus_t s) {
  return cublasGetStatusName(s);
}

cublasStatus_t cublasSgemm_v2(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m,
                              int n, int k, const float* alpha, const float* a, int lda,
                              const float* b, int ldb, const float* beta, float* c, int ldc) {
  return strided("cublasSgemm", h, {ta, tb, m, n, k, lda, ldb, ldc}, FLOATS, alpha, a, 0, b, 0,
                 beta, c, 0, 1, CUBLAS_COMPUTE_32F);
}
cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t h, cublasOperation_t ta,
                                         cublasOperation_t tb, int m, int n, int k,
                                         const float* alpha, const float* a, int lda, long long sa,
                                         const float* b, int ldb, long long sb, const float* beta,
                                         float* c, int ldc, long long sc, int count) {
  return strided("cublasSgemmStridedBatched", h, {ta, tb, m, n, k, lda, ldb, ldc}, FLOATS, alpha, a,
                 sa, b, sb, beta, c, sc, count, CUBLAS_COMPUTE_32F);
}
cublasStatus_t cublasSgemmBatched(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb,
                                  int m, int n, int k, const float* alpha, const float* const a[],
                                  int lda, const float* const b[], int ldb, const float* beta,
                                  float* const c[], int ldc, int count) {
  return batched("cublasSgemmBatched", h, {ta, tb, m, n, k, lda, ldb, ldc}, FLOATS, alpha,
                 (const void* const*)a, (const void* const*)b, beta, (void* const*)c, count,
                 CUBLAS_COMPUTE_32F);
}
cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m,
                            int n, int k, const void* alpha, const void* a, cudaDataType at,
                            int lda, const void* b, cudaDataType bt, int ldb, const void* beta,
                            void* c, cudaDataType ct, int ldc, cublasComputeType_t compute,
                            cublasGemmAlgo_t) {
  return strided("cublasGemmEx", h, {ta, tb, m, n, k, lda, ldb, ldc}, {at, bt, ct}, alpha, a, 0, b,
                 0, beta, c, 0, 1, compute);
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t h, cublasOperation_t ta,
                                          cublasOperation_t tb, int m, int n, int k,
                                          const void* alpha, const void* a, cudaDataType at,
                                          int lda, long long sa, const void* b, cudaDataType bt,
                                          int ldb, long long sb, const void* beta, void* c,
                                          cudaDataType ct, int ldc, long long sc, int count,
                                          cublasComputeType_t compute, cublasGemmAlgo_t) {
  return strided("cublasGemmStridedBatchedEx", h, {ta, tb, m, n, k, lda, ldb, ldc}, {at, bt, ct},
                 alpha, a, sa, b, sb, beta, c, sc, count, compute);
}
cublasStatus_t cublasGemmBatchedEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb,
                                   int m, int n, int k, const void* alpha, const void* const a[],
                                   cudaDataType at, int lda, const void* const b[], cudaDataType bt,
                                   int ldb, const void* beta, void* const c[], cudaDataType ct,
                                   int ldc, int count, cublasComputeType_t compute,
                                   cublasGemmAlgo_t) {
  return batched("cublasGemmBatchedEx", h, {ta, tb, m, n, k, lda, ldb, ldc}, {at, bt, ct}, alpha, a,
                 b, beta, c, count, compute);
}
cublasStatus_t cublasGemmGroupedBatchedEx(cublasHandle_t h, const cublasOperation_t ta[],
                                          const cublasOperation_t tb[], const int m[],
                                          const int n[], const int k[], const void* alpha,
                                          const void* const a[], cudaDataType_t at, const int lda[],
                                          const void* const b[], cudaDataType_t bt, const int ldb[],
                                          const void* beta, void* const c[], cudaDataType_t ct,
                                          const int ldc[], int groups, const int sizes[],
                                          cublasComputeType_t compute) {
  return grouped("cublasGemmGroupedBatchedEx", h, ta, tb, m, n, k, (const float*)alpha, a, lda, b,
                 ldb, (const float*)beta, c, ldc, groups, sizes, {at, bt, ct}, compute);
}
cublasStatus_t cublasSgemmGroupedBatched(cublasHandle_t h, const cublasOperation_t ta[],
                                         const cublasOperation_t tb[], const int m[], const int n[],
                                         const int k[], const float alpha[], const float* const a[],
                                         const int lda[], const float* const b[], const int ldb[],
                                         const float beta[], float* const c[], const int ldc[],
                                         int groups, const int sizes[]) {
  return grouped("cublasSgemmGroupedBatched", h, ta, tb, m, n, k, alpha, (const void* const*)a, lda,
                 (const void* const*)b, ldb, beta, (void* const*)c, ldc, groups, sizes, FLOATS,
                 CUBLAS_COMPUTE_32F);
}
}
