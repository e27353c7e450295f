// SPDX-License-Identifier: Apache-2.0
//
// A minimal test harness: TEST(name) { ... EXPECT(condition) }, run all or those named on the
// command line.
#pragma once
#include <cuda_runtime.h>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

struct Test {
  const char* name;
  void (*run)();
};
inline std::vector<Test>& tests() {
  static std::vector<Test> t;
  return t;
}
inline int failures, checks;
struct Register {
  Register(const char* name, void (*run)()) { tests().push_back({name, run}); }
};
#define TEST(name)                                     \
  static void test_##name();                           \
  static Register register_##name(#name, test_##name); \
  static void test_##name()
#define EXPECT(condition)                                                             \
  do {                                                                                \
    checks++;                                                                         \
    if (!(condition)) {                                                               \
      if (failures++ < 20) printf("    %s:%d: %s\n", __FILE__, __LINE__, #condition); \
    }                                                                                 \
  } while (0)
#define CUDA(call)                                                                    \
  do {                                                                                \
    cudaError_t e_ = (call);                                                          \
    checks++;                                                                         \
    if (e_ != cudaSuccess) {                                                          \
      failures++;                                                                     \
      printf("    %s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorName(e_)); \
    }                                                                                 \
  } while (0)
#define SYNC()                     \
  do {                             \
    CUDA(cudaGetLastError());      \
    CUDA(cudaDeviceSynchronize()); \
  } while (0)

inline bool near(double got, double want, double tolerance) {
  return std::fabs(got - want) <= tolerance * (1 + std::fabs(want));
}

template <class T>
struct Device {  // an array in device memory
  T* p = nullptr;
  size_t n;
  explicit Device(size_t n) : n(n) { CUDA(cudaMalloc(&p, n * sizeof(T))); }
  Device(const std::vector<T>& h) : Device(h.size()) {
    CUDA(cudaMemcpy(p, h.data(), n * sizeof(T), cudaMemcpyHostToDevice));
  }
  Device(size_t n, int byte) : Device(n) { CUDA(cudaMemset(p, byte, n * sizeof(T))); }
  Device(const Device&) = delete;
  ~Device() { cudaFree(p); }
  std::vector<T> get() const {
    std::vector<T> h(n);
    CUDA(cudaMemcpy(h.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
    return h;
  }
  operator T*() const { return p; }
};

inline uint32_t random_bits() {
  static uint32_t x = 12345;
  x ^= x << 13;
  x ^= x >> 17;
  x ^= x << 5;
  return x;
}
inline float random_float() {
  return (float)(int)(random_bits() >> 8) / 8388608.f - 1.f;
}  // [-1, 1)

int main(int argc, char** argv) {
  int failed = 0, run = 0;
  for (const Test& t : tests()) {
    bool wanted = argc < 2;
    for (int i = 1; i < argc; i++) wanted |= !strcmp(argv[i], t.name);
    if (!wanted) continue;
    failures = 0;
    t.run();
    run++;
    failed += failures > 0;
    printf("%s %s\n", failures ? "FAIL" : "pass", t.name);
    fflush(stdout);
  }
  printf("%d tests, %d failed, %d checks\n", run, failed, checks);
  return failed ? 1 : 0;
}
