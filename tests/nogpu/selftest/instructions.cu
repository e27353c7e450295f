// SPDX-License-Identifier: Apache-2.0
//
// Single PTX instructions against host references, on random and on special operands.
#include "check.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <algorithm>
#include <functional>
#include <type_traits>

typedef uint32_t u32;
typedef unsigned long long u64;
typedef int32_t s32;
typedef long long s64;

template <class T>
std::vector<T> operands(int seed) {
  std::vector<T> v;
  const u64 special[] = {0,
                         1,
                         2,
                         31,
                         32,
                         33,
                         63,
                         64,
                         0x7fffffff,
                         0x80000000,
                         0xffffffff,
                         0x8000000000000000ull,
                         0xffffffffffffffffull,
                         0x00010203,
                         0xfedcba98};
  for (u64 a : special)
    for (int i = 0; i < 15; i++) v.push_back((T)special[(i * (seed + 1) + seed + a % 15) % 15]);
  for (int i = 0; i < 800; i++) v.push_back((T)((u64)random_bits() << 32 | random_bits()));
  for (int i = 0; i < 200; i++) v.push_back((T)(random_bits() % 40));
  return v;
}
template <class T, class K, class F>
void compare(const char* name, K kernel, F reference) {
  auto a = operands<T>(0), b = operands<T>(1), c = operands<T>(2);
  Device<T> da(a), db(b), dc(c), out(a.size());
  kernel<<<(int)(a.size() + 63) / 64, 64>>>(da, db, dc, out, (int)a.size());
  SYNC();
  auto got = out.get();
  for (size_t i = 0; i < a.size(); i++) {
    T want = reference(a[i], b[i], c[i]);
    checks++;
    if (got[i] != want && failures++ < 5)
      printf("    %s(%llx, %llx, %llx) = %llx, not %llx\n", name, (long long)a[i], (long long)b[i],
             (long long)c[i], (long long)got[i], (long long)want);
  }
}
// INT32(name, asm text with %0 result and %1..%3 operands, host expression of x, y, z)
#define KERNEL(name, T, constraint, text)                                     \
  __global__ void k_##name(const T* a, const T* b, const T* c, T* o, int n) { \
    int i = blockIdx.x * blockDim.x + threadIdx.x;                            \
    if (i < n) {                                                              \
      T d;                                                                    \
      asm volatile(text                                                       \
                   : "=" constraint(d)                                        \
                   : constraint(a[i]), constraint(b[i]), constraint(c[i]));   \
      o[i] = d;                                                               \
    }                                                                         \
  }
#define INT32(name, text, expression)                              \
  KERNEL(name, u32, "r", text) TEST(name) {                        \
    compare<u32>(#name, k_##name, [](u32 x, u32 y, u32 z) -> u32 { \
      (void)x;                                                     \
      (void)y;                                                     \
      (void)z;                                                     \
      return expression;                                           \
    });                                                            \
  }
#define INT64(name, text, expression)                              \
  KERNEL(name, u64, "l", text) TEST(name) {                        \
    compare<u64>(#name, k_##name, [](u64 x, u64 y, u64 z) -> u64 { \
      (void)x;                                                     \
      (void)y;                                                     \
      (void)z;                                                     \
      return expression;                                           \
    });                                                            \
  }

static u32 bit_field(u32 a, u32 pos, u32 len, bool sign) {  // as the PTX manual writes it
  pos &= 255;
  len &= 255;
  u32 top = sign && len ? a >> std::min(pos + len - 1, 31u) & 1 : 0, r = 0;
  for (u32 i = 0; i < 32; i++) r |= (i < len && pos + i < 32 ? a >> (pos + i) & 1 : top) << i;
  return r;
}
static u64 bit_field64(u64 a, u32 pos, u32 len, bool sign) {
  pos &= 255;
  len &= 255;
  u64 top = sign && len ? a >> std::min(pos + len - 1, 63u) & 1 : 0, r = 0;
  for (u32 i = 0; i < 64; i++) r |= (i < len && pos + i < 64 ? a >> (pos + i) & 1 : top) << i;
  return r;
}
static u32 reverse(u32 x) {
  u32 r = 0;
  for (int i = 0; i < 32; i++) r |= (x >> i & 1) << (31 - i);
  return r;
}
static u32 pick_bytes(u32 a, u32 b, u32 s) {
  u64 v = (u64)b << 32 | a;
  u32 r = 0;
  for (int i = 0; i < 4; i++) {
    u32 k = s >> (4 * i) & 15;
    u32 y = v >> (8 * (k & 7)) & 255;
    if (k & 8) y = y & 128 ? 255 : 0;
    r |= y << (8 * i);
  }
  return r;
}
static u32 nth_set(u32 m, u32 base, s32 n) {
  if (n == 0) return m >> base & 1 ? base : ~0u;
  int left = std::abs(n), step = n > 0 ? 1 : -1;
  for (int i = (int)base; i >= 0 && i < 32; i += step)
    if (m >> i & 1 && !--left) return i;
  return ~0u;
}
static u32 dot(u32 a, u32 b, u32 c, bool sa, bool sb) {
  for (int i = 0; i < 4; i++)
    c += (sa ? (s32)(int8_t)(a >> 8 * i) : (s32)(uint8_t)(a >> 8 * i)) *
         (sb ? (s32)(int8_t)(b >> 8 * i) : (s32)(uint8_t)(b >> 8 * i));
  return c;
}

INT32(bfe_u32, "bfe.u32 %0,%1,%2,%3;", bit_field(x, y, z, false))
INT32(bfe_s32, "bfe.s32 %0,%1,%2,%3;", bit_field(x, y, z, true))
INT32(bfi_b32, "bfi.b32 %0,%1,%2,%3,7;", ([=] {
        u32 p = z & 255, r = y;
        for (u32 i = 0; i < 7 && p + i < 32; i++)
          r = (r & ~(1u << (p + i))) | (x >> i & 1) << (p + i);
        return r;
      }()))
INT32(bfind_u32, "bfind.u32 %0,%1;", x ? 31 - __builtin_clz(x) : ~0u)
INT32(bfind_s32, "bfind.s32 %0,%1;", ([=] {
        u32 v = (s32)x < 0 ? ~x : x;
        return v ? 31 - __builtin_clz(v) : ~0u;
      }()))
INT32(bfind_shift, "bfind.shiftamt.u32 %0,%1;", x ? (u32)__builtin_clz(x) : ~0u)
INT32(clz_b32, "clz.b32 %0,%1;", x ? __builtin_clz(x) : 32)
INT32(popc_b32, "popc.b32 %0,%1;", __builtin_popcount(x))
INT32(brev_b32, "brev.b32 %0,%1;", reverse(x))
INT32(fns,
      "{.reg .u32 b,m;.reg .s32 n; and.b32 b,%2,31; and.b32 m,%3,15; sub.s32 n,m,7; fns.b32 "
      "%0,%1,b,n;}",
      nth_set(x, y & 31, (s32)(z & 15) - 7))
INT32(prmt, "prmt.b32 %0,%1,%2,%3;", pick_bytes(x, y, z))
INT32(prmt_f4e, "prmt.b32.f4e %0,%1,%2,%3;", (u32)(((u64)y << 32 | x) >> (8 * (z & 3))))
INT32(prmt_rc16, "prmt.b32.rc16 %0,%1,%2,%3;", ([=] {
        u32 h = z & 1 ? x >> 16 : x & 0xffff;
        return h | h << 16;
      }()))
INT32(lop3, "lop3.b32 %0,%1,%2,%3,0xE2;", ([=] {
        u32 r = 0;
        for (int i = 0; i < 32; i++)
          r |= (0xE2u >> ((x >> i & 1) << 2 | (y >> i & 1) << 1 | (z >> i & 1)) & 1) << i;
        return r;
      }()))
INT32(shf_l_wrap, "shf.l.wrap.b32 %0,%1,%2,%3;", (u32)(((u64)y << 32 | x) << (z & 31) >> 32))
INT32(shf_l_clamp, "shf.l.clamp.b32 %0,%1,%2,%3;",
      z >= 32 ? x : (u32)(((u64)y << 32 | x) << z >> 32))
INT32(shf_r_wrap, "shf.r.wrap.b32 %0,%1,%2,%3;", (u32)(((u64)y << 32 | x) >> (z & 31)))
INT32(shf_r_clamp, "shf.r.clamp.b32 %0,%1,%2,%3;", z >= 32 ? y : (u32)(((u64)y << 32 | x) >> z))
INT32(shl_b32, "shl.b32 %0,%1,%2;", y > 31 ? 0 : x << y)
INT32(shr_u32, "shr.u32 %0,%1,%2;", y > 31 ? 0 : x >> y)
INT32(shr_s32, "shr.s32 %0,%1,%2;", (u32)((s32)x >> std::min(y, 31u)))
INT32(bmsk_clamp, "bmsk.clamp.b32 %0,%1,%2;", x >= 32 ? 0 : (y >= 32 ? ~0u : (1u << y) - 1) << x)
INT32(bmsk_wrap, "bmsk.wrap.b32 %0,%1,%2;", ((1u << (y & 31)) - 1) << (x & 31))
INT32(szext, "szext.wrap.s32 %0,%1,%2;", bit_field(x, 0, y & 31, true))
INT32(dp4a_ss, "dp4a.s32.s32 %0,%1,%2,%3;", dot(x, y, z, true, true))
INT32(dp4a_uu, "dp4a.u32.u32 %0,%1,%2,%3;", dot(x, y, z, false, false))
INT32(dp4a_us, "dp4a.u32.s32 %0,%1,%2,%3;", dot(x, y, z, false, true))
INT32(dp2a_lo, "dp2a.lo.s32.s32 %0,%1,%2,%3;",
      z + (u32)((s32)(int16_t)x * (int8_t)y) + (u32)((s32)(int16_t)(x >> 16) * (int8_t)(y >> 8)))
INT32(dp2a_hi, "dp2a.hi.s32.s32 %0,%1,%2,%3;",
      z + (u32)((s32)(int16_t)x * (int8_t)(y >> 16)) +
          (u32)((s32)(int16_t)(x >> 16) * (int8_t)(y >> 24)))
INT32(mul_hi_u32, "mul.hi.u32 %0,%1,%2;", (u32)((u64)x* y >> 32))
INT32(mul_hi_s32, "mul.hi.s32 %0,%1,%2;", (u32)((s64)(s32)x*(s32)y >> 32))
INT32(mad_hi, "mad.hi.s32 %0,%1,%2,%3;", (u32)((s64)(s32)x*(s32)y >> 32) + z)
INT32(mad_lo, "mad.lo.u32 %0,%1,%2,%3;", x* y + z)
INT32(mul24_lo,
      "{.reg .u32 p,q; and.b32 p,%1,0xffffff; and.b32 q,%2,0xffffff; mul24.lo.u32 %0,p,q;}",
      (x & 0xffffff) * (y & 0xffffff))
INT32(add_sat, "add.sat.s32 %0,%1,%2;",
      (u32)std::clamp<s64>((s64)(s32)x + (s32)y, INT32_MIN, INT32_MAX))
INT32(sub_sat, "sub.sat.s32 %0,%1,%2;",
      (u32)std::clamp<s64>((s64)(s32)x - (s32)y, INT32_MIN, INT32_MAX))
INT32(carry_chain, "{.reg .u32 t; add.cc.u32 t,%1,%2; addc.u32 %0,%3,0;}",
      z + (u32)(((u64)x + y) >> 32))
INT32(borrow_chain, "{.reg .u32 t; sub.cc.u32 t,%1,%2; subc.u32 %0,%3,0;}", z - (x < y))
INT32(madc, "{.reg .u32 t; mad.lo.cc.u32 t,%1,%2,%3; madc.hi.u32 %0,%1,%2,0;}",
      (u32)((u64)x* y >> 32) + (u32)(((u64)(x * y) + z) >> 32))
INT32(sad_u32, "sad.u32 %0,%1,%2,%3;", z + (x > y ? x - y : y - x))
INT32(abs_s32, "abs.s32 %0,%1;", (s32)x < 0 ? 0 - x : x)
INT32(min_s32, "min.s32 %0,%1,%2;", (u32)std::min((s32)x, (s32)y))
INT32(max_u32, "max.u32 %0,%1,%2;", std::max(x, y))
INT32(cnot, "cnot.b32 %0,%1;", x == 0)
INT32(rem_s32,
      "{.reg .pred p; .reg .s32 d; setp.eq.s32 p,%2,0; selp.s32 d,3,%2,p; rem.s32 %0,%1,d;}", ([=] {
        s32 d = y ? (s32)y : 3;
        return d == -1 ? 0u : (u32)((s32)x % d);
      }()))
INT32(div_s32,
      "{.reg .pred p; .reg .s32 d; setp.eq.s32 p,%2,0; selp.s32 d,3,%2,p; div.s32 %0,%1,d;}", ([=] {
        s32 d = y ? (s32)y : 3;
        return d == -1 ? 0 - x : (u32)((s32)x / d);
      }()))
INT32(set_lt, "set.lt.u32.s32 %0,%1,%2;", (s32)x < (s32)y ? ~0u : 0)
INT32(setp_pair,
      "{.reg .pred p,q,r; setp.ne.u32 r,%3,0; setp.lt.and.u32 p|q,%1,%2,r; selp.u32 %0,5,9,p; @q "
      "add.u32 %0,%0,100;}",
      (x < y && z ? 5 : 9) + (!(x < y) && z ? 100 : 0))
INT32(slct, "slct.u32.s32 %0,%1,%2,%3;", (s32)z >= 0 ? x : y)
INT32(cvt_s8, "{.reg .s16 h; cvt.s16.s32 h,%1; cvt.s32.s8 %0,h;}", (u32)(s32)(int8_t)x)
INT32(cvt_sat_u8, "{.reg .u16 h; cvt.sat.u8.s32 h,%1; cvt.u32.u16 %0,h;}",
      (u32)std::clamp((s32)x, 0, 255))
INT32(cvt_sat_s16, "{.reg .s16 h; cvt.sat.s16.s32 h,%1; cvt.s32.s16 %0,h;}",
      (u32)std::clamp((s32)x, -32768, 32767))
INT32(bitwise, "{.reg .b32 t; and.b32 t,%1,%2; xor.b32 t,t,%3; not.b32 t,t; or.b32 %0,t,%1;}",
      ~((x & y) ^ z) | x)
INT32(pack, "{.reg .b16 l,h; mov.b32 {l,h},%1; mov.b32 %0,{h,l};}", x << 16 | x >> 16)
INT32(names,
      "{.reg .b32 v,w,x,T,P,a_,w_,o_; mov.b32 v,%1; mov.b32 w,%2; add.u32 x,v,w; xor.b32 T,x,%3; "
      "sub.u32 P,T,v; and.b32 a_,P,w; or.b32 w_,a_,T; mov.b32 o_,w_; mov.b32 %0,o_;}",
      ([=] {
        u32 t = (x + y) ^ z;
        return ((t - x) & y) | t;
      }()))
INT32(vector_pred, "{.reg .pred p; testp.finite.f32 p,%1; selp.u32 %0,1,0,p;}",
      (x & 0x7f800000) != 0x7f800000)
INT64(bfe_u64, "{.reg .u32 p,l; cvt.u32.u64 p,%2; cvt.u32.u64 l,%3; bfe.u64 %0,%1,p,l;}",
      bit_field64(x, (u32)y, (u32)z, false))
INT64(bfe_s64, "{.reg .u32 p,l; cvt.u32.u64 p,%2; cvt.u32.u64 l,%3; bfe.s64 %0,%1,p,l;}",
      bit_field64(x, (u32)y, (u32)z, true))
INT64(mul_hi_u64, "mul.hi.u64 %0,%1,%2;", (u64)((unsigned __int128)x* y >> 64))
INT64(mul_hi_s64, "mul.hi.s64 %0,%1,%2;", (u64)((__int128)(s64)x*(s64)y >> 64))
INT64(clz_b64, "{.reg .u32 t; clz.b64 t,%1; cvt.u64.u32 %0,t;}", x ? __builtin_clzll(x) : 64)
INT64(popc_b64, "{.reg .u32 t; popc.b64 t,%1; cvt.u64.u32 %0,t;}", __builtin_popcountll(x))
INT64(brev_b64, "brev.b64 %0,%1;", (u64)reverse((u32)x) << 32 | reverse((u32)(x >> 32)))
INT64(shr_s64, "{.reg .u32 n; cvt.u32.u64 n,%2; shr.s64 %0,%1,n;}",
      (u64)((s64)x >> std::min((u32)y, 63u)))
INT64(mad_wide, "{.reg .s32 p,q; cvt.s32.s64 p,%1; cvt.s32.s64 q,%2; mad.wide.s32 %0,p,q,%3;}",
      (u64)((s64)(s32)x*(s32)y) + z)
INT64(min_u64, "min.u64 %0,%1,%2;", std::min(x, y))
INT64(sub_s64, "sub.s64 %0,%1,%2;", x - y)

// ---------------------------------------------------------------- floating point
static float as_float(u32 x) {
  float f;
  memcpy(&f, &x, 4);
  return f;
}
static u32 as_bits(float f) {
  u32 x;
  memcpy(&x, &f, 4);
  return x;
}
template <class F>
static float directed(int mode, F f) {  // reference with the host's rounding mode
  volatile float r;
  u32 csr = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr((csr & ~0x6000u) | mode);
  r = f();
  __builtin_ia32_ldmxcsr(csr);
  return r;
}
enum { TO_NEAREST = 0, DOWN = 0x2000, UP = 0x4000, TO_ZERO = 0x6000 };
// FLOAT(name, asm, host expression, tolerance; 0 compares bits, NaNs equal)
template <class K, class F>
void compare_float(const char* name, K kernel, F reference, double tolerance, double scale) {
  std::vector<float> a, b, c;
  const float special[] = {0.f, -0.f,   1.f,     -1.f,    0.5f,    2.f,  INFINITY, -INFINITY,
                           NAN, 1e-40f, -1e-40f, 3.4e38f, 65504.f, 1.5f, 2.5f,     -2.5f};
  for (float x : special)
    for (float y : special) {
      a.push_back(x);
      b.push_back(y);
      c.push_back(special[a.size() % 16]);
    }
  for (int i = 0; i < 1500; i++) {
    a.push_back(random_float() * scale);
    b.push_back(random_float() * scale);
    c.push_back(random_float() * scale);
  }
  Device<float> da(a), db(b), dc(c), out(a.size());
  kernel<<<(int)(a.size() + 63) / 64, 64>>>(da, db, dc, out, (int)a.size());
  SYNC();
  auto got = out.get();
  for (size_t i = 0; i < a.size(); i++) {
    volatile float x = a[i], y = b[i], z = c[i];
    float want = reference(x, y, z);
    checks++;
    bool ok = std::isnan(want)                     ? std::isnan(got[i])
              : tolerance == 0 || std::isinf(want) ? as_bits(want) == as_bits(got[i])
                                                   : near(got[i], want, tolerance);
    if (!ok && failures++ < 5)
      printf("    %s(%g, %g, %g) = %.9g, not %.9g\n", name, a[i], b[i], c[i], got[i], want);
  }
}
#define FLOAT(name, text, expression, tolerance, scale) \
  KERNEL(name, float, "f", text)                        \
  TEST(name) {                                          \
    compare_float(                                      \
        #name, k_##name,                                \
        [](float x, float y, float z) -> float {        \
          (void)x;                                      \
          (void)y;                                      \
          (void)z;                                      \
          return expression;                            \
        },                                              \
        tolerance, scale);                              \
  }
static float flushed(float x) {
  return std::fabs(x) < 1.17549435e-38f ? std::copysign(0.f, x) : x;
}

FLOAT(add_rz, "add.rz.f32 %0,%1,%2;",
      directed(TO_ZERO,
               [=] {
                 volatile float p = x, q = y;
                 return p + q;
               }),
      0, 100)
FLOAT(add_rm, "add.rm.f32 %0,%1,%2;",
      directed(DOWN,
               [=] {
                 volatile float p = x, q = y;
                 return p + q;
               }),
      0, 100)
FLOAT(mul_rp, "mul.rp.f32 %0,%1,%2;",
      directed(UP,
               [=] {
                 volatile float p = x, q = y;
                 return p * q;
               }),
      0, 100)
FLOAT(fma_rn, "fma.rn.f32 %0,%1,%2,%3;", std::fma(x, y, z), 0, 10)
FLOAT(fma_rz, "fma.rz.f32 %0,%1,%2,%3;",
      directed(TO_ZERO,
               [=] {
                 volatile float p = x, q = y, r = z;
                 return __builtin_fmaf(p, q, r);
               }),
      0, 10)
FLOAT(div_rn, "div.rn.f32 %0,%1,%2;", x / y, 0, 10)
FLOAT(div_approx, "div.approx.f32 %0,%1,%2;", x / y, 1e-6, 10)
FLOAT(rcp_rn, "rcp.rn.f32 %0,%1;", 1 / x, 0, 10)
FLOAT(sqrt_rn, "sqrt.rn.f32 %0,%1;", std::sqrt(x), 0, 100)
FLOAT(rsqrt, "rsqrt.approx.f32 %0,%1;", 1 / std::sqrt(x), 1e-6, 100)
FLOAT(ex2, "ex2.approx.ftz.f32 %0,%1;", flushed(std::exp2(flushed(x))), 1e-6, 20)
FLOAT(lg2, "lg2.approx.f32 %0,%1;", std::log2(x), 1e-6, 1000)
FLOAT(sine, "sin.approx.f32 %0,%1;", std::sin(x), 1e-5, 3)
FLOAT(cosine, "cos.approx.f32 %0,%1;", std::cos(x), 1e-5, 3)
FLOAT(tanh_, "tanh.approx.f32 %0,%1;", std::tanh(x), 1e-5, 5)
FLOAT(add_ftz, "add.ftz.f32 %0,%1,%2;", flushed(flushed(x) + flushed(y)), 0, 1)
FLOAT(add_sat_f, "add.sat.f32 %0,%1,%2;", ([=] {
        float s = x + y;
        return s > 1 ? 1.f : s > 0 ? s : 0.f;
      }()),
      0, 1)
FLOAT(min_f, "min.f32 %0,%1,%2;",
      std::isnan(x)                          ? y
      : std::isnan(y)                        ? x
      : x < y || (x == y && std::signbit(x)) ? x
                                             : y,
      0, 1)
FLOAT(max_f, "max.f32 %0,%1,%2;",
      std::isnan(x)                          ? y
      : std::isnan(y)                        ? x
      : x > y || (x == y && std::signbit(y)) ? x
                                             : y,
      0, 1)
FLOAT(max_nan, "max.NaN.f32 %0,%1,%2;",
      std::isnan(x) || std::isnan(y)         ? NAN
      : x > y || (x == y && std::signbit(y)) ? x
                                             : y,
      0, 1)
FLOAT(abs_neg, "{.reg .f32 t; abs.f32 t,%1; neg.f32 %0,t;}", -std::fabs(x), 0, 10)
FLOAT(copysign_, "copysign.f32 %0,%1,%2;", std::copysign(y, x), 0, 10)
FLOAT(setp_ltu, "{.reg .pred p; setp.ltu.f32 p,%1,%2; selp.f32 %0,%1,%3,p;}", !(x >= y) ? x : z, 0,
      1)
FLOAT(setp_ne, "{.reg .pred p; setp.ne.f32 p,%1,%2; selp.f32 %0,1.0,2.0,p;}",
      !std::isnan(x) && !std::isnan(y) && x != y ? 1.f : 2.f, 0, 1)
FLOAT(setp_num, "{.reg .pred p; setp.num.f32 p,%1,%2; selp.f32 %0,1.0,2.0,p;}",
      !std::isnan(x) && !std::isnan(y) ? 1.f : 2.f, 0, 1)
FLOAT(round_even, "cvt.rni.f32.f32 %0,%1;", std::nearbyint(x), 0, 10)
FLOAT(round_down, "cvt.rmi.f32.f32 %0,%1;", std::floor(x), 0, 10)
FLOAT(to_int_rz, "{.reg .s32 t; cvt.rzi.s32.f32 t,%1; cvt.rn.f32.s32 %0,t;}",
      std::isnan(x)        ? 0.f
      : x >= 2147483648.f  ? 2147483647
      : x <= -2147483648.f ? -2147483648.f
                           : (float)(s32)x,
      0, 1e5)
FLOAT(to_u8_sat, "{.reg .u32 t; cvt.rni.sat.u8.f32 t,%1; and.b32 t,t,255; cvt.rn.f32.u32 %0,t;}",
      std::isnan(x) ? 0.f : std::nearbyint(std::clamp(x, 0.f, 255.f)) + 0.f, 0, 300)
FLOAT(from_int_rz, "{.reg .b32 t; mov.b32 t,%1; cvt.rz.f32.u32 %0,t;}", ([=] {
        u32 v = as_bits(x);
        float r = (float)v;
        return (double)r > v ? as_float(as_bits(r) - 1) : r;
      }()),
      0, 10)
FLOAT(from_int_rp, "{.reg .b32 t; mov.b32 t,%1; cvt.rp.f32.s32 %0,t;}", ([=] {
        s32 v = (s32)as_bits(x);
        float r = (float)v;
        return (double)r < v ? std::nextafter(r, INFINITY) : r;
      }()),
      0, 10)
FLOAT(narrow_rz,
      "{.reg .f64 t,u; cvt.f64.f32 t,%1; cvt.f64.f32 u,%2; mul.rn.f64 t,t,u; cvt.rz.f32.f64 %0,t;}",
      directed(TO_ZERO,
               [=] {
                 volatile double p = (double)x * y;
                 return (float)p;
               }),
      0, 10)
FLOAT(bf16_round,
      "{.reg .b16 h; .reg .b32 t; cvt.rn.bf16.f32 h,%1; mov.b32 t,{0,h}; mov.b32 %0,t;}",
      std::isnan(x) ? NAN : as_float((as_bits(x) + 0x7fff + (as_bits(x) >> 16 & 1)) & 0xffff0000u),
      0, 10)
FLOAT(bf16_rz, "{.reg .b16 h; .reg .b32 t; cvt.rz.bf16.f32 h,%1; mov.b32 t,{0,h}; mov.b32 %0,t;}",
      std::isnan(x) ? NAN : as_float(as_bits(x) & 0xffff0000u), 0, 10)
FLOAT(bf16_relu,
      "{.reg .b16 h; .reg .b32 t; cvt.rn.relu.bf16.f32 h,%1; mov.b32 t,{0,h}; mov.b32 %0,t;}",
      std::isnan(x) ? NAN
      : x > 0       ? as_float((as_bits(x) + 0x7fff + (as_bits(x) >> 16 & 1)) & 0xffff0000u)
                    : 0.f,
      0, 10)
FLOAT(bf16x2_pack,
      "{.reg .b32 t; cvt.rn.bf16x2.f32 t,%1,%2; and.b32 t,t,0xffff0000; mov.b32 %0,t;}",
      std::isnan(x) ? NAN : as_float((as_bits(x) + 0x7fff + (as_bits(x) >> 16 & 1)) & 0xffff0000u),
      0, 10)
FLOAT(tf32_round, "{.reg .b32 t; cvt.rna.tf32.f32 t,%1; mov.b32 %0,t;}",
      std::isnan(x) || std::isinf(x) ? x : as_float((as_bits(x) + 0x1000) & 0xffffe000u), 0, 10)

// 16-bit arithmetic: every result must be the correctly rounded one.
__global__ void half_arithmetic(const __half* a, const __half* b, const __half* c, float* o,
                                int n) {
  int i = threadIdx.x + blockIdx.x * blockDim.x;
  if (i >= n) return;
  o[8 * i] = __half2float(__hadd(a[i], b[i]));
  o[8 * i + 1] = __half2float(__hmul(a[i], b[i]));
  o[8 * i + 2] = __half2float(__hfma(a[i], b[i], c[i]));
  o[8 * i + 3] = __half2float(__hsub(a[i], b[i]));
  o[8 * i + 4] = __half2float(__hmax(a[i], b[i]));
  o[8 * i + 5] = __half2float(__hneg(__habs(a[i])));
  o[8 * i + 6] = __half2float(__hfma_relu(a[i], b[i], c[i]));
  o[8 * i + 7] = __hlt(a[i], b[i]) ? 1.f : 0.f;
}
__global__ void bf16_arithmetic(const __nv_bfloat16* a, const __nv_bfloat16* b,
                                const __nv_bfloat16* c, float* o, int n) {
  int i = threadIdx.x + blockIdx.x * blockDim.x;
  if (i >= n) return;
  __nv_bfloat162 p = __halves2bfloat162(a[i], b[i]), q = __halves2bfloat162(b[i], c[i]),
                 r = __halves2bfloat162(c[i], a[i]);
  o[6 * i] = __bfloat162float(__hfma(a[i], b[i], c[i]));
  o[6 * i + 1] = __bfloat162float(__hfma2(p, q, r).y);
  o[6 * i + 2] = __bfloat162float(__hmin(a[i], b[i]));
  o[6 * i + 3] = __bfloat162float(__hmax2(p, q).x);
  o[6 * i + 4] = __bfloat162float(__hadd2(p, q).y);
  o[6 * i + 5] = __bfloat162float(__hmul2(p, q).x);
}
template <class H, class Up, class Down>
static void half_operands(std::vector<H>& a, std::vector<H>& b, std::vector<H>& c, Up, Down down) {
  for (int i = 0; i < 3000; i++) {
    float scale = std::exp2((int)(random_bits() % 16) - 8);
    a.push_back(down(random_float() * scale));
    b.push_back(down(random_float() * 4));
    c.push_back(down(random_float() * (i & 1 ? scale : 1e-3f)));
  }
}
TEST(half_arithmetic_) {
  auto up = [](__half h) { return __half2float(h); };
  auto down = [](float f) { return __float2half_rn(f); };
  std::vector<__half> a, b, c;
  half_operands(a, b, c, up, down);
  Device<__half> da(a), db(b), dc(c);
  Device<float> o(a.size() * 8);
  half_arithmetic<<<47, 64>>>(da, db, dc, o, (int)a.size());
  SYNC();
  auto r = o.get();
  auto rounded = [&](double d) { return up(__double2half(d)); };
  for (size_t i = 0; i < a.size(); i++) {
    double x = up(a[i]), y = up(b[i]), z = up(c[i]), f = std::fma(x, y, z);
    EXPECT(r[8 * i] == rounded(x + y));
    EXPECT(r[8 * i + 1] == rounded(x * y));
    EXPECT(r[8 * i + 2] == rounded(f));
    EXPECT(r[8 * i + 3] == rounded(x - y));
    EXPECT(r[8 * i + 4] == std::max(x, y));
    EXPECT(r[8 * i + 5] == -std::fabs(x));
    EXPECT(r[8 * i + 6] == std::max(0.f, rounded(f)));
    EXPECT(r[8 * i + 7] == (x < y));
  }
}
TEST(bf16_arithmetic_) {
  auto up = [](__nv_bfloat16 h) { return __bfloat162float(h); };
  auto down = [](float f) { return __float2bfloat16_rn(f); };
  std::vector<__nv_bfloat16> a, b, c;
  half_operands(a, b, c, up, down);
  Device<__nv_bfloat16> da(a), db(b), dc(c);
  Device<float> o(a.size() * 6);
  bf16_arithmetic<<<47, 64>>>(da, db, dc, o, (int)a.size());
  SYNC();
  auto r = o.get();
  auto rounded = [&](double d) { return up(__double2bfloat16(d)); };
  for (size_t i = 0; i < a.size(); i++) {
    double x = up(a[i]), y = up(b[i]), z = up(c[i]);
    EXPECT(r[6 * i] == rounded(std::fma(x, y, z)));
    EXPECT(r[6 * i + 1] == rounded(std::fma(y, z, x)));
    EXPECT(r[6 * i + 2] == std::min(x, y));
    EXPECT(r[6 * i + 3] == std::max(x, y));
    // compute_80 has no bf16 add and mul: nvcc uses fma with 1 and -0
    EXPECT(r[6 * i + 4] == rounded(y + z));
    EXPECT(r[6 * i + 5] == rounded(x * y));
  }
}

// ---------------------------------------------------------------- memory
__global__ void vectors(const float* in, float* out, const __nv_bfloat16* h, __nv_bfloat16* ho) {
  int i = threadIdx.x;
  float a, b, c, d;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.f32 {%0,%1,%2,%3},[%4];"
               : "=f"(a), "=f"(b), "=f"(c), "=f"(d)
               : "l"(in + 4 * i));
  asm volatile("st.global.cs.v4.f32 [%0],{%1,%2,%3,%4};" ::"l"(out + 4 * i), "f"(d), "f"(c), "f"(b),
               "f"(a)
               : "memory");
  uint4 v = __ldg((const uint4*)h + i);
  __stcs((uint4*)ho + i, make_uint4(v.w, v.z, v.y, v.x));
  short s0, s1;
  asm volatile("ld.global.cg.v2.u16 {%0,%1},[%2];" : "=h"(s0), "=h"(s1) : "l"(h + 2 * i));
  asm volatile("st.global.wt.v2.b16 [%0],{%1,%2};" ::"l"(ho + 256 + 2 * i), "h"(s1), "h"(s0)
               : "memory");
  signed char byte;
  asm volatile("{.reg .s16 t; ld.global.s8 t,[%1]; cvt.s32.s16 %0,t;}"
               : "=r"(*(int*)&a)
               : "l"((const char*)in + i));
  (void)byte;
  ((int*)out)[128 + i] = *(int*)&a;
}
TEST(vector_loads_and_stores) {
  std::vector<float> in(128);
  std::vector<__nv_bfloat16> h(256);
  for (int i = 0; i < 128; i++) in[i] = i * 0.37f - 11;
  for (int i = 0; i < 256; i++) h[i] = __float2bfloat16(i);
  Device<float> di(in), o(160);
  Device<__nv_bfloat16> dh(h), ho(320);
  vectors<<<1, 32>>>(di, o, dh, ho);
  SYNC();
  auto r = o.get();
  auto q = ho.get();
  for (int i = 0; i < 32; i++) {
    for (int k = 0; k < 4; k++) EXPECT(r[4 * i + k] == in[4 * i + 3 - k]);
    EXPECT((int)as_bits(r[128 + i]) == ((signed char*)in.data())[i]);
    for (int k = 0; k < 8; k++)
      EXPECT(__bfloat162float(q[8 * i + k]) == 8 * i + (6 - k / 2 * 2) + k % 2);
    EXPECT(__bfloat162float(q[256 + 2 * i]) == 2 * i + 1 &&
           __bfloat162float(q[257 + 2 * i]) == 2 * i);
  }
}

__global__ void atomics(u32* u, s32* s, u64* l, float* f, double* d, __half2* h2,
                        __nv_bfloat162* b2, __nv_bfloat16* b) {
  __shared__ u32 local[4];
  int i = threadIdx.x + blockIdx.x * blockDim.x;
  if (threadIdx.x < 4) local[threadIdx.x] = 0;
  __syncthreads();
  atomicAdd(&local[i & 3], 1u);
  __syncthreads();
  if (threadIdx.x < 4) atomicAdd(&u[8 + threadIdx.x], local[threadIdx.x]);
  atomicAdd(&u[0], (u32)i);
  atomicMax(&u[1], (u32)i);
  atomicMin(&u[2], (u32)(1000 - i));
  atomicOr(&u[3], 1u << (i & 31));
  atomicAnd(&u[4], ~(1u << (i & 15)));
  atomicXor(&u[5], (u32)i);
  atomicInc(&u[6], 9);
  atomicDec(&u[7], 6);
  atomicMin(&s[0], -i);
  atomicMax(&s[1], -5 - i);
  atomicAdd(&l[0], (u64)i << 32);
  atomicMax(&l[1], (u64)i * i);
  u64 old = l[2], seen;
  do {
    seen = old;
    old = atomicCAS(&l[2], seen, seen + 3);
  } while (old != seen);
  atomicExch(&l[3], 77ull);
  atomicAdd(f, 0.25f);
  atomicAdd(d, 0.125);
  atomicAdd(h2, __floats2half2_rn(1.f, 2.f));
  atomicAdd(b2, __floats2bfloat162_rn(0.f, 1.f));
  if (i < 64) atomicAdd(b, __float2bfloat16(1.f));
  asm volatile("red.release.gpu.global.add.u32 [%0],1;" ::"l"(u + 12) : "memory");
  u32 r;
  asm volatile("atom.acq_rel.sys.global.add.u32 %0,[%1],2;" : "=r"(r) : "l"(u + 13) : "memory");
}
__global__ void inline_atomic(u32* p) {
  u32 r;
  asm volatile(
      "{.reg .u32 v; mov.u32 v,%2; atom.global.add.u32 v,[%1],v; add.u32 %0,v,1; "
      "atom.global.max.u32 v,[%1],%0; }"
      : "=r"(r)
      : "l"(p), "r"(3)
      : "memory");
}
TEST(atomics_on_named_registers) {
  Device<u32> d(1, 0);
  inline_atomic<<<1, 64>>>(d);
  SYNC();
  EXPECT(d.get()[0] == 192);
}
TEST(atomics_) {
  Device<u32> u(16, 0);
  Device<s32> s(2, 0);
  Device<u64> l(4, 0);
  Device<float> f(1, 0);
  Device<double> d(1, 0);
  Device<__half2> h(1, 0);
  Device<__nv_bfloat162> b2(1, 0);
  Device<__nv_bfloat16> b(2, 0);
  u32 start[2] = {0xffffffff, 0xffff};
  CUDA(cudaMemcpy(u + 2, start, 4, cudaMemcpyHostToDevice));
  CUDA(cudaMemcpy(u + 4, start + 1, 4, cudaMemcpyHostToDevice));
  int low = -1000;
  CUDA(cudaMemcpy(s + 1, &low, 4, cudaMemcpyHostToDevice));
  atomics<<<4, 64>>>(u, s, l, f, d, h, b2, b);
  SYNC();
  auto r = u.get();
  EXPECT(r[0] == 255 * 128 && r[1] == 255 && r[2] == 745 && r[3] == ~0u && r[4] == 0 && r[5] == 0 &&
         r[6] == 256 % 10 && r[12] == 256 && r[13] == 512);
  EXPECT(r[7] == (7 - 256 % 7) % 7);
  for (int i = 8; i < 12; i++) EXPECT(r[i] == 64);
  EXPECT(s.get()[0] == -255 && s.get()[1] == -5);
  auto w = l.get();
  EXPECT(w[0] == (255ull * 128) << 32 && w[1] == 255 * 255 && w[2] == 768 && w[3] == 77);
  EXPECT(f.get()[0] == 64 && d.get()[0] == 32);
  EXPECT(__half2float(h.get()[0].x) == 256 && __half2float(h.get()[0].y) == 512);
  EXPECT(__bfloat162float(b2.get()[0].y) == 256 && __bfloat162float(b.get()[0]) == 64);
}

// A two-stage cp.async pipeline with zero fill; every wait is needed, since copies happen as late
// as allowed.
__global__ void pipeline(const float4* in, float4* out, int rows) {
  __shared__ float4 stage[2][32];
  auto fetch = [&](int r) {
    u32 to = (u32)__cvta_generic_to_shared(&stage[r & 1][threadIdx.x]);
    int bytes = threadIdx.x < 24 ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(to),
                 "l"(in + r * 32 + threadIdx.x), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  fetch(0);
  for (int r = 0; r < rows; r++) {
    if (r + 1 < rows) {
      fetch(r + 1);
      asm volatile("cp.async.wait_group 1;" ::: "memory");
    } else
      asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    out[r * 32 + threadIdx.x] = stage[r & 1][31 - threadIdx.x];
    __syncthreads();
  }
}
TEST(cp_async_pipeline) {
  std::vector<float4> in(32 * 5);
  for (size_t i = 0; i < in.size(); i++) in[i] = make_float4(i, i + .25f, i + .5f, i + .75f);
  Device<float4> di(in), out(in.size());
  pipeline<<<1, 32>>>(di, out, 5);
  SYNC();
  auto r = out.get();
  for (int row = 0; row < 5; row++)
    for (int i = 0; i < 32; i++)
      EXPECT(r[row * 32 + i].z == (31 - i < 24 ? in[row * 32 + 31 - i].z : 0));
}

// ---------------------------------------------------------------- warps
__global__ void warp_ops(u32* o, const u32* in) {
  u32 lane = threadIdx.x & 31, v = in[threadIdx.x], r;
  u32* p = o + threadIdx.x * 20;
  p[0] = __shfl_xor_sync(~0u, v, 5);
  p[1] = __shfl_up_sync(~0u, v, 3, 8);
  p[2] = __shfl_down_sync(~0u, v, 2, 16);
  p[3] = __shfl_sync(~0u, v, lane * 7, 32);
  p[4] = __ballot_sync(~0u, v & 1);
  p[5] = __any_sync(~0u, v == in[3]);
  p[6] = __all_sync(~0u, v != 0x12345);
  p[7] = __match_any_sync(~0u, v % 5);
  int pred;
  p[8] = __match_all_sync(~0u, v & 0, &pred) + pred;
  p[9] = __reduce_add_sync(~0u, v);
  p[10] = __reduce_min_sync(~0u, (int)v);
  p[11] = __reduce_max_sync(~0u, v);
  p[12] = __reduce_xor_sync(~0u, v);
  p[13] = __reduce_or_sync(~0u, v & 0xff) ^ __reduce_and_sync(~0u, v | 0xff00);
  u32 half = lane < 16 ? 0xffffu : 0xffff0000u;  // two halves, each with its own mask
  p[14] = __shfl_xor_sync(half, v, 1);
  if (lane < 16)
    r = __reduce_add_sync(0xffffu, v);
  else
    r = __reduce_add_sync(0xffff0000u, v * 2);
  p[15] = r;
  u64 wide = __shfl_xor_sync(~0u, (u64)v << 20, 1);
  p[16] = (u32)(wide >> 20);
  p[17] = __syncthreads_count(v & 1);
  p[18] = __syncthreads_and(v != 0x12345) + 2 * __syncthreads_or(v == in[40]);
  p[19] = __popc(__activemask()) >= 1 && __activemask() >> lane & 1;
}
TEST(warp_wide) {
  std::vector<u32> v(64);
  for (auto& x : v) x = random_bits();
  Device<u32> in(v), out(64 * 20);
  warp_ops<<<1, 64>>>(out, in);
  SYNC();
  auto r = out.get();
  u32 odd = 0;
  for (u32 x : v) odd += x & 1;
  for (int t = 0; t < 64; t++) {
    int w = t & ~31, l = t & 31, h = l & 16;
    u32 *p = &r[t * 20], ballot = 0, any = 0, match = 0, add = 0, mx = 0, x = 0, orv = 0,
        andv = ~0u, half = 0;
    s32 mn = INT32_MAX;
    for (int i = 0; i < 32; i++) {
      u32 q = v[w + i];
      ballot |= (q & 1) << i;
      any |= q == v[3];
      match |= (u32)(q % 5 == v[t] % 5) << i;
      add += q;
      mx = std::max(mx, q);
      mn = std::min(mn, (s32)q);
      x ^= q;
      orv |= q & 0xff;
      andv &= q | 0xff00;
      if ((i & 16) == h) half += h ? q * 2 : q;
    }
    EXPECT(p[0] == v[w + (l ^ 5)] && p[1] == v[l % 8 >= 3 ? t - 3 : t] &&
           p[2] == v[l % 16 < 14 ? t + 2 : t] && p[3] == v[w + (l * 7 & 31)]);
    EXPECT(p[4] == ballot && p[5] == any && p[6] == 1 && p[7] == match && p[8] == 0u);  // ~0u + 1
    EXPECT(p[9] == add && (s32)p[10] == mn && p[11] == mx && p[12] == x && p[13] == (orv ^ andv));
    EXPECT(p[14] == v[t ^ 1] && p[15] == half && p[16] == v[t ^ 1] && p[17] == odd && p[18] == 3 &&
           p[19] == 1);
  }
}

__global__ void active_lanes(u32* o, const u32* in, u32* counter) {
  u32 v = in[threadIdx.x], mask = __activemask();
  o[threadIdx.x] = __popc(mask);
  if (v & 1) {  // one atomic per group of active lanes
    u32 m = __activemask(), leader = __ffs(m) - 1, base = 0, lane = threadIdx.x & 31;
    if (lane == leader) base = atomicAdd(counter, __popc(m));
    base = __shfl_sync(m, base, leader);
    o[64 + base + __popc(m & ((1u << lane) - 1))] = v;
  }
}
TEST(activemask) {
  std::vector<u32> v(64);
  for (auto& x : v) x = random_bits();
  Device<u32> in(v), o(128, 0), counter(1, 0);
  active_lanes<<<1, 64>>>(o, in, counter);
  SYNC();
  std::vector<u32> want, r = o.get(), got;
  for (u32 x : v)
    if (x & 1) want.push_back(x);
  got.assign(r.begin() + 64, r.begin() + 64 + counter.get()[0]);
  std::sort(want.begin(), want.end());
  std::sort(got.begin(), got.end());
  EXPECT(got == want);
  const char* order = getenv("NOGPU_ORDER");
  // On the CPU: all lanes, or one with random order. A GPU may give anything.
  if (getenv("NOGPU_EXPECT_CONVERGENCE"))
    for (int i = 0; i < 64; i++) EXPECT(r[i] == (order && !strncmp(order, "ran", 3) ? 1 : 32));
}

// ---------------------------------------------------------------- tensor cores
template <class T>
__device__ u32 pair(const T* p) {
  return *(const u32*)p;
}
// C = A (16 x K, row) * B (K x 8, column) with fragments loaded by hand.
template <int K, int KIND>
__global__ void mma_kernel(const void* a_, const void* b_, void* c_) {
  int g = threadIdx.x >> 2, t = threadIdx.x & 3;
  float d[4] = {1, 2, 3, 4};
  if (KIND < 2) {
    const unsigned short *a = (const unsigned short*)a_, *b = (const unsigned short*)b_;
    u32 A[4], B[2];
    for (int i = 0; i < K / 4; i++) A[i] = pair(a + (g + 8 * (i & 1)) * K + t * 2 + 8 * (i >> 1));
    for (int i = 0; i < K / 8; i++) B[i] = pair(b + g * K + t * 2 + 8 * i);
    if (KIND == 0 && K == 16)
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
          "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "r"(B[0]), "r"(B[1]));
    if (KIND == 0 && K == 8)
      asm volatile(
          "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
          "{%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(A[0]), "r"(A[1]), "r"(B[0]));
    if (KIND == 1 && K == 16)
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
          "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "r"(B[0]), "r"(B[1]));
    if (KIND == 1 && K == 8)
      asm volatile(
          "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 "
          "{%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(A[0]), "r"(A[1]), "r"(B[0]));
  } else if (KIND == 2) {
    const u32 *a = (const u32*)a_, *b = (const u32*)b_;
    u32 A[4], B[2];
    for (int i = 0; i < K / 2; i++) A[i] = a[(g + 8 * (i & 1)) * K + t + 4 * (i >> 1)];
    for (int i = 0; i < K / 4; i++) B[i] = b[g * K + t + 4 * i];
    if (K == 8)
      asm volatile(
          "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
          "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "r"(B[0]), "r"(B[1]));
    else
      asm volatile(
          "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 "
          "{%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(A[0]), "r"(A[1]), "r"(B[0]));
  } else {
    const signed char *a = (const signed char*)a_, *b = (const signed char*)b_;
    u32 A[4], B[2];
    int e[4] = {1, 2, 3, 4};
    for (int i = 0; i < 4; i++)
      A[i] = *(const u32*)(a + (g + 8 * (i & 1)) * K + t * 4 + 16 * (i >> 1));
    for (int i = 0; i < 2; i++) B[i] = *(const u32*)(b + g * K + t * 4 + 16 * i);
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+r"(e[0]), "+r"(e[1]), "+r"(e[2]), "+r"(e[3])
        : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "r"(B[0]), "r"(B[1]));
    for (int i = 0; i < 4; i++) d[i] = e[i];
  }
  for (int i = 0; i < 4; i++) ((float*)c_)[(g + 8 * (i >> 1)) * 8 + t * 2 + (i & 1)] = d[i];
}
template <int K, int KIND, class T, class Down, class Up>
void mma_test(Down down, Up up) {
  std::vector<T> a(16 * K), b(8 * K);
  for (auto& x : a) x = down((int)(random_bits() % 15) - 7);
  for (auto& x : b) x = down((int)(random_bits() % 15) - 7);
  Device<T> da(a), db(b);
  Device<float> c(128);
  mma_kernel<K, KIND><<<1, 32>>>(da.p, db.p, c.p);
  SYNC();
  auto r = c.get();
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 8; j++) {
      float s = 1 + (j & 1) + 2 * (i >> 3);
      for (int k = 0; k < K; k++) s += up(a[i * K + k]) * up(b[j * K + k]);
      EXPECT(r[i * 8 + j] == s);
    }
}
TEST(mma) {
  auto h = [](int x) { return __float2half((float)x); };
  auto hu = [](__half x) { return __half2float(x); };
  auto b = [](int x) { return __float2bfloat16((float)x); };
  auto bu = [](__nv_bfloat16 x) { return __bfloat162float(x); };
  mma_test<16, 0, __half>(h, hu);
  mma_test<8, 0, __half>(h, hu);
  mma_test<16, 1, __nv_bfloat16>(b, bu);
  mma_test<8, 1, __nv_bfloat16>(b, bu);
  mma_test<8, 2, float>([](int x) { return (float)x; }, [](float x) { return x; });
  mma_test<4, 2, float>([](int x) { return (float)x; }, [](float x) { return x; });
  mma_test<32, 3, signed char>([](int x) { return (signed char)x; },
                               [](signed char x) { return (float)x; });
}
__global__ void mma_half_accumulator(const u32* a, const u32* b, u32* c) {
  u32 d0 = 0, d1 = 0;
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1},{%2,%3,%4,%5},{%6,%7},{%0,%1};"
      : "+r"(d0), "+r"(d1)
      : "r"(a[threadIdx.x]), "r"(a[32 + threadIdx.x]), "r"(a[64 + threadIdx.x]),
        "r"(a[96 + threadIdx.x]), "r"(b[threadIdx.x]), "r"(b[32 + threadIdx.x]));
  c[2 * threadIdx.x] = d0;
  c[2 * threadIdx.x + 1] = d1;
}
TEST(mma_f16_accumulator) {
  std::vector<__half> ones(256, __float2half(0.5f));
  std::vector<u32> a(128), b(64);
  memcpy(a.data(), ones.data(), 512);
  memcpy(b.data(), ones.data(), 256);
  Device<u32> da(a), db(b), c(64);
  mma_half_accumulator<<<1, 32>>>(da, db, c);
  SYNC();
  for (u32 x : c.get()) EXPECT(x == 0x44004400u);  // 16 * 0.25 = 4
}

template <int N, bool TRANS>
__global__ void ldmatrix_kernel(const unsigned short* in, u32* out) {
  __shared__ __align__(16) unsigned short tile[4 * 64];
  for (int i = threadIdx.x; i < 256; i += 32) tile[i] = in[i];
  __syncthreads();
  u32 at = (u32)__cvta_generic_to_shared(tile + (threadIdx.x % (8 * N)) * 8), r[4] = {};
  if (N == 1 && !TRANS)
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0},[%1];" : "=r"(r[0]) : "r"(at));
  if (N == 1 && TRANS)
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0},[%1];"
                 : "=r"(r[0])
                 : "r"(at));
  if (N == 2 && !TRANS)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1},[%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(at));
  if (N == 2 && TRANS)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1},[%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(at));
  if (N == 4 && !TRANS)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
  if (N == 4 && TRANS)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
  for (int i = 0; i < N; i++) out[threadIdx.x * N + i] = r[i];
}
template <int N, bool TRANS>
void ldmatrix_test() {
  std::vector<unsigned short> in(256);
  for (int i = 0; i < 256; i++) in[i] = (unsigned short)(i * 257 + 3);
  Device<unsigned short> di(in);
  Device<u32> out(32 * N);
  ldmatrix_kernel<N, TRANS><<<1, 32>>>(di, out);
  SYNC();
  auto r = out.get();
  for (int l = 0; l < 32; l++)
    for (int q = 0; q < N; q++) {
      int row = l / 4, col = l % 4 * 2;
      u32 low = TRANS ? in[q * 64 + col * 8 + row] : in[q * 64 + row * 8 + col],
          high = TRANS ? in[q * 64 + (col + 1) * 8 + row] : in[q * 64 + row * 8 + col + 1];
      EXPECT(r[l * N + q] == (low | high << 16));
    }
}
TEST(ldmatrix) {
  ldmatrix_test<1, false>();
  ldmatrix_test<1, true>();
  ldmatrix_test<2, false>();
  ldmatrix_test<2, true>();
  ldmatrix_test<4, false>();
  ldmatrix_test<4, true>();
}
__global__ void movmatrix_kernel(u32* o) {
  u32 l = threadIdx.x, v = (l / 4 * 8 + l % 4 * 2) | (l / 4 * 8 + l % 4 * 2 + 1) << 16, r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0,%1;" : "=r"(r) : "r"(v));
  o[l] = r;
}
TEST(movmatrix) {
  Device<u32> o(32);
  movmatrix_kernel<<<1, 32>>>(o);
  SYNC();
  auto r = o.get();
  for (u32 l = 0; l < 32; l++)
    EXPECT(r[l] == ((l % 4 * 2 * 8 + l / 4) | ((l % 4 * 2 + 1) * 8 + l / 4) << 16));
}

// ---------------------------------------------------------------- barriers
__global__ void named_barriers(
    int* out) {  // producer and consumer warps, as in a specialised kernel
  __shared__ int box[32];
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  for (int round = 0; round < 4; round++) {
    if (warp == 0) {
      box[lane] = round * 100 + lane;
      __threadfence_block();
      asm volatile("bar.arrive 1,64;" ::: "memory");
      asm volatile("bar.sync 2,64;" ::: "memory");
    } else {
      asm volatile("bar.sync 1,64;" ::: "memory");
      out[round * 32 + lane] = box[31 - lane];
      asm volatile("bar.arrive 2,64;" ::: "memory");
    }
  }
}
TEST(named_barriers_) {
  Device<int> o(128);
  named_barriers<<<1, 64>>>(o);
  SYNC();
  auto r = o.get();
  for (int i = 0; i < 128; i++) EXPECT(r[i] == i / 32 * 100 + 31 - i % 32);
}
__global__ void mbarriers(int* out) {
  __shared__ __align__(8) u64 bar;
  __shared__ int box[64];
  u32 at = (u32)__cvta_generic_to_shared(&bar);
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0],64;" ::"r"(at) : "memory");
  __syncthreads();
  for (int phase = 0; phase < 3; phase++) {
    box[threadIdx.x] = phase * 64 + threadIdx.x;
    u64 state;
    asm volatile("mbarrier.arrive.shared.b64 %0,[%1];" : "=l"(state) : "r"(at) : "memory");
    u32 done = 0;
    while (!done)
      asm volatile("{.reg .pred p; mbarrier.test_wait.shared.b64 p,[%1],%2; selp.u32 %0,1,0,p;}"
                   : "=r"(done)
                   : "r"(at), "l"(state)
                   : "memory");
    out[phase * 64 + threadIdx.x] = box[63 - threadIdx.x];
    __syncthreads();
  }
  if (threadIdx.x == 0) asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(at) : "memory");
}
TEST(mbarrier) {
  Device<int> o(192);
  mbarriers<<<1, 64>>>(o);
  SYNC();
  auto r = o.get();
  for (int i = 0; i < 192; i++) EXPECT(r[i] == i / 64 * 64 + 63 - i % 64);
}
__global__ void mixed(int* out) {
  asm volatile("membar.gl; fence.acq_rel.gpu; fence.sc.sys; membar.cta;" ::: "memory");
  asm volatile("nanosleep.u32 20;");
  asm volatile("prefetch.global.L2 [%0];" ::"l"(out));
  u32 lt, le, ge, id, n, clock;
  asm volatile("mov.u32 %0,%%lanemask_lt; mov.u32 %1,%%lanemask_le; mov.u32 %2,%%lanemask_ge;"
               : "=r"(lt), "=r"(le), "=r"(ge));
  asm volatile("mov.u32 %0,%%warpid; mov.u32 %1,%%nwarpid; mov.u32 %2,%%clock;"
               : "=r"(id), "=r"(n), "=r"(clock));
  u32 l = threadIdx.x & 31;
  out[threadIdx.x] = lt == (1u << l) - 1 && le == (l == 31 ? ~0u : (2u << l) - 1) && ge == ~lt &&
                     id == threadIdx.x / 32 && n >= 2;
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait; griddepcontrol.launch_dependents;" ::: "memory");
  u32 leader, chosen;
  asm volatile("{.reg .pred p; elect.sync %0|p,0xffffffff; selp.u32 %1,1,0,p;}"
               : "=r"(leader), "=r"(chosen));
  if (__popc(__ballot_sync(~0u, chosen)) != 1) out[threadIdx.x] = 0;
#endif
}
TEST(fences_and_registers) {
  Device<int> o(64);
  mixed<<<1, 64>>>(o);
  SYNC();
  for (int x : o.get()) EXPECT(x == 1);
}
#ifdef HOPPER  // compiled for compute_90
__global__ void hopper_only(u32* out, const float4* in, float4* copy) {
  __shared__ __align__(16) unsigned short tile[64];
  __shared__ __align__(16) float4 box[64];
  __shared__ __align__(8) u64 bar;
  u32 at = (u32)__cvta_generic_to_shared(&bar), to = (u32)__cvta_generic_to_shared(box);
  u32 l = threadIdx.x, v = (l / 4 * 8 + l % 4 * 2) | (l / 4 * 8 + l % 4 * 2 + 1) << 16;
  asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0],{%1};" ::"r"(
                   (u32)__cvta_generic_to_shared(tile + l % 8 * 8)),
               "r"(v)
               : "memory");
  if (l == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0],1;" ::"r"(at) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],1024;" ::"r"(at) : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],1024,[%2];" ::
            "r"(to),
        "l"(in), "r"(at)
        : "memory");
  }
  __syncwarp();
  u32 done = 0;
  while (!done)
    asm volatile(
        "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p,[%1],0; selp.u32 %0,1,0,p;}"
        : "=r"(done)
        : "r"(at)
        : "memory");
  out[l] = tile[2 * l] | (u32)tile[2 * l + 1] << 16;
  copy[l] = box[63 - l];
  copy[l + 32] = box[31 - l];
}
TEST(stmatrix_and_bulk_copy) {
  std::vector<float4> in(64);
  for (int i = 0; i < 64; i++) in[i] = make_float4(i, 0, 0, -i);
  Device<float4> di(in), copy(64);
  Device<u32> o(32);
  hopper_only<<<1, 32>>>(o, di, copy);
  SYNC();
  auto r = o.get();
  auto c = copy.get();
  for (u32 i = 0; i < 64; i++)
    EXPECT(((r[i / 2] >> (i % 2 * 16)) & 0xffff) == i % 8 * 8 + i / 8 &&
           c[i].w == (float)(int)i - 63);
}
#endif
