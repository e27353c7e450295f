// SPDX-License-Identifier: Apache-2.0
//
// Root mean square normalisation of rows, with a gain per column and no bias:
//
//   rstd = 1 / sqrt(mean(x^2) + epsilon)          y = x rstd gain
//   dx   = rstd (dy gain - x p),  p = rstd^2 mean(dy gain x)
//   dgain = sum over rows of dy x rstd
//
// Shapes: x, y, dy, dx [rows, width]; gain, dgain [width]; rstd [rows], kept for the backward pass.
// Rows are tokens (width hidden) or, where queries and keys are normalised head by head, tokens
// times heads (width head_dim). Source: paper section 1 (pre-norm RMSNorm with gain).
//
// Floor: forward reads x twice (the second time from cache) and writes y, 8 bytes an element in
// float; backward reads dy and x and writes dx, 12 bytes, 16 where it accumulates. Both are bound
// by memory as soon as the rows leave the cache.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "smelt/error.hpp"
#include "smelt/exec/buffer.hpp"
#include "smelt/exec/host_device.hpp"
#include "smelt/exec/into.hpp"
#include "smelt/exec/matrix.hpp"
#include "smelt/exec/policy.hpp"
#include "smelt/op/lane_map.hpp"
#include "smelt/op/lane_sum.hpp"

namespace smelt {

/// 1 / sqrt(mean + epsilon) from the sum of squares of a row.
template <class Real>
SMELT_HD Real rms_norm_scale(Real sum_of_squares, std::int64_t width, Real epsilon) {
  return Real(1) / std::sqrt(sum_of_squares / static_cast<Real>(width) + epsilon);
}

/// p of the backward formula: how much of x the gradient loses so that the row's length stays.
template <class Real>
SMELT_HD Real rms_norm_projection(Real sum_of_dy_gain_x, std::int64_t width, Real rstd) {
  return rstd * rstd * sum_of_dy_gain_x / static_cast<Real>(width);
}

/// One element of dx.
template <class Real>
SMELT_HD Real rms_norm_gradient(Real dy, Real x, Real gain, Real rstd, Real projection) {
  return rstd * (dy * gain - x * projection);
}

inline namespace host_backend {

namespace host_detail {
struct rms_norm_gain_parts;

inline void check_rms_norm(const char* where, std::int64_t rows, std::int64_t columns,
                           std::int64_t found_rows, std::int64_t found_columns, bool row_major) {
  if (rows == found_rows && columns == found_columns && row_major) return;
  throw error(std::string(where) + ": expected row-major views of one shape, [" +
              std::to_string(rows) + ", " + std::to_string(columns) + "], found [" +
              std::to_string(found_rows) + ", " + std::to_string(found_columns) +
              (row_major ? "]" : "] with a column stride") +
              "; pass views of the same tensor shape");
}

// Rows for one block: about 8192 elements, so that many rows of a small width share one block.
inline std::int64_t rms_norm_block(std::int64_t width) {
  return std::max<std::int64_t>(1, 8192 / std::max<std::int64_t>(1, width));
}
}  // namespace host_detail

/// y = x rstd gain; stores rstd of every row. Out is the Compute of the policy (rows that feed a
/// matrix product) or Real. y may be x itself where Out is Real.
template <class Compute, class Out>
void rms_norm_forward(const host<Compute>& run, matrix_view<const real_of<Compute>> x,
                      const real_of<Compute>* gain, real_of<Compute> epsilon, matrix_view<Out> y,
                      real_of<Compute>* rstd) {
  using real = real_of<Compute>;
  host_detail::check_rms_norm("rms_norm_forward", x.rows, x.columns, y.rows, y.columns,
                              x.column_stride == 1 && y.column_stride == 1);
  const std::int64_t width = x.columns;
  for_each_block(
      run, x.rows, host_detail::rms_norm_block(width), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const real* from = x.row(i);
          Out* to = y.row(i);
          const real squares =
              lane_sum<real>(width, [=](std::int64_t j) { return from[j] * from[j]; });
          const real scale = rms_norm_scale(squares, width, epsilon);
          rstd[i] = scale;
          lane_map(width, to,
                   [=](std::int64_t j) { return static_cast<Out>(from[j] * scale * gain[j]); });
        }
      });
}

/// dx overwritten or added to; dgain always added to. dx may be dy itself (queries and keys are
/// normalised in place), in mode overwrite only. Other overlaps are not allowed.
template <class Compute>
void rms_norm_backward(const host<Compute>& run, matrix_view<const real_of<Compute>> dy,
                       matrix_view<const real_of<Compute>> x, const real_of<Compute>* gain,
                       const real_of<Compute>* rstd, into mode, matrix_view<real_of<Compute>> dx,
                       real_of<Compute>* dgain) {
  using real = real_of<Compute>;
  host_detail::check_rms_norm("rms_norm_backward: dy", x.rows, x.columns, dy.rows, dy.columns,
                              x.column_stride == 1 && dy.column_stride == 1);
  host_detail::check_rms_norm("rms_norm_backward: dx", x.rows, x.columns, dx.rows, dx.columns,
                              dx.column_stride == 1);
  const std::int64_t width = x.columns;
  // dgain is summed per block, then over at most 64 blocks in order: the same bits whatever thread
  // took which block. The partial sums are a scratch of the calling thread, shared by all.
  constexpr std::int64_t most_blocks = 64;
  const std::int64_t block =
      std::max(host_detail::rms_norm_block(width), (x.rows + most_blocks - 1) / most_blocks);
  const std::int64_t blocks = (x.rows + block - 1) / block;
  real* parts = thread_scratch<real, host_detail::rms_norm_gain_parts>(blocks * width);
  for_each_block(run, x.rows, block, [&](std::int64_t begin, std::int64_t end) {
    real* part = parts + begin / block * width;
    std::fill_n(part, width, real(0));
    for (std::int64_t i = begin; i < end; ++i) {
      const real* gradient = dy.row(i);
      const real* from = x.row(i);
      real* to = dx.row(i);
      const real scale = rstd[i];
      const real product =
          lane_sum<real>(width, [=](std::int64_t j) { return gradient[j] * gain[j] * from[j]; });
      const real projection = rms_norm_projection(product, width, scale);
      // dgain first: where dx is dy, the loop after it overwrites what this one reads.
      for (std::int64_t j = 0; j < width; ++j) part[j] += gradient[j] * from[j] * scale;
      const auto term = [=](std::int64_t j) {
        return rms_norm_gradient(gradient[j], from[j], gain[j], scale, projection);
      };
      if (mode == into::accumulate)
        lane_map(width, to, [=](std::int64_t j) { return to[j] + term(j); });
      else
        lane_map(width, to, term);
    }
  });
  for_each_block(run, width, 1024, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = 0; b < blocks; ++b) {
      const real* part = parts + b * width;
      for (std::int64_t j = begin; j < end; ++j) dgain[j] += part[j];
    }
  });
}

}  // namespace host_backend
}  // namespace smelt
