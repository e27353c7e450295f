// SPDX-License-Identifier: Apache-2.0
//
// Causal grouped-query attention over packed documents, in tiles, never a T x T matrix:
//
//   S = scale Q K^T for keys of the same document up to the query,   scale = 1 / sqrt(head_dim)
//   P = softmax(S) row by row,   O = P V,   L = log sum exp(S)  kept for the backward pass
//
//   backward:  P = exp(S - L),  dP = dO V^T,  D = rowsum(dO O),  dS = P (dP - D)
//              dV = P^T dO,     dK = scale dS^T Q,    dQ = scale dS K
//
// Query head h reads key-value head h / (query_heads / kv_heads).
// Shapes: q, out, dout, dq [N, query_heads * head_dim]; k, v, dk, dv [N, kv_heads * head_dim]; rows
// may be further apart than they are wide (views into one qkv matrix); logsumexp [query_heads, N].
// Source: online softmax (Milakov, Gimelshein 2018) and its tiling (Dao et al. 2022); documents
// masked from each other as in the paper, section 1.
//
// Floor: per head and (query, key) pair 4 head_dim FLOPs forward and 10 backward, of which 2
// compute the score again; K and V of a document are read once per tile of queries, so it is bound
// by the products. Beside them stand an exponential and a few passes over the scores (0.5 ns a pair
// on one AVX-512 core, against 1.7 ns for the forward products of head size 64 at the product's
// full rate), and half a strip of pairs per query above the diagonal, computed and thrown away.
// Measured, head size 64, one document of 512 and of 2048 tokens, as a share of a large float
// product's rate: forward 0.54 and 0.57, backward 0.48 and 0.54 (0.60 and 0.67 of it executed).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "smelt/arch/attention.hpp"
#include "smelt/error.hpp"
#include "smelt/exec/buffer.hpp"
#include "smelt/exec/matmul.hpp"
#include "smelt/exec/matrix.hpp"
#include "smelt/exec/policy.hpp"
#include "smelt/op/attention_tile.hpp"
#include "smelt/op/lane_sum.hpp"
#include "smelt/op/row_maximum.hpp"
#include "smelt/op/segments.hpp"

namespace smelt {
inline namespace host_backend {

/// Tile sizes. Two tiles of scores must stay in the second-level cache (512 KiB here), and the
/// products want at least 64 rows; a long key tile spares rescaling, a short query tile and a short
/// strip spare work above the diagonal.
struct attention_tuning {
  static constexpr std::int64_t query_tile = 64;    // forward: queries of a work item
  static constexpr std::int64_t key_tile = 512;     // forward: keys met at a time
  static constexpr std::int64_t square_tile = 256;  // backward: queries and keys of a tile
  static constexpr std::int64_t strip = 64;         // backward: rows at a time on the diagonal
  static constexpr std::int64_t vector = 32;        // elements of a row are handled in multiples
  static_assert(key_tile % query_tile == 0, "a query must see a key of every tile it meets");
  static_assert(key_tile % vector == 0 && square_tile % vector == 0, "rows are padded to vectors");
};

namespace host_detail {
struct attention_tiles;
struct attention_delta;

// Elements of scratch that a worker needs: scores, then running sums (forward), or weights and
// their gradients (backward).
inline std::int64_t attention_forward_scratch(std::int64_t head_dim) {
  return attention_tuning::query_tile * (attention_tuning::key_tile + head_dim + 2);
}
inline constexpr std::int64_t attention_backward_scratch =
    2 * attention_tuning::square_tile * attention_tuning::square_tile;

inline void check_attention(const char* where, std::int64_t rows, std::int64_t columns,
                            std::int64_t found_rows, std::int64_t found_columns,
                            std::int64_t column_stride) {
  if (rows == found_rows && columns == found_columns && column_stride == 1) return;
  throw error(std::string(where) + ": expected a row-major view [" + std::to_string(rows) + ", " +
              std::to_string(columns) + "], found [" + std::to_string(found_rows) + ", " +
              std::to_string(found_columns) + "] with column stride " +
              std::to_string(column_stride) +
              "; the rows are the tokens of the segments, the columns heads times head size");
}

// Row stride of a tile of that many keys.
inline std::int64_t attention_padded(std::int64_t keys) {
  constexpr std::int64_t vector = attention_tuning::vector;
  return (keys + vector - 1) / vector * vector;
}

// Running state of the online softmax for a tile of queries: maximum and sum per row, and the
// unnormalised output.
template <class Real>
struct attention_rows {
  Real* maximum;
  Real* sum;
  matrix_view<Real> output;
};

// Turns scores into weights against the running maximum and scales what was summed before. Keys
// that a row may not see get weight zero.
template <class Real>
void attention_update(matrix_view<Real> scores, Real scale, std::int64_t query_begin,
                      std::int64_t key_begin, bool first, attention_rows<Real> state) {
  for (std::int64_t i = 0; i < scores.rows; ++i) {
    Real* row = scores.row(i);
    const std::int64_t visible = attended_keys(query_begin + i, key_begin, scores.columns);
    // Whole vectors only: up to the next multiple a row sees scores of -infinity, whose weight
    // (at most 1.6e-38, see exponential.hpp) vanishes in a sum that holds exp(0) = 1.
    const std::int64_t padded = attention_padded(visible);
    std::fill(row + visible, row + padded, -std::numeric_limits<Real>::infinity());
    const Real largest = scale * row_maximum(row, padded);
    const Real before = state.maximum[i];
    const Real maximum = !first && largest < before ? before : largest;
    const Real sum = lane_sum<Real>(
        padded, [=](std::int64_t j) { return row[j] = attention_weight(row[j], scale, maximum); });
    std::fill(row + visible, row + scores.row_stride, Real(0));
    state.maximum[i] = maximum;
    if (first) {
      state.sum[i] = sum;
      continue;
    }
    const Real decay = exponential(before - maximum);
    state.sum[i] = state.sum[i] * decay + sum;
    if (decay == Real(1)) continue;
    Real* output = state.output.row(i);
    for (std::int64_t c = 0; c < state.output.columns; ++c) output[c] *= decay;
  }
}

// One query head of one query tile against all keys of its segment up to the tile.
template <class Compute, class Real>
void attention_forward_tile(std::int64_t segment_begin, std::int64_t begin, std::int64_t end,
                            matrix_view<const Real> q, matrix_view<const Real> k,
                            matrix_view<const Real> v, matrix_view<Compute> out, Real* logsumexp,
                            Real* scratch) {
  using tuning = attention_tuning;
  const std::int64_t rows = end - begin;
  const std::int64_t head_dim = q.columns;
  const Real scale = Real(1) / std::sqrt(static_cast<Real>(head_dim));
  Real* scores = scratch;
  Real* sums = scratch + tuning::query_tile * tuning::key_tile;
  const attention_rows<Real> state{
      sums, sums + rows, matrix_view<Real>(sums + 2 * tuning::query_tile, rows, head_dim)};
  const matrix_view<const Real> queries = q.rows_between(begin, end);
  for (std::int64_t first = segment_begin; first < end; first += tuning::key_tile) {
    const std::int64_t last = std::min(end, first + tuning::key_tile);
    const matrix_view<Real> tile(scores, rows, last - first, attention_padded(last - first));
    const bool start = first == segment_begin;
    product_serial(queries, transposed(k.rows_between(first, last)), tile);
    attention_update(tile, scale, begin, first, start, state);
    product_serial(tile, v.rows_between(first, last), state.output,
                   start ? into::overwrite : into::accumulate);
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    const Real inverse = Real(1) / state.sum[i];
    const Real* from = state.output.row(i);
    Compute* to = out.row(begin + i);
    for (std::int64_t c = 0; c < head_dim; ++c) to[c] = static_cast<Compute>(from[c] * inverse);
    logsumexp[begin + i] = state.maximum[i] + std::log(state.sum[i]);
  }
}

// D of the queries of a tile.
template <class Compute, class Real>
void attention_delta_tile(std::int64_t begin, std::int64_t end, matrix_view<const Real> dout,
                          matrix_view<const Compute> out, Real* delta) {
  for (std::int64_t i = begin; i < end; ++i) {
    const Real* gradient = dout.row(i);
    const Compute* value = out.row(i);
    delta[i] = lane_sum<Real>(
        dout.columns, [=](std::int64_t c) { return gradient[c] * static_cast<Real>(value[c]); });
  }
}

// What one query head needs in the backward pass, and where its gradients go.
template <class Real>
struct attention_head {
  matrix_view<const Real> q, k, v, dout;
  matrix_view<Real> dq, dk, dv;
  const Real* logsumexp;
  const Real* delta;
};

// Queries [begin, end) against keys [first, last): adds to dq, dk and dv of those rows.
template <class Real>
void attention_backward_tile(const attention_head<Real>& head, std::int64_t begin, std::int64_t end,
                             std::int64_t first, std::int64_t last, into mode_q, into mode_kv,
                             Real* scratch) {
  constexpr std::int64_t tile = attention_tuning::square_tile;
  const std::int64_t rows = end - begin;
  const std::int64_t keys = last - first;
  const Real scale = Real(1) / std::sqrt(static_cast<Real>(head.q.columns));
  const std::int64_t stride = attention_padded(keys);
  const matrix_view<Real> weights(scratch, rows, keys, stride);
  const matrix_view<Real> gradients(scratch + tile * tile, rows, keys, stride);
  const matrix_view<const Real> q = head.q.rows_between(begin, end);
  const matrix_view<const Real> dout = head.dout.rows_between(begin, end);
  const matrix_view<const Real> k = head.k.rows_between(first, last);
  product_serial(q, transposed(k), weights);
  product_serial(dout, transposed(head.v.rows_between(first, last)), gradients);
  for (std::int64_t i = 0; i < rows; ++i) {
    Real* weight = weights.row(i);
    Real* gradient = gradients.row(i);
    const std::int64_t visible = attended_keys(begin + i, first, keys);
    const Real reference = head.logsumexp[begin + i];
    const Real delta = head.delta[begin + i];
    // Whole vectors again; what the last one computes past the visible keys is overwritten.
    const std::int64_t padded = attention_padded(visible);
    for (std::int64_t j = 0; j < padded; ++j) {
      weight[j] = attention_weight(weight[j], scale, reference);
      gradient[j] = attention_score_gradient(weight[j], gradient[j], delta, scale);
    }
    std::fill(weight + visible, weight + stride, Real(0));
    std::fill(gradient + visible, gradient + stride, Real(0));
  }
  product_serial(transposed(weights), dout, head.dv.rows_between(first, last), mode_kv);
  product_serial(transposed(gradients), q, head.dk.rows_between(first, last), mode_kv);
  product_serial(gradients, k, head.dq.rows_between(begin, end), mode_q);
}
}  // namespace host_detail

/// out and logsumexp from q, k, v; both overwritten. Counts 4 query width per pair. Throws
/// smelt::error for views that do not fit the shape or the segments.
template <class Compute>
void attention_forward(const host<Compute>& run, const attention_shape& shape,
                       const segments& documents, matrix_view<const real_of<Compute>> q,
                       matrix_view<const real_of<Compute>> k, matrix_view<const real_of<Compute>> v,
                       matrix_view<Compute> out, real_of<Compute>* logsumexp) {
  using real = real_of<Compute>;
  constexpr std::int64_t tile = attention_tuning::query_tile;
  const std::int64_t tokens = documents.tokens();
  const std::int64_t size = shape.head_dim;
  const std::int64_t group = shape.query_heads / shape.kv_heads;
  const auto check = [tokens](const char* where, std::int64_t columns, const auto& view) {
    host_detail::check_attention(where, tokens, columns, view.rows, view.columns,
                                 view.column_stride);
  };
  check("attention_forward: q", shape.query_width(), q);
  check("attention_forward: k", shape.kv_width(), k);
  check("attention_forward: v", shape.kv_width(), v);
  check("attention_forward: out", shape.query_width(), out);
  run.count_attention(4 * shape.query_width() * documents.pairs(), 0);
  // Late slots of a long document are the heaviest: they go first, so that no thread waits for one.
  const std::int64_t slots = attention_slots(documents, tile);
  const worker_scratch<real, host_detail::attention_tiles> scratch(
      run.threads(), host_detail::attention_forward_scratch(size));
  for_each_block(run, slots * shape.query_heads, 1, [&](std::int64_t item, std::int64_t) {
    const std::int64_t head = item % shape.query_heads;
    const std::int64_t at_q = head * size;
    const std::int64_t at_kv = head / group * size;
    for_each_attention_tile(
        documents, slots - 1 - item / shape.query_heads, tile,
        [&](std::int64_t segment_begin, std::int64_t, std::int64_t begin, std::int64_t end) {
          host_detail::attention_forward_tile<Compute, real>(
              segment_begin, begin, end, q.columns_between(at_q, at_q + size),
              k.columns_between(at_kv, at_kv + size), v.columns_between(at_kv, at_kv + size),
              out.columns_between(at_q, at_q + size), logsumexp + head * tokens, scratch.mine());
        });
  });
}

/// dq overwritten; dk and dv overwritten or added to (several visits that share keys and values).
/// Counts 8 query width per pair, and 2 more as recomputed.
///
/// Every step of the outer loop pairs each key tile j with query tile j + step of its segment:
/// within a step no two items touch the same row of dq, dk or dv, and the order of additions to a
/// row is the order of steps, whatever the number of threads.
template <class Compute>
void attention_backward(const host<Compute>& run, const attention_shape& shape,
                        const segments& documents, matrix_view<const real_of<Compute>> dout,
                        matrix_view<const real_of<Compute>> q,
                        matrix_view<const real_of<Compute>> k,
                        matrix_view<const real_of<Compute>> v, matrix_view<const Compute> out,
                        const real_of<Compute>* logsumexp, matrix_view<real_of<Compute>> dq,
                        matrix_view<real_of<Compute>> dk, matrix_view<real_of<Compute>> dv,
                        into mode_kv) {
  using real = real_of<Compute>;
  using tuning = attention_tuning;
  constexpr std::int64_t tile = tuning::square_tile;
  const std::int64_t tokens = documents.tokens();
  const std::int64_t size = shape.head_dim;
  const std::int64_t group = shape.query_heads / shape.kv_heads;
  const auto check = [tokens](const char* where, std::int64_t columns, const auto& view) {
    host_detail::check_attention(where, tokens, columns, view.rows, view.columns,
                                 view.column_stride);
  };
  check("attention_backward: dout", shape.query_width(), dout);
  check("attention_backward: q", shape.query_width(), q);
  check("attention_backward: k", shape.kv_width(), k);
  check("attention_backward: v", shape.kv_width(), v);
  check("attention_backward: out", shape.query_width(), out);
  check("attention_backward: dq", shape.query_width(), dq);
  check("attention_backward: dk", shape.kv_width(), dk);
  check("attention_backward: dv", shape.kv_width(), dv);
  const std::int64_t per_pair = 2 * shape.query_width() * documents.pairs();
  run.count_attention(4 * per_pair, per_pair);
  // Of the calling thread, written at step 0 and read by all threads in the steps after it.
  real* delta = thread_scratch<real, host_detail::attention_delta>(shape.query_heads * tokens);

  const worker_scratch<real, host_detail::attention_tiles> scratch(
      run.threads(), host_detail::attention_backward_scratch);

  const auto tile_pair = [&](std::int64_t head, std::int64_t step, std::int64_t segment_end,
                             std::int64_t first, std::int64_t last) {
    const std::int64_t at_q = head * size;
    const std::int64_t at_kv = head / group * size;
    const host_detail::attention_head<real> views{q.columns_between(at_q, at_q + size),
                                                  k.columns_between(at_kv, at_kv + size),
                                                  v.columns_between(at_kv, at_kv + size),
                                                  dout.columns_between(at_q, at_q + size),
                                                  dq.columns_between(at_q, at_q + size),
                                                  dk.columns_between(at_kv, at_kv + size),
                                                  dv.columns_between(at_kv, at_kv + size),
                                                  logsumexp + head * tokens,
                                                  delta + head * tokens};
    if (step > 0) {
      const std::int64_t begin = first + step * tile;
      host_detail::attention_backward_tile(views, begin, std::min(segment_end, begin + tile), first,
                                           last, into::accumulate, into::accumulate,
                                           scratch.mine());
      return;
    }
    host_detail::attention_delta_tile(
        first, last, views.dout, out.columns_between(at_q, at_q + size), delta + head * tokens);
    // The diagonal in strips of queries, the last strip first: it meets all keys of the tile, so
    // it alone may overwrite.
    into mode = head % group == 0 ? mode_kv : into::accumulate;
    const std::int64_t strips = (last - first + tuning::strip - 1) / tuning::strip;
    for (std::int64_t strip = strips - 1; strip >= 0; --strip) {
      const std::int64_t begin = first + strip * tuning::strip;
      const std::int64_t end = std::min(last, begin + tuning::strip);
      host_detail::attention_backward_tile(views, begin, end, first, end, into::overwrite, mode,
                                           scratch.mine());
      mode = into::accumulate;
    }
  };

  const std::int64_t slots = attention_slots(documents, tile);
  const std::int64_t steps = attention_longest(documents, tile);
  for (std::int64_t step = 0; step < steps; ++step)
    for_each_block(run, slots * shape.kv_heads, 1, [&](std::int64_t item, std::int64_t) {
      const std::int64_t kv_head = item % shape.kv_heads;
      for_each_attention_tile(
          documents, item / shape.kv_heads, tile,
          [&](std::int64_t, std::int64_t segment_end, std::int64_t first, std::int64_t last) {
            if (first + step * tile >= segment_end) return;
            for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
              tile_pair(head, step, segment_end, first, last);
          });
    });
}

}  // namespace host_backend
}  // namespace smelt
