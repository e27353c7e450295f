// SPDX-License-Identifier: Apache-2.0
//
// Rotary position embedding, in place, on queries or keys:
//
//   pair i of a head is (x[i], x[i + d/2]), i < d/2     ("halves", as the Hugging Face checkpoints
//                                                        of Llama and Qwen are stored)
//   angle = position base^(-2 i / d)
//   (a, b) -> (a cos - b sin, a sin + b cos)
//
// The gradient of a rotation is the rotation back, so backward is direction inverse.
// Shapes: x [tokens, heads * head_dim]; positions [tokens]; tables [max_positions, head_dim / 2].
// Source: Su et al., RoFormer; the base is the user's (arch/attention.hpp, position::rope).
//
// Floor: 6 FLOPs a pair; reads and writes x once (8 bytes an element in float): bound by memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "smelt/error.hpp"
#include "smelt/exec/host_device.hpp"
#include "smelt/exec/matrix.hpp"
#include "smelt/exec/policy.hpp"

namespace smelt {

/// forward rotates by the angle, inverse by its negative (the backward pass).
enum class rope_direction : std::uint8_t { forward, inverse };

/// Elements of the cosine table, and of the sine table.
constexpr std::int64_t rope_table_size(std::int64_t max_positions, std::int64_t head_dim) {
  return max_positions * (head_dim / 2);
}

/// A pair after its rotation.
template <class Real>
struct rope_pair {
  Real first;
  Real second;
};

template <class Real>
SMELT_HD rope_pair<Real> rope_rotated(Real first, Real second, Real cosine, Real sine) {
  return {first * cosine - second * sine, first * sine + second * cosine};
}

/// Fills both tables, row = position, column = pair. Angles are taken in double: a float angle is
/// off by 1e-3 at position 10^4, and that error would reach every score. base 0 (no rotation) gives
/// the identity.
template <class Real>
void rope_table_values(Real* cosines, Real* sines, std::int64_t max_positions,
                       std::int64_t head_dim, std::int64_t base) {
  const std::int64_t half = head_dim / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(head_dim);
    const double frequency = base == 0 ? 0.0 : std::pow(static_cast<double>(base), exponent);
    for (std::int64_t position = 0; position < max_positions; ++position) {
      const double angle = static_cast<double>(position) * frequency;
      cosines[position * half + i] = static_cast<Real>(std::cos(angle));
      sines[position * half + i] = static_cast<Real>(std::sin(angle));
    }
  }
}

namespace detail {
inline void check_rope(std::int64_t columns, std::int64_t column_stride, std::int64_t head_dim) {
  if (head_dim > 0 && head_dim % 2 == 0 && columns % head_dim == 0 && column_stride == 1) return;
  throw error(
      "rope_rotate: expected row-major x whose width is a multiple of an even head size,"
      " found width " +
      std::to_string(columns) + " and head size " + std::to_string(head_dim) +
      "; use an even head size");
}
}  // namespace detail

inline namespace host_backend {

/// Rotates every head of every row of x. positions[t] must lie inside the tables; throws for a head
/// size that is odd or does not divide the width.
template <class Compute>
void rope_rotate(const host<Compute>& run, matrix_view<real_of<Compute>> x, std::int64_t head_dim,
                 const std::int32_t* positions, const real_of<Compute>* cosines,
                 const real_of<Compute>* sines, rope_direction direction) {
  using real = real_of<Compute>;
  detail::check_rope(x.columns, x.column_stride, head_dim);
  const std::int64_t half = head_dim / 2;
  const real sign = direction == rope_direction::forward ? real(1) : real(-1);
  const std::int64_t block = std::max<std::int64_t>(1, 8192 / std::max<std::int64_t>(1, x.columns));
  for_each_block(run, x.rows, block, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t token = begin; token < end; ++token) {
      const real* cosine = cosines + positions[token] * half;
      const real* sine = sines + positions[token] * half;
      for (real* head = x.row(token); head < x.row(token) + x.columns; head += head_dim) {
        for (std::int64_t i = 0; i < half; ++i) {
          const rope_pair<real> pair =
              rope_rotated(head[i], head[i + half], cosine[i], sign * sine[i]);
          head[i] = pair.first;
          head[i + half] = pair.second;
        }
      }
    }
  });
}

}  // namespace host_backend
}  // namespace smelt
