// SPDX-License-Identifier: Apache-2.0
//
// What a translated kernel sees of the runtime: the per-thread state, checked memory access and the
// PTX instructions that have no direct C++ spelling. Included by the generated code and by the
// runtime itself, so it pulls in almost no standard headers (they would dominate the kernels'
// compile time).
#pragma once
#include <stdint.h>
#include <string.h>

typedef uint8_t u8;
typedef int8_t s8;
typedef uint16_t u16;
typedef int16_t s16;
typedef uint32_t u32;
typedef int32_t s32;
typedef uint64_t u64;
typedef int64_t s64;
typedef float f32;
typedef double f64;
typedef unsigned __int128 u128;
typedef __int128 s128;

#ifndef NOGPU_CHECKS
#define NOGPU_CHECKS 1
#endif
#ifndef NOGPU_RACECHECK
#define NOGPU_RACECHECK 0
#endif
#define NOGPU_UNLIKELY(x) __builtin_expect(!!(x), 0)

// ---------------------------------------------------------------- address space
// All device memory lives in one reserved range, so "is this device memory" is a compare with
// constants. The shadow holds, for each 256-byte granule, how many bytes from the granule's start
// are allocated: an access check is exact to the byte and costs one load.
constexpr u64 ARENA_BASE = 0x200000000000ull, ARENA_SIZE = 1ull << 38;
constexpr u64 SHADOW_BASE = 0x210000000000ull;
constexpr u64 GRANULE = 256;

enum Space : u32 { GLOBAL, SHARED, LOCAL, GENERIC };
enum Access : u32 { READ, WRITE, ATOMIC };

enum WarpOp : u32 {
  OP_SYNC,
  OP_ACTIVEMASK,
  OP_SHFL_UP,
  OP_SHFL_DOWN,
  OP_SHFL_BFLY,
  OP_SHFL_IDX,
  OP_BALLOT,
  OP_ANY,
  OP_ALL,
  OP_UNI,
  OP_MATCH_ANY,
  OP_MATCH_ALL,
  OP_RED_ADD,
  OP_RED_MIN_U,
  OP_RED_MAX_U,
  OP_RED_MIN_S,
  OP_RED_MAX_S,
  OP_RED_AND,
  OP_RED_OR,
  OP_RED_XOR,
  OP_LDMATRIX,
  OP_STMATRIX,
  OP_MOVMATRIX,
  OP_MMA,
  OP_WMMA
};
enum BarrierResult : u32 { BAR_POPC, BAR_AND, BAR_OR };
enum MmaType : u32 { MMA_F16, MMA_BF16, MMA_TF32, MMA_S8, MMA_U8 };
enum ThreadState : u8 { READY, AT_BARRIER, AT_WARP_OP, DONE };

struct Dim3 {
  u32 x, y, z;
};
struct Block;

struct Thread {  // one CUDA thread; what every switch touches comes first
  void* sp;
  Block* block;
  u32 lane, warp, index;  // index: position in the block
  ThreadState state;
  WarpOp warp_op;
  u32 warp_mask;
  u32 wait_loc;  // where it waits (PTX line), for reports
  // Mailbox of warp-wide instructions: operands in, results out.
  u32 out_pred, in[28], out[16];
  Dim3 tid, ctaid, ntid, nctaid;
  u32 carry;         // CC.CF of add.cc, madc, ...
  u64 shared_begin;  // below 4 GiB, so that 32-bit shared addresses work
  u32 shared_size, dynamic_size;
  u64 stack_begin, stack_end;  // where .local addresses may point
  u64 param_begin;
  u32 param_size;
  u64 grid_workspace;  // what %envreg1/2 point at: the cooperative-groups grid barrier
  const u64* symbols;  // addresses of the module's variables and functions, by index
  u32 barrier_id, barrier_count, barrier_pred;
  bool barrier_aligned;
};

extern "C" {
void nogpu_barrier(Thread*, u32 id, u32 count, u32 aligned, u32 loc);
u32 nogpu_barrier_reduce(Thread*, u32 id, u32 count, u32 pred, BarrierResult, u32 aligned, u32 loc);
void nogpu_barrier_arrive(Thread*, u32 id, u32 count, u32 loc);
void nogpu_warp(Thread*, WarpOp, u32 mask, u32 loc);
u32 nogpu_activemask(Thread*, u32 loc);
void nogpu_yield(Thread*, u32 loc);  // called in loops that may wait for another thread
int nogpu_printf(Thread*, const char* format, const char* args);
u64 nogpu_device_malloc(Thread*, u64 bytes);
void nogpu_device_free(Thread*, u64 address);
// Returns when the access is legal after all (another window, a registered host range); faults
// otherwise.
void nogpu_check_slow(Thread*, u64 address, u32 bytes, Space, u32 loc);
void nogpu_check_source(Thread*, u64 address, u32 alignment, u32 bytes, u32 loc);  // of cp.async
void nogpu_check_bulk(Thread*, u64 dst, u64 src, u32 bytes, bool to_shared,
                      u32 loc);  // of cp.async.bulk
void nogpu_race(Thread*, u64 address, u32 bytes, Access, const void* new_value,
                u32 loc);       // NOGPU_SANITIZE=1
void nogpu_race_sync(Thread*);  // a phase ended: what came before is ordered
// cp.async: queued, and copied when the thread waits.
void nogpu_async_copy(Thread*, u64 dst, u64 src, u32 bytes, u32 valid);
void nogpu_async_commit(Thread*);
void nogpu_async_wait(Thread*, u32 groups_left);
void nogpu_async_wait_all(Thread*);
[[noreturn]] void nogpu_exit(Thread*);
[[noreturn]] void nogpu_trap(Thread*, u32 loc);
[[noreturn]] void nogpu_assert_fail(Thread*, const char* what, const char* file, u32 line,
                                    const char* function, u32 loc);
}

// ---------------------------------------------------------------- bits
template <class T, class U>
static inline T bits(U u) {
  static_assert(sizeof(T) == sizeof(U), "bits() keeps the size");
  T t;
  memcpy(&t, &u, sizeof t);
  return t;
}
template <int N>
struct UintOf;
template <>
struct UintOf<1> {
  typedef u8 type;
};
template <>
struct UintOf<2> {
  typedef u16 type;
};
template <>
struct UintOf<4> {
  typedef u32 type;
};
template <>
struct UintOf<8> {
  typedef u64 type;
};
template <class T>
struct Signed {
  static constexpr bool value = T(-1) < T(0);
};

// ---------------------------------------------------------------- checked memory access
template <int N>
static inline void check_global(Thread* t, u64 a, u32 loc) {
#if NOGPU_CHECKS
  const u64 o = a - ARENA_BASE;
  if (NOGPU_UNLIKELY(o >= ARENA_SIZE || (a & (N - 1)) ||
                     (a & (GRANULE - 1)) + N > ((const u16*)SHADOW_BASE)[o / GRANULE]))
    nogpu_check_slow(t, a, N, GLOBAL, loc);
#endif
}
template <int N>
static inline void check_shared(Thread* t, u64 a, u32 loc) {
#if NOGPU_CHECKS
  const u64 o = a - t->shared_begin;
  if (NOGPU_UNLIKELY(o >= t->shared_size || o + N > t->shared_size || (a & (N - 1))))
    nogpu_check_slow(t, a, N, SHARED, loc);
#endif
}
template <int N>
static inline void check_local(Thread* t, u64 a, u32 loc) {
#if NOGPU_CHECKS
  if (NOGPU_UNLIKELY(a < t->stack_begin || a + N > t->stack_end || (a & (N - 1))))
    nogpu_check_slow(t, a, N, LOCAL, loc);
#endif
}
template <int N>
static inline void check_generic(Thread* t, u64 a, u32 loc) {
#if NOGPU_CHECKS
  const u64 o = a - ARENA_BASE;
  if (NOGPU_UNLIKELY(o >= ARENA_SIZE || (a & (N - 1)) ||
                     (a & (GRANULE - 1)) + N > ((const u16*)SHADOW_BASE)[o / GRANULE]))
    nogpu_check_slow(t, a, N, GENERIC, loc);
#endif
}
template <Space S, int N, Access A>
static inline void check(Thread* t, u64 a, u32 loc, const void* value = nullptr) {
  if (S == GLOBAL)
    check_global<N>(t, a, loc);
  else if (S == SHARED)
    check_shared<N>(t, a, loc);
  else if (S == LOCAL)
    check_local<N>(t, a, loc);
  else
    check_generic<N>(t, a, loc);
#if NOGPU_RACECHECK
  if (S == SHARED || (S == GENERIC && a - t->shared_begin < t->shared_size))
    nogpu_race(t, a, N, A, value, loc);
#endif
}
template <class T>
static inline T raw_load(u64 a) {
  T v;
  memcpy(&v, (const void*)a, sizeof v);
  return v;
}
template <class T>
static inline void raw_store(u64 a, T v) {
  memcpy((void*)a, &v, sizeof v);
}

template <class T, Space S>
static inline T load(Thread* t, u64 a, u32 loc) {
  check<S, sizeof(T), READ>(t, a, loc);
  return raw_load<T>(a);
}
template <class T, Space S>
static inline void store(Thread* t, u64 a, T v, u32 loc) {
  check<S, sizeof(T), WRITE>(t, a, loc, &v);
  raw_store(a, v);
}
template <class T, int N, Space S>
static inline void load_vec(Thread* t, u64 a, T* v, u32 loc) {
  check<S, int(sizeof(T)) * N, READ>(t, a, loc);
  memcpy(v, (const void*)a, sizeof(T) * N);
}
template <class T, int N, Space S>
static inline void store_vec(Thread* t, u64 a, const T* v, u32 loc) {
  check<S, int(sizeof(T)) * N, WRITE>(t, a, loc, v);
  memcpy((void*)a, v, sizeof(T) * N);
}
// Loads and stores other threads may race with on purpose (volatile, relaxed, acquire, release).
// The race checker counts them as atomics.
typedef long long v2di __attribute__((vector_size(16)));
template <class T, int N, Space S>
static inline void load_strong(Thread* t, u64 a, T* v, u32 loc) {
  constexpr int bytes = int(sizeof(T)) * N;
  check<S, bytes, ATOMIC>(t, a, loc);
  if constexpr (bytes == 16) {
    v2di x = *(volatile v2di*)a;
    memcpy(v, &x, 16);
  }  // one 16-byte load: x86 keeps it whole
  else if constexpr (bytes <= 8) {
    typedef typename UintOf<bytes>::type U;
    U x = __atomic_load_n((U*)a, __ATOMIC_SEQ_CST);
    memcpy(v, &x, bytes);
  } else
    memcpy(v, (const void*)a, bytes);
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
}
template <class T, int N, Space S>
static inline void store_strong(Thread* t, u64 a, const T* v, u32 loc) {
  constexpr int bytes = int(sizeof(T)) * N;
  check<S, bytes, ATOMIC>(t, a, loc);
  __atomic_thread_fence(__ATOMIC_RELEASE);
  if constexpr (bytes == 16) {
    v2di x;
    memcpy(&x, v, 16);
    *(volatile v2di*)a = x;
  } else if constexpr (bytes <= 8) {
    typedef typename UintOf<bytes>::type U;
    U x;
    memcpy(&x, v, bytes);
    __atomic_store_n((U*)a, x, __ATOMIC_SEQ_CST);
  } else
    memcpy((void*)a, v, bytes);
}
// Read-modify-write with any function of the old value.
template <class T, Space S, class F>
static inline T atomic_rmw(Thread* t, u64 a, u32 loc, F f) {
  check<S, sizeof(T), ATOMIC>(t, a, loc);
  typedef typename UintOf<sizeof(T)>::type U;
  U old = __atomic_load_n((U*)a, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n((U*)a, &old, bits<U>(T(f(bits<T>(old)))), false,
                                      __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
  }
  return bits<T>(old);
}
template <class T, Space S>
static inline T atomic_add_int(Thread* t, u64 a, T v, u32 loc) {
  check<S, sizeof(T), ATOMIC>(t, a, loc);
  return __atomic_fetch_add((T*)a, v, __ATOMIC_SEQ_CST);
}

// ---------------------------------------------------------------- 16-bit floating point
static inline f32 bf16_to_f32(u16 x) {
  return bits<f32>((u32)x << 16);
}
static inline u16 f32_to_bf16(f32 f) {
  u32 x = bits<u32>(f);
  if ((x & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return u16((x + 0x7fff + ((x >> 16) & 1)) >> 16);
}
static inline u16 f32_to_bf16_rz(f32 f) {
  return f != f ? 0x7fff : u16(bits<u32>(f) >> 16);
}
static inline f32 f16_to_f32(u16 h) {
  return (f32)bits<_Float16>(h);
}
static inline u16 f32_to_f16(f32 f) {
  return f != f ? 0x7fff : bits<u16>((_Float16)f);
}
static inline u16 f32_to_f16_rz(f32 f) {
  u16 h = f32_to_f16(f);
  return f == f && __builtin_fabsf(f16_to_f32(h)) > __builtin_fabsf(f)
             ? u16(h - 1)
             : h;  // inf steps back to the largest finite
}
// Rounding to odd keeps a later rounding to fewer bits exact, which makes fma single-rounded.
static inline f32 f64_to_f32_odd(f64 d) {
  f32 r = (f32)d;
  if ((f64)r == d || d != d) return r;
  u32 x = bits<u32>(r);
  if (__builtin_fabs((f64)r) > __builtin_fabs(d)) x--;
  return bits<f32>(x | 1);
}
static inline f64 fma_f64_odd(f64 a, f64 b,
                              f64 c) {  // a*b is exact: the factors have at most 11 bits
  f64 p = a * b, s = p + c, bb = s - p, err = (p - (s - bb)) + (c - bb);
  if (err != 0 && s - s == 0) {
    u64 x = bits<u64>(s);
    if (!(x & 1)) x = (err > 0) == (s > 0) ? x | 1 : (x - 1) | 1;
    s = bits<f64>(x);
  }
  return s;
}
struct F16 {
  static f32 up(u16 x) { return f16_to_f32(x); }
  static u16 down(f32 x) { return f32_to_f16(x); }
  static u16 down(f64 x) { return f32_to_f16(f64_to_f32_odd(x)); }
};
struct BF16 {
  static f32 up(u16 x) { return bf16_to_f32(x); }
  static u16 down(f32 x) { return f32_to_bf16(x); }
  static u16 down(f64 x) { return f32_to_bf16(f64_to_f32_odd(x)); }
};
template <class H, class F>
static inline u16 half_map(F f, u16 a) {
  return H::down(f(H::up(a)));
}
template <class H, class F>
static inline u16 half_map(F f, u16 a, u16 b) {
  return H::down(f(H::up(a), H::up(b)));
}
template <class H, class F>
static inline u16 half_map(F f, u16 a, u16 b, u16 c) {
  return H::down(f(H::up(a), H::up(b), H::up(c)));
}
template <class H, class F, class... A>
static inline u32 half2_map(F f, A... a) {
  return half_map<H>(f, u16(a)...) | (u32)half_map<H>(f, u16(a >> 16)...) << 16;
}
static inline f64 half_fma(f32 a, f32 b, f32 c) {
  return fma_f64_odd(a, b, c);
}
static inline f64 half_fma_relu(f32 a, f32 b, f32 c) {
  f64 r = fma_f64_odd(a, b, c);
  return r > 0 ? r : r != r ? r : 0;
}
static inline f64 half_fma_sat(f32 a, f32 b, f32 c) {
  f64 r = fma_f64_odd(a, b, c);
  return r > 1 ? 1 : r > 0 ? r : 0;
}

// 8-bit floating point, by table-free scaling. EBITS/MBITS/BIAS as in e4m3 (4,3,7) and e5m2
// (5,2,15).
template <int M, int BIAS, bool IEEE>
static inline f32 fp8_to_f32(u8 x) {
  u32 e = (x & 0x7f) >> M, m = x & ((1 << M) - 1), emax = 0x7f >> M;
  f32 v;
  if (IEEE && e == emax)
    v = m ? __builtin_nanf("") : __builtin_inff();
  else if (!IEEE && (x & 0x7f) == 0x7f)
    v = __builtin_nanf("");
  else
    v = __builtin_ldexpf(e ? f32((1 << M) + m) : f32(m), (e ? (int)e : 1) - BIAS - M);
  return x & 0x80 ? -v : v;
}
template <int M, int BIAS, bool IEEE>
static inline u8 f32_to_fp8(f32 f) {  // rn, satfinite
  const u8 sign = bits<u32>(f) >> 31 ? 0x80 : 0, largest = IEEE ? 0x7b : 0x7e;
  if (f != f) return 0x7f;
  f32 a = __builtin_fabsf(f);
  if (a >= fp8_to_f32<M, BIAS, IEEE>(largest)) return sign | largest;
  int e;
  __builtin_frexpf(a, &e);
  int q = e - 1 - M;
  if (q < 1 - BIAS - M) q = 1 - BIAS - M;
  u32 n = (u32)__builtin_nearbyintf(__builtin_ldexpf(a, -q));
  u32 r = n < (1u << M) ? n : ((u32)(q + BIAS + M) << M) + (n - (1u << M));
  return sign | (r > largest ? largest : r);
}

// ---------------------------------------------------------------- floating point
static inline f32 flush(f32 x) {
  return __builtin_fabsf(x) < 1.17549435e-38f ? __builtin_copysignf(0.f, x) : x;
}
template <class T>
static inline T saturate(T x) {
  return x > 1 ? T(1) : (x > 0 ? x : T(0));
}
static inline bool is_nan(f64 x) {
  return x != x;
}
template <class T>
static inline T fmin_ptx(T a, T b) {
  return a != a ? b : b != b ? a : (a < b || (a == b && __builtin_signbit(a))) ? a : b;
}
template <class T>
static inline T fmax_ptx(T a, T b) {
  return a != a ? b : b != b ? a : (a > b || (a == b && __builtin_signbit(b))) ? a : b;
}
template <class T>
static inline T fmin_nan(T a, T b) {
  return a != a ? a : b != b ? b : fmin_ptx(a, b);
}
template <class T>
static inline T fmax_nan(T a, T b) {
  return a != a ? a : b != b ? b : fmax_ptx(a, b);
}

// Directed rounding (__fadd_rz and friends) by switching the control register around one operation.
enum Rounding : u32 { RN = 0x0000, RM = 0x2000, RP = 0x4000, RZ = 0x6000 };
template <Rounding R, class T, class F>
static inline T rounded(F f, T a, T b = 0, T c = 0) {
  u32 saved = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr((saved & ~0x6000u) | R);
  asm volatile("" : "+x"(a), "+x"(b), "+x"(c));
  T r = f(a, b, c);
  asm volatile("" : "+x"(r));
  __builtin_ia32_ldmxcsr(saved);
  return r;
}
template <Rounding R>
static inline f32 narrow(f64 x) {
  u32 saved = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr((saved & ~0x6000u) | R);
  asm volatile("" : "+x"(x));
  f32 r = (f32)x;
  asm volatile("" : "+x"(r));
  __builtin_ia32_ldmxcsr(saved);
  return r;
}
template <Rounding R, class T, class I>
static inline T from_int(I v) {  // directed int -> float
  T r = (T)v;                    // nearest; step to the neighbour when it is on the wrong side
  long double exact = v, got = r;
  bool too_big = got > exact, too_small = got < exact;
  bool down = R == RM || (R == RZ && exact > 0), up = R == RP || (R == RZ && exact < 0);
  typedef typename UintOf<sizeof(T)>::type U;
  if ((too_big && down) || (too_small && up)) {
    U x = bits<U>(r);
    bool toward_zero = too_big == (r > 0);
    r = bits<T>(U(toward_zero ? x - 1 : x + 1));
  }
  return r;
}
template <class I>
static inline I float_to_int(f64 x) {  // saturating, NaN -> 0
  if (x != x) return 0;
  constexpr I lo = Signed<I>::value ? I(I(1) << (sizeof(I) * 8 - 1)) : I(0), hi = I(~lo);
  if (x <= (f64)lo) return lo;
  if (x >= (f64)hi) return hi;
  return (I)x;
}
static inline u32 f32_to_tf32_rna(f32 x) {
  return (bits<u32>(x) + 0x1000u) & 0xffffe000u;
}
static inline u32 f32_to_tf32_rn(f32 x) {
  u32 u = bits<u32>(x);
  return (u + 0xfff + ((u >> 13) & 1)) & 0xffffe000u;
}

// ---------------------------------------------------------------- integers
template <class T>
static inline T shift_left(T a, u32 n) {
  return n >= sizeof(T) * 8 ? T(0) : T(a << n);
}
template <class T>
static inline T shift_right(T a, u32 n) {
  if (n >= sizeof(T) * 8) return Signed<T>::value && a < T(0) ? T(-1) : T(0);
  return T(a >> n);
}
template <class T>
static inline T bit_extract(T a, u32 pos, u32 len) {
  typedef typename UintOf<sizeof(T)>::type U;
  const u32 w = sizeof(T) * 8;
  pos &= 255;
  len &= 255;
  if (!len) return 0;
  if (Signed<T>::value && pos + len > w)
    return shift_right<T>(a, pos);  // the field reaches past the top: filled with the sign
  const U r = shift_right<U>(U(a), pos);
  if (len >= w) return T(r);
  const U mask = U((U(1) << len) - 1);
  return Signed<T>::value && r >> (len - 1) & 1 ? T(r | U(~mask)) : T(r & mask);
}
template <class T>
static inline T bit_insert(T a, T b, u32 pos, u32 len) {
  const u32 w = sizeof(T) * 8;
  pos &= 255;
  len &= 255;
  if (pos >= w || !len) return b;
  T m = len >= w ? T(~T(0)) : T((T(1) << len) - 1);
  m = T(m << pos);
  return T((b & ~m) | (T(a << pos) & m));
}
static inline u32 bit_mask_clamp(u32 pos, u32 len) {
  return pos >= 32 ? 0 : (len >= 32 ? ~0u : (1u << len) - 1) << pos;
}
static inline u32 bit_mask_wrap(u32 pos, u32 len) {
  return ((1u << (len & 31)) - 1) << (pos & 31);
}
static inline u32 bit_reverse(u32 x) {
  x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
  x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
  x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
  return __builtin_bswap32(x);
}
static inline u64 bit_reverse(u64 x) {
  return (u64)bit_reverse((u32)x) << 32 | bit_reverse((u32)(x >> 32));
}
static inline u32 count_leading_zeros(u32 x) {
  return x ? __builtin_clz(x) : 32;
}
static inline u32 count_leading_zeros(u64 x) {
  return x ? __builtin_clzll(x) : 64;
}
template <class T>
static inline u32 find_leading(T v, bool shift_amount) {
  typedef typename UintOf<sizeof(T)>::type U;
  const u32 w = sizeof(T) * 8;
  U x = Signed<T>::value && v < T(0) ? U(~U(v)) : U(v);
  if (!x) return ~0u;
  u32 p = w - 1 - count_leading_zeros(x);
  return shift_amount ? w - 1 - p : p;
}
static inline u32 find_nth_set(u32 mask, u32 base, s32 offset) {
  if (offset == 0) return mask >> (base & 31) & 1 ? base : ~0u;
  s32 step = offset > 0 ? 1 : -1, left = offset > 0 ? offset : -offset;
  for (s32 i = (s32)base; i >= 0 && i < 32; i += step)
    if (mask >> i & 1 && --left == 0) return i;
  return ~0u;
}
static inline u32 permute_bytes(u32 a, u32 b, u32 selector) {
  u64 v = (u64)b << 32 | a;
  u32 r = 0;
  for (int i = 0; i < 4; i++) {
    u32 s = selector >> (4 * i) & 15;
    u8 y = u8(v >> (8 * (s & 7)));
    if (s & 8) y = y & 0x80 ? 0xff : 0;
    r |= (u32)y << (8 * i);
  }
  return r;
}
static inline u32 permute_mode(u32 a, u32 b, u32 c,
                               int mode) {  // prmt.f4e b4e rc8 ecl ecr rc16, in this order
  static const u16 table[6][4] = {
      {0x3210, 0x4321, 0x5432, 0x6543}, {0x5670, 0x6701, 0x7012, 0x0123},
      {0x0000, 0x1111, 0x2222, 0x3333}, {0x3210, 0x3211, 0x3222, 0x3333},
      {0x0000, 0x1110, 0x2210, 0x3210}, {0x1010, 0x3232, 0x1010, 0x3232}};
  return permute_bytes(a, b, table[mode][c & 3]);
}
static inline u32 funnel_left(u32 lo, u32 hi, u32 n) {
  return u32(((u64)hi << 32 | lo) << n >> 32);
}
static inline u32 funnel_right(u32 lo, u32 hi, u32 n) {
  return u32(((u64)hi << 32 | lo) >> n);
}
static inline u32 lop3(u32 a, u32 b, u32 c, u32 table) {
  u32 r = 0;
  for (int i = 0; i < 8; i++)
    if (table >> i & 1) r |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  return r;
}
template <class A, class B>
static inline u32 dot4(u32 a, u32 b, u32 c) {
  for (int i = 0; i < 4; i++) c += (u32)((s32)(A)(a >> (8 * i)) * (s32)(B)(b >> (8 * i)));
  return c;
}
template <class A, class B>
static inline u32 dot2(u32 a, u32 b, u32 c, int hi) {  // A: 16-bit lanes, B: bytes
  for (int i = 0; i < 2; i++)
    c += (u32)((s32)(A)(a >> (16 * i)) * (s32)(B)(b >> (8 * i + 16 * hi)));
  return c;
}
template <class T>
static inline T divide(T a, T b) {
  if (b == 0) return T(-1);
  if (Signed<T>::value && b == T(-1)) return T(0 - (typename UintOf<sizeof(T)>::type)a);
  return T(a / b);
}
template <class T>
static inline T remainder_(T a, T b) {
  if (b == 0) return a;
  if (Signed<T>::value && b == T(-1)) return 0;
  return T(a % b);
}
template <class T>
static inline T min_(T a, T b) {
  return a < b ? a : b;
}
template <class T>
static inline T max_(T a, T b) {
  return a > b ? a : b;
}
template <class T, class W>
static inline T clamp_to(W v) {
  constexpr T lo = Signed<T>::value ? T(T(1) << (sizeof(T) * 8 - 1)) : T(0), hi = T(~lo);
  return v < (W)lo ? lo : v > (W)hi ? hi : (T)v;
}

// ---------------------------------------------------------------- mbarrier (one block at a time:
// no atomics needed) 64-bit state: pending arrivals [0,20), expected arrivals [20,40), transaction
// bytes + 2^21 [40,62), phase [63].
static inline u64 mbarrier_word(u64 pending, u64 expected, s64 tx, u64 phase) {
  return pending | expected << 20 | (u64)(tx + (1 << 21)) << 40 | phase << 63;
}
static inline u64 mbarrier_init(u32 count) {
  return mbarrier_word(count, count, 0, 0);
}
static inline u64 mbarrier_update(u64 w, u32 arrivals, s64 tx_delta, bool drop = false) {
  u64 pending = w & 0xfffff, expected = w >> 20 & 0xfffff, phase = w >> 63;
  s64 tx = (s64)(w >> 40 & 0x3fffff) - (1 << 21) + tx_delta;
  pending -= arrivals;
  if (drop) expected -= arrivals;
  if (pending == 0 && tx == 0) {
    pending = expected;
    phase ^= 1;
  }
  return mbarrier_word(pending, expected, tx, phase);
}
static inline u32 mbarrier_phase(u64 w) {
  return w >> 63;
}
static inline void mbarrier_store(Thread* t, u64 a, u64 before, u64 after) {
  raw_store(a, after);
#if NOGPU_RACECHECK
  if (mbarrier_phase(before) != mbarrier_phase(after)) nogpu_race_sync(t);
#endif
}
