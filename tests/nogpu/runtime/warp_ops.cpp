// SPDX-License-Identifier: Apache-2.0
//
// Results of warp-wide instructions, computed when the last lane has arrived. w points at lane 0;
// every lane's operands are in its mailbox w[l].in, its results go to w[l].out.
#include "scheduler.h"

static void shuffle(Thread* w, u32 lanes, u32 members, WarpOp op) {
  u32 values[32];
  for (u32 l = 0; l < lanes; l++) values[l] = w[l].in[0];
  for (int l = 0; l < (int)lanes; l++) {
    if (!(members >> l & 1)) continue;
    const int b = w[l].in[1] & 31, clamp = w[l].in[2] & 31, segment = w[l].in[2] >> 8 & 31;
    const int high = (l & segment) | (clamp & ~segment), low = l & segment;
    int source = 0;
    bool in_range = false;
    switch (op) {
      case OP_SHFL_UP:
        source = l - b;
        in_range = source >= high;
        break;
      case OP_SHFL_DOWN:
        source = l + b;
        in_range = source <= high;
        break;
      case OP_SHFL_BFLY:
        source = l ^ b;
        in_range = source <= high;
        break;
      default:
        source = low | (b & ~segment);
        in_range = source <= high;
    }
    if (!in_range) source = l;
    w[l].out[0] = members >> source & 1 ? values[source]
                                        : ~0u;  // a lane that does not take part gives poison
    w[l].out_pred = in_range;
  }
}

static void vote(Thread* w, u32 lanes, u32 members, WarpOp op) {
  u32 ballot = 0;
  for (u32 l = 0; l < lanes; l++)
    if (members >> l & 1 && w[l].in[0]) ballot |= 1u << l;
  const u32 result = op == OP_BALLOT ? ballot
                     : op == OP_ANY  ? ballot != 0
                     : op == OP_ALL  ? ballot == members
                                     : ballot == 0 || ballot == members;
  for (u32 l = 0; l < lanes; l++)
    if (members >> l & 1) w[l].out[0] = result;
}

static void match(Thread* w, u32 lanes, u32 members, bool all) {
  auto value = [&](u32 l) { return w[l].in[0] | (u64)w[l].in[1] << 32; };
  const u32 first = __builtin_ctz(members);
  bool equal = true;
  for (u32 l = 0; l < lanes; l++)
    if (members >> l & 1) equal &= value(l) == value(first);
  for (u32 l = 0; l < lanes; l++) {
    if (!(members >> l & 1)) continue;
    u32 same = 0;
    for (u32 j = 0; j < lanes; j++)
      if (members >> j & 1 && value(j) == value(l)) same |= 1u << j;
    w[l].out[0] = !all ? same : equal ? members : 0;
    w[l].out_pred = all ? equal : true;
  }
}

static void reduce(Thread* w, u32 lanes, u32 members, WarpOp op) {
  u32 acc = 0;
  bool first = true;
  for (u32 l = 0; l < lanes; l++) {
    if (!(members >> l & 1)) continue;
    const u32 v = w[l].in[0];
    if (first) {
      acc = v;
      first = false;
      continue;
    }
    switch (op) {
      case OP_RED_ADD:
        acc += v;
        break;
      case OP_RED_MIN_U:
        acc = min_(acc, v);
        break;
      case OP_RED_MAX_U:
        acc = max_(acc, v);
        break;
      case OP_RED_MIN_S:
        acc = (u32)min_((s32)acc, (s32)v);
        break;
      case OP_RED_MAX_S:
        acc = (u32)max_((s32)acc, (s32)v);
        break;
      case OP_RED_AND:
        acc &= v;
        break;
      case OP_RED_OR:
        acc |= v;
        break;
      default:
        acc ^= v;
    }
  }
  for (u32 l = 0; l < lanes; l++)
    if (members >> l & 1) w[l].out[0] = acc;
}

// 8x8 matrices of 16-bit entries; lane l holds entries (l/4, l%4*2) and (l/4, l%4*2+1), transposed
// on demand.
static u64 row_address(const Thread& t) {
  return t.in[0] | (u64)t.in[1] << 32;
}

static void load_matrices(Thread* w) {
  const u32 count = w[0].in[2];
  const bool transposed = w[0].in[3];
  for (u32 q = 0; q < count; q++) {
    u16 m[8][8];
    for (u32 r = 0; r < 8; r++) memcpy(m[r], (void*)row_address(w[q * 8 + r]), 16);
    for (u32 l = 0; l < 32; l++) {
      const u32 r = l / 4, c = l % 4 * 2;
      w[l].out[q] =
          transposed ? m[c][r] | (u32)m[c + 1][r] << 16 : m[r][c] | (u32)m[r][c + 1] << 16;
    }
  }
}
static void store_matrices(Thread* w) {
  const u32 count = w[0].in[2];
  const bool transposed = w[0].in[3];
  for (u32 q = 0; q < count; q++) {
    u16 m[8][8];
    for (u32 l = 0; l < 32; l++) {
      const u32 r = l / 4, c = l % 4 * 2, v = w[l].in[4 + q];
      (transposed ? m[c][r] : m[r][c]) = (u16)v;
      (transposed ? m[c + 1][r] : m[r][c + 1]) = (u16)(v >> 16);
    }
    for (u32 r = 0; r < 8; r++) memcpy((void*)row_address(w[q * 8 + r]), m[r], 16);
  }
}
static void transpose_matrix(Thread* w) {
  u16 m[8][8];
  for (u32 l = 0; l < 32; l++) {
    m[l / 4][l % 4 * 2] = (u16)w[l].in[0];
    m[l / 4][l % 4 * 2 + 1] = (u16)(w[l].in[0] >> 16);
  }
  for (u32 l = 0; l < 32; l++)
    w[l].out[0] = m[l % 4 * 2][l / 4] | (u32)m[l % 4 * 2 + 1][l / 4] << 16;
}

// mma.m16n8kK: fragments as in the PTX manual. in: A 0.., B 4.., C 8..11, K 12, type 13.
// Entry e of register i of lane (g, t) = (lane / 4, lane % 4), P entries per register:
//   A: row g + 8 (i % 2), column t P + e + 4 P (i / 2);  B: row t P + e + 4 P i, column g.
template <u32 P, class Entry, class Sum, class Convert>
static void matrix_multiply(Thread* w, Convert convert) {
  const u32 k_size = w[0].in[12];
  const u32 a_registers = k_size / (2 * P), b_registers = k_size / (4 * P);
  Entry a[16][8 * P], b[8 * P][8];
  Sum c[16][8];
  for (u32 l = 0; l < 32; l++) {
    const u32 g = l >> 2, t = l & 3;
    for (u32 i = 0; i < a_registers; i++)
      for (u32 e = 0; e < P; e++)
        a[g + 8 * (i & 1)][t * P + e + 4 * P * (i >> 1)] = convert(w[l].in[i] >> (32 / P * e % 32));
    for (u32 i = 0; i < b_registers; i++)
      for (u32 e = 0; e < P; e++)
        b[t * P + e + 4 * P * i][g] = convert(w[l].in[4 + i] >> (32 / P * e % 32));
    for (u32 i = 0; i < 4; i++) c[g + 8 * (i >> 1)][t * 2 + (i & 1)] = bits<Sum>(w[l].in[8 + i]);
  }
  for (u32 i = 0; i < 16; i++) {  // products of 16-bit floats are exact in f32, sums rounded; the
                                  // accumulator joins last
    Sum sum[8] = {};
    for (u32 k = 0; k < k_size; k++)
      for (u32 j = 0; j < 8; j++) sum[j] += a[i][k] * b[k][j];
    for (u32 j = 0; j < 8; j++) c[i][j] += sum[j];
  }
  for (u32 l = 0; l < 32; l++)
    for (u32 i = 0; i < 4; i++)
      w[l].out[i] = bits<u32>(c[(l >> 2) + 8 * (i >> 1)][(l & 3) * 2 + (i & 1)]);
}
static void matrix_multiply(Thread* w) {
  switch (w[0].in[13]) {
    case MMA_F16:
      return matrix_multiply<2, f32, f32>(w, [](u32 x) { return f16_to_f32((u16)x); });
    case MMA_BF16:
      return matrix_multiply<2, f32, f32>(w, [](u32 x) { return bf16_to_f32((u16)x); });
    case MMA_TF32:
      return matrix_multiply<1, f32, f32>(w, [](u32 x) { return bits<f32>(x & 0xffffe000u); });
    case MMA_S8:
      return matrix_multiply<4, s32, s32>(w, [](u32 x) { return (s32)(s8)x; });
    default:
      return matrix_multiply<4, s32, s32>(w, [](u32 x) { return (s32)(u8)x; });
  }
}

// wmma m16n16k16; the fragment layout is the translator's (ops_matrix.py). in: A 0.., B 8..,
// C 16..23, bf16? 24.
static void warp_matrix_multiply(Thread* w) {
  const bool bf16 = w[0].in[24];
  f32 a[16][16], b[16][16], c[16][16];
  for (u32 l = 0; l < 32; l++) {
    auto value = [&](u32 base, u32 e) {
      const u16 x = u16(w[l].in[base + e / 2] >> (16 * (e & 1)));
      return bf16 ? bf16_to_f32(x) : f16_to_f32(x);
    };
    if (bf16)
      for (u32 e = 0; e < 8; e++) {
        a[l / 2][l % 2 * 8 + e] = value(0, e);
        b[l % 2 * 8 + e][l / 2] = value(8, e);
      }
    else
      for (u32 e = 0; e < 16; e++) {
        a[l % 16][e] = value(0, e);
        b[e][l % 16] = value(8, e);
      }
    for (u32 e = 0; e < 8; e++) c[l / 2][l % 2 * 8 + e] = bits<f32>(w[l].in[16 + e]);
  }
  for (u32 i = 0; i < 16; i++) {
    f32 sum[16] = {};
    for (u32 k = 0; k < 16; k++)
      for (u32 j = 0; j < 16; j++) sum[j] += a[i][k] * b[k][j];
    for (u32 j = 0; j < 16; j++) c[i][j] += sum[j];
  }
  for (u32 l = 0; l < 32; l++)
    for (u32 e = 0; e < 8; e++) w[l].out[e] = bits<u32>(c[l / 2][l % 2 * 8 + e]);
}

void complete_warp_op(Thread* w, u32 lanes, u32 members, WarpOp op) {
  switch (op) {
    case OP_SYNC:
      return;
    case OP_SHFL_UP:
    case OP_SHFL_DOWN:
    case OP_SHFL_BFLY:
    case OP_SHFL_IDX:
      return shuffle(w, lanes, members, op);
    case OP_BALLOT:
    case OP_ANY:
    case OP_ALL:
    case OP_UNI:
      return vote(w, lanes, members, op);
    case OP_MATCH_ANY:
      return match(w, lanes, members, false);
    case OP_MATCH_ALL:
      return match(w, lanes, members, true);
    case OP_LDMATRIX:
      return load_matrices(w);
    case OP_STMATRIX:
      return store_matrices(w);
    case OP_MOVMATRIX:
      return transpose_matrix(w);
    case OP_MMA:
      return matrix_multiply(w);
    case OP_WMMA:
      return warp_matrix_multiply(w);
    default:
      return reduce(w, lanes, members, op);
  }
}
