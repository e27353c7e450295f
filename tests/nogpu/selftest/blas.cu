// SPDX-License-Identifier: Apache-2.0
//
// The cuBLAS and cuBLASLt stand-ins against straightforward products.
#include "check.h"
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <algorithm>

#define BLAS(call) EXPECT((call) == CUBLAS_STATUS_SUCCESS)

static cublasHandle_t handle() {
  static cublasHandle_t h = [] {
    cublasHandle_t x;
    cublasCreate(&x);
    return x;
  }();
  return h;
}
template <class T>
struct Type;
template <>
struct Type<float> {
  static const cudaDataType value = CUDA_R_32F;
  static float down(float x) { return x; }
  static float up(float x) { return x; }
};
template <>
struct Type<__half> {
  static const cudaDataType value = CUDA_R_16F;
  static __half down(float x) { return __float2half(x); }
  static float up(__half x) { return __half2float(x); }
};
template <>
struct Type<__nv_bfloat16> {
  static const cudaDataType value = CUDA_R_16BF;
  static __nv_bfloat16 down(float x) { return __float2bfloat16(x); }
  static float up(__nv_bfloat16 x) { return __bfloat162float(x); }
};

template <class T>
std::vector<T> matrix(size_t n) {
  std::vector<T> v(n);
  for (auto& x : v)
    x = Type<T>::down((int)(random_bits() % 9) - 4);  // small integers: every sum is exact
  return v;
}
// Column-major reference on the host copies.
template <class T, class C>
void reference(bool ta, bool tb, int m, int n, int k, float alpha, const T* a, int lda, const T* b,
               int ldb, float beta, C* c, int ldc) {
  for (int j = 0; j < n; j++)
    for (int i = 0; i < m; i++) {
      float s = 0;
      for (int p = 0; p < k; p++)
        s += Type<T>::up(ta ? a[i * lda + p] : a[p * lda + i]) *
             Type<T>::up(tb ? b[p * ldb + j] : b[j * ldb + p]);
      C& x = c[j * ldc + i];
      x = Type<C>::down(alpha * s + (beta != 0 ? beta * Type<C>::up(x) : 0));
    }
}
template <class C>
void expect_equal(const std::vector<C>& got, const std::vector<C>& want) {
  EXPECT(!memcmp(got.data(), want.data(), got.size() * sizeof(C)));
}

template <class T, class C>
void gemm_ex(cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, int pad, float alpha,
             float beta) {
  int lda = (ta == CUBLAS_OP_N ? m : k) + pad, ldb = (tb == CUBLAS_OP_N ? k : n) + pad,
      ldc = m + pad;
  auto a = matrix<T>(lda * (ta == CUBLAS_OP_N ? k : m)),
       b = matrix<T>(ldb * (tb == CUBLAS_OP_N ? n : k));
  auto c = matrix<C>(ldc * n);  // the padding between columns must stay untouched
  if (beta == 0)
    for (int j = 0; j < n; j++)
      for (int i = 0; i < m; i++) c[j * ldc + i] = Type<C>::down(NAN);
  Device<T> da(a), db(b);
  Device<C> dc(c);
  BLAS(cublasGemmEx(handle(), ta, tb, m, n, k, &alpha, da, Type<T>::value, lda, db, Type<T>::value,
                    ldb, &beta, dc, Type<C>::value, ldc, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  CUDA(cudaDeviceSynchronize());
  reference<T, C>(ta != CUBLAS_OP_N, tb != CUBLAS_OP_N, m, n, k, alpha, a.data(), lda, b.data(),
                  ldb, beta, c.data(), ldc);
  expect_equal(dc.get(), c);
}
template <class T, class C>
void all_forms() {
  for (auto ta : {CUBLAS_OP_N, CUBLAS_OP_T})
    for (auto tb : {CUBLAS_OP_N, CUBLAS_OP_T}) {
      gemm_ex<T, C>(ta, tb, 17, 23, 31, 3, 1, 0);
      gemm_ex<T, C>(ta, tb, 1, 40, 5, 0, 2, -1);
      gemm_ex<T, C>(ta, tb, 50, 2, 300, 1, -0.5f, 2);
      gemm_ex<T, C>(ta, tb, 9, 9, 1, 0, 1, 1);
    }
}
TEST(gemm_ex_float) {
  all_forms<float, float>();
}
TEST(gemm_ex_half) {
  all_forms<__half, float>();
}
TEST(gemm_ex_half_out) {
  gemm_ex<__half, __half>(CUBLAS_OP_T, CUBLAS_OP_N, 33, 20, 16, 2, 1, 1);
}
TEST(gemm_ex_bf16) {
  all_forms<__nv_bfloat16, float>();
}
TEST(gemm_ex_bf16_out) {
  gemm_ex<__nv_bfloat16, __nv_bfloat16>(CUBLAS_OP_N, CUBLAS_OP_T, 33, 20, 8, 2, 1, 0);
}
TEST(sgemm_and_degenerate_sizes) {
  auto a = matrix<float>(64), b = matrix<float>(64), c = matrix<float>(64);
  Device<float> da(a), db(b), dc(c);
  float one = 1, zero = 0, two = 2;
  BLAS(cublasSgemm(handle(), CUBLAS_OP_N, CUBLAS_OP_N, 8, 8, 8, &one, da, 8, db, 8, &two, dc, 8));
  reference<float, float>(false, false, 8, 8, 8, 1, a.data(), 8, b.data(), 8, 2, c.data(), 8);
  expect_equal(dc.get(), c);
  BLAS(cublasSgemm(handle(), CUBLAS_OP_N, CUBLAS_OP_N, 0, 8, 8, &one, da, 8, db, 8, &zero, dc, 8));
  expect_equal(dc.get(), c);
  BLAS(cublasSgemm(handle(), CUBLAS_OP_N, CUBLAS_OP_N, 8, 8, 0, &one, da, 8, db, 8, &two, dc,
                   8));  // C = 2 C
  for (auto& x : c) x *= 2;
  expect_equal(dc.get(), c);
  // Device pointer mode.
  Device<float> scalars(std::vector<float>{3, 0.5f});
  BLAS(cublasSetPointerMode(handle(), CUBLAS_POINTER_MODE_DEVICE));
  BLAS(cublasSgemm(handle(), CUBLAS_OP_T, CUBLAS_OP_N, 8, 8, 8, scalars, da, 8, db, 8, scalars + 1,
                   dc, 8));
  BLAS(cublasSetPointerMode(handle(), CUBLAS_POINTER_MODE_HOST));
  reference<float, float>(true, false, 8, 8, 8, 3, a.data(), 8, b.data(), 8, 0.5f, c.data(), 8);
  expect_equal(dc.get(), c);
}
TEST(strided_and_pointer_batches) {
  const int m = 6, n = 7, k = 5, count = 4;
  auto a = matrix<__nv_bfloat16>(m * k * count), b = matrix<__nv_bfloat16>(k * n);
  auto c = matrix<float>(m * n * count);
  auto c2 = c;
  Device<__nv_bfloat16> da(a), db(b);
  Device<float> dc(c), dc2(c);
  float one = 1;
  BLAS(cublasGemmStridedBatchedEx(
      handle(), CUBLAS_OP_N, CUBLAS_OP_N, m, n, k, &one, da, CUDA_R_16BF, m, m * k, db, CUDA_R_16BF,
      k, 0, &one, dc, CUDA_R_32F, m, m * n, count, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  for (int i = 0; i < count; i++)
    reference<__nv_bfloat16, float>(false, false, m, n, k, 1, a.data() + i * m * k, m, b.data(), k,
                                    1, c.data() + i * m * n, m);
  expect_equal(dc.get(), c);
  std::vector<void*> pa, pb, pc;
  for (int i = 0; i < count; i++) {
    pa.push_back(da + i * m * k);
    pb.push_back(db.p);
    pc.push_back(dc2 + i * m * n);
  }
  Device<void*> dpa(pa), dpb(pb), dpc(pc);
  BLAS(cublasGemmBatchedEx(handle(), CUBLAS_OP_N, CUBLAS_OP_N, m, n, k, &one,
                           (const void* const*)dpa.p, CUDA_R_16BF, m, (const void* const*)dpb.p,
                           CUDA_R_16BF, k, &one, (void* const*)dpc.p, CUDA_R_32F, m, count,
                           CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  expect_equal(dc2.get(), c);
}
TEST(grouped_batches) {  // experts with different token counts, one of them empty
  const int groups = 3, tokens[groups] = {5, 0, 9}, hidden = 8, width = 12;
  cublasOperation_t ta[] = {CUBLAS_OP_T, CUBLAS_OP_T, CUBLAS_OP_T},
                    tb[] = {CUBLAS_OP_N, CUBLAS_OP_N, CUBLAS_OP_N};
  int m[] = {width, width, width}, n[] = {5, 0, 9}, k[] = {hidden, hidden, hidden},
      ld[] = {hidden, hidden, hidden}, ldc[] = {width, width, width}, sizes[] = {1, 1, 1};
  float alpha[] = {1, 1, 1}, beta[] = {0, 0, 0};
  auto w = matrix<__nv_bfloat16>(groups * hidden * width), x = matrix<__nv_bfloat16>(14 * hidden);
  std::vector<__nv_bfloat16> y(14 * width, __float2bfloat16(7));
  Device<__nv_bfloat16> dw(w), dx(x), dy(y);
  std::vector<void*> pa, pb, pc;
  int at = 0;
  for (int g = 0; g < groups; g++) {
    pa.push_back(dw + g * hidden * width);
    pb.push_back(dx + at * hidden);
    pc.push_back(dy + at * width);
    at += tokens[g];
  }
  Device<void*> dpa(pa), dpb(pb), dpc(pc);
  BLAS(cublasGemmGroupedBatchedEx(handle(), ta, tb, m, n, k, alpha, (const void* const*)dpa.p,
                                  CUDA_R_16BF, ld, (const void* const*)dpb.p, CUDA_R_16BF, ld, beta,
                                  (void* const*)dpc.p, CUDA_R_16BF, ldc, groups, sizes,
                                  CUBLAS_COMPUTE_32F));
  at = 0;
  for (int g = 0; g < groups; g++) {
    reference<__nv_bfloat16, __nv_bfloat16>(
        true, false, width, tokens[g], hidden, 1, w.data() + g * hidden * width, hidden,
        x.data() + at * hidden, hidden, 0, y.data() + at * width, width);
    at += tokens[g];
  }
  expect_equal(dy.get(), y);
}
TEST(argument_checks) {
  Device<float> d(64, 0);
  float one = 1;
  auto sgemm = [&](int m, int n, int k, int lda, int ldb, int ldc) {
    return cublasSgemm(handle(), CUBLAS_OP_N, CUBLAS_OP_N, m, n, k, &one, d, lda, d, ldb, &one, d,
                       ldc);
  };
  EXPECT(sgemm(-1, 2, 2, 2, 2, 2) == CUBLAS_STATUS_INVALID_VALUE);
  EXPECT(sgemm(4, 2, 2, 3, 2, 4) == CUBLAS_STATUS_INVALID_VALUE);
  EXPECT(sgemm(4, 2, 2, 4, 1, 4) == CUBLAS_STATUS_INVALID_VALUE);
  EXPECT(sgemm(4, 2, 2, 4, 2, 3) == CUBLAS_STATUS_INVALID_VALUE);
  EXPECT(cublasSgemm(nullptr, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, d, 1, d, 1, &one, d, 1) ==
         CUBLAS_STATUS_NOT_INITIALIZED);
  EXPECT(cublasGemmEx(handle(), CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, d, CUDA_R_16F, 1, d,
                      CUDA_R_32F, 1, &one, d, CUDA_R_32F, 1, CUBLAS_COMPUTE_32F,
                      CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_NOT_SUPPORTED);
  int v;
  BLAS(cublasGetVersion(handle(), &v));
  EXPECT(v >= 130000);
  BLAS(cublasSetMathMode(handle(), CUBLAS_TF32_TENSOR_OP_MATH));
  Device<char> workspace(1 << 16);
  BLAS(cublasSetWorkspace(handle(), workspace, 1 << 16));
}
TEST(captured_in_a_graph) {
  cudaStream_t s;
  CUDA(cudaStreamCreate(&s));
  BLAS(cublasSetStream(handle(), s));
  Device<float> a(std::vector<float>(16, 1)), c(16, 0);
  float one = 1;
  cudaGraph_t g;
  cudaGraphExec_t e;
  CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  BLAS(cublasSgemm(handle(), CUBLAS_OP_N, CUBLAS_OP_N, 4, 4, 4, &one, a, 4, a, 4, &one, c, 4));
  CUDA(cudaStreamEndCapture(s, &g));
  EXPECT(c.get()[0] == 0);
  CUDA(cudaGraphInstantiate(&e, g, 0));
  CUDA(cudaGraphLaunch(e, s));
  CUDA(cudaGraphLaunch(e, s));
  CUDA(cudaStreamSynchronize(s));
  EXPECT(c.get()[15] == 8);
  BLAS(cublasSetStream(handle(), nullptr));
  CUDA(cudaGraphExecDestroy(e));
  CUDA(cudaGraphDestroy(g));
  CUDA(cudaStreamDestroy(s));
}
TEST(lt_matmul) {
  const int m = 12, n = 9, k = 16;
  cublasLtHandle_t lt;
  BLAS(cublasLtCreate(&lt));
  auto a = matrix<__nv_bfloat16>(k * m), b = matrix<__nv_bfloat16>(k * n);
  auto bias = matrix<__nv_bfloat16>(m);
  std::vector<__nv_bfloat16> c(m * n), want(m * n);
  Device<__nv_bfloat16> da(a), db(b), dc(c), dbias(bias);
  cublasLtMatmulDesc_t op;
  cublasLtMatrixLayout_t la, lb, lc;
  BLAS(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  cublasOperation_t t = CUBLAS_OP_T;
  BLAS(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t));
  BLAS(cublasLtMatrixLayoutCreate(&la, CUDA_R_16BF, k, m, k));
  BLAS(cublasLtMatrixLayoutCreate(&lb, CUDA_R_16BF, k, n, k));
  BLAS(cublasLtMatrixLayoutCreate(&lc, CUDA_R_16BF, m, n, m));
  cublasLtMatmulPreference_t preference;
  size_t workspace = 1 << 20;
  BLAS(cublasLtMatmulPreferenceCreate(&preference));
  BLAS(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                            &workspace, sizeof workspace));
  cublasLtMatmulHeuristicResult_t result;
  int found = 0;
  BLAS(cublasLtMatmulAlgoGetHeuristic(lt, op, la, lb, lc, lc, preference, 1, &result, &found));
  EXPECT(found == 1 && result.state == CUBLAS_STATUS_SUCCESS);
  float one = 1, zero = 0;
  BLAS(cublasLtMatmul(lt, op, &one, da, la, db, lb, &zero, dc, lc, dc, lc, &result.algo, nullptr, 0,
                      0));
  reference<__nv_bfloat16, __nv_bfloat16>(true, false, m, n, k, 1, a.data(), k, b.data(), k, 0,
                                          want.data(), m);
  expect_equal(dc.get(), want);
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
  void* pointer = dbias.p;
  BLAS(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                      sizeof epilogue));
  BLAS(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &pointer,
                                      sizeof pointer));
  BLAS(cublasLtMatmul(lt, op, &one, da, la, db, lb, &zero, dc, lc, dc, lc, nullptr, nullptr, 0, 0));
  auto got = dc.get();
  for (int j = 0; j < n; j++)
    for (int i = 0; i < m; i++) {
      float s = 0;
      for (int p = 0; p < k; p++)
        s += Type<__nv_bfloat16>::up(a[i * k + p]) * Type<__nv_bfloat16>::up(b[j * k + p]);
      EXPECT(Type<__nv_bfloat16>::up(got[j * m + i]) ==
             Type<__nv_bfloat16>::up(__float2bfloat16(s + Type<__nv_bfloat16>::up(bias[i]))));
    }
  epilogue = CUBLASLT_EPILOGUE_GELU;
  BLAS(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                      sizeof epilogue));
  EXPECT(cublasLtMatmul(lt, op, &one, da, la, db, lb, &zero, dc, lc, dc, lc, nullptr, nullptr, 0,
                        0) == CUBLAS_STATUS_NOT_SUPPORTED);
  // Row-major layouts: the same product with everything transposed by its order.
  epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  cublasOperation_t none = CUBLAS_OP_N;
  cublasLtOrder_t row = CUBLASLT_ORDER_ROW;
  BLAS(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                      sizeof epilogue));
  BLAS(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &none, sizeof none));
  cublasLtMatrixLayout_t ra;
  BLAS(cublasLtMatrixLayoutCreate(&ra, CUDA_R_16BF, m, k, k));
  BLAS(cublasLtMatrixLayoutSetAttribute(ra, CUBLASLT_MATRIX_LAYOUT_ORDER, &row, sizeof row));
  BLAS(cublasLtMatmul(lt, op, &one, da, ra, db, lb, &zero, dc, lc, dc, lc, nullptr, nullptr, 0, 0));
  expect_equal(dc.get(), want);
  EXPECT(cublasLtMatmul(lt, op, &one, da, la, db, lb, &zero, dc, lc, dc, lc, nullptr, nullptr, 0,
                        0) == CUBLAS_STATUS_INVALID_VALUE);  // shapes disagree
  for (auto l : {la, lb, lc, ra}) BLAS(cublasLtMatrixLayoutDestroy(l));
  BLAS(cublasLtMatmulDescDestroy(op));
  BLAS(cublasLtMatmulPreferenceDestroy(preference));
  BLAS(cublasLtDestroy(lt));
}
TEST(zz_out_of_bounds_operand) {  // last: the fault is sticky
  Device<float> d(60, 0);
  float one = 1;
  EXPECT(cublasSgemm(handle(), CUBLAS_OP_N, CUBLAS_OP_N, 8, 8, 8, &one, d, 8, d, 8, &one, d, 8) ==
         CUBLAS_STATUS_EXECUTION_FAILED);
  EXPECT(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
  CUDA(cudaDeviceReset());
  d.p = nullptr;
}
