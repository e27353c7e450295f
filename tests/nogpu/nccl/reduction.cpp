// SPDX-License-Identifier: Apache-2.0
#include "reduction.h"
#include <stdint.h>
#include <string.h>
#include <type_traits>

size_t element_bytes(ncclDataType_t t) {
  switch (t) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 0;
  }
}

namespace {
template <class T>
struct Plain {
  typedef T Store;
  typedef T Work;
  static T load(T x) { return x; }
  static T store(T x) { return x; }
};
struct Half {
  typedef _Float16 Store;
  typedef float Work;
  static float load(_Float16 x) { return (float)x; }
  static _Float16 store(float x) { return (_Float16)x; }
};
struct Bfloat16 {
  typedef uint16_t Store;
  typedef float Work;
  static float load(uint16_t x) {
    uint32_t b = (uint32_t)x << 16;
    float f;
    memcpy(&f, &b, 4);
    return f;
  }
  static uint16_t store(float f) {
    uint32_t x;
    memcpy(&x, &f, 4);
    return f != f ? 0x7fff : (uint16_t)((x + 0x7fff + ((x >> 16) & 1)) >> 16);
  }
};

template <class E>
void reduce(void* out, const void* in, size_t count, size_t stride, int ranks, ncclRedOp_t op) {
  typedef typename E::Store S;
  typedef typename E::Work W;
  for (size_t i = 0; i < count; i++) {
    W acc = E::load(((const S*)in)[i]);
    for (int r = 1; r < ranks; r++) {
      const W v = E::load(((const S*)((const char*)in + r * stride))[i]);
      switch (op) {
        case ncclProd:
          acc = W(acc * v);
          break;
        case ncclMin:
          acc = v < acc ? v : acc;
          break;
        case ncclMax:
          acc = v > acc ? v : acc;
          break;
        default:
          acc = W(acc + v);  // sum, avg
      }
    }
    if (op == ncclAvg) acc = W(acc / W(ranks));
    ((S*)out)[i] = E::store(acc);
  }
}
}  // namespace

void reduce_ranks(void* out, const void* in, size_t count, size_t stride, int ranks,
                  ncclDataType_t type, ncclRedOp_t op) {
  switch (type) {
    case ncclInt8:
      return reduce<Plain<int8_t>>(out, in, count, stride, ranks, op);
    case ncclUint8:
      return reduce<Plain<uint8_t>>(out, in, count, stride, ranks, op);
    case ncclInt32:
      return reduce<Plain<int32_t>>(out, in, count, stride, ranks, op);
    case ncclUint32:
      return reduce<Plain<uint32_t>>(out, in, count, stride, ranks, op);
    case ncclInt64:
      return reduce<Plain<int64_t>>(out, in, count, stride, ranks, op);
    case ncclUint64:
      return reduce<Plain<uint64_t>>(out, in, count, stride, ranks, op);
    case ncclFloat16:
      return reduce<Half>(out, in, count, stride, ranks, op);
    case ncclFloat32:
      return reduce<Plain<float>>(out, in, count, stride, ranks, op);
    case ncclFloat64:
      return reduce<Plain<double>>(out, in, count, stride, ranks, op);
    case ncclBfloat16:
      return reduce<Bfloat16>(out, in, count, stride, ranks, op);
    default:
      return;
  }
}
