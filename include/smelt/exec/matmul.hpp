// SPDX-License-Identifier: Apache-2.0
//
// Matrix products on the host:  C = A B  or  C += A B,  A [m, k], B [k, n], C [m, n].
//
// Which operand is transposed, its views say. Element types: (float, float) -> float by oneDNN or
// OpenBLAS; (bf16, bf16) -> float on AMX through oneDNN; double by a plain loop, which is also the
// reference in tests. Floor: 2 m n k FLOPs.
//
// product_serial runs on the calling thread (inside loops over experts or attention tiles);
// product cuts the rows of C into fixed blocks and counts its FLOPs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "smelt/exec/bf16.hpp"
#include "smelt/exec/buffer.hpp"
#include "smelt/exec/into.hpp"
#include "smelt/exec/matrix.hpp"
#include "smelt/exec/policy.hpp"

#if defined(SMELT_MATMUL_ONEDNN)
#include "smelt/exec/matmul_onednn.hpp"
#elif defined(SMELT_MATMUL_OPENBLAS)
#include "smelt/exec/matmul_openblas.hpp"
#else
#include "smelt/exec/matmul_none.hpp"
#endif

namespace smelt {

inline namespace host_backend {

/// The definition, in loops, on one thread; any element types, sums in the result's type. The
/// reference that every other product is tested against.
template <class A, class B, class C>
void product_reference(matrix_view<const A> a, matrix_view<const B> b, matrix_view<C> c,
                       into mode = into::overwrite) {
  for (std::int64_t i = 0; i < c.rows; ++i) {
    C* row = c.row(i);
    if (mode == into::overwrite)
      for (std::int64_t j = 0; j < c.columns; ++j) row[j * c.column_stride] = C{};
    for (std::int64_t l = 0; l < a.columns; ++l) {
      const C left = static_cast<C>(a(i, l));
      for (std::int64_t j = 0; j < c.columns; ++j)
        row[j * c.column_stride] += left * static_cast<C>(b(l, j));
    }
  }
}

namespace host_detail {
// A BLAS sees row-major memory with a leading dimension; a view with column_stride != 1 is one that
// was transposed.
template <class T>
bool is_transposed(const matrix_view<T>& view) {
  return view.column_stride != 1;
}
template <class T>
std::int64_t leading(const matrix_view<T>& view) {
  return std::max<std::int64_t>({is_transposed(view) ? view.column_stride : view.row_stride,
                                 is_transposed(view) ? view.rows : view.columns, 1});
}

struct convert_a;
struct convert_b;

// bf16 operands for a library or a processor without them: widen to float, exactly.
template <class Tag>
matrix_view<const float> widened(matrix_view<const bf16> from) {
  float* to = thread_scratch<float, Tag>(from.size());
  const bool flip = is_transposed(from);
  const matrix_view<const bf16> plain = flip ? transposed(from) : from;
  for (std::int64_t i = 0; i < plain.rows; ++i)
    for (std::int64_t j = 0; j < plain.columns; ++j)
      to[i * plain.columns + j] = static_cast<float>(plain.row(i)[j]);
  const matrix_view<const float> wide(to, plain.rows, plain.columns);
  return flip ? transposed(wide) : wide;
}
}  // namespace host_detail

/// C = A B or C += A B on the calling thread, uncounted.
template <class A, class B, class C>
void product_serial(matrix_view<A> a, matrix_view<B> b, matrix_view<C> c,
                    into mode = into::overwrite) {
  if (c.rows == 0 || c.columns == 0) return;
  const bool add = mode == into::accumulate;
  if (a.columns == 0) {  // an expert without tokens: the sum over nothing
    if (!add)
      for (std::int64_t i = 0; i < c.rows; ++i) std::fill_n(c.row(i), c.columns, C{});
    return;
  }
  const matrix_view<const std::remove_const_t<A>> left = a;
  const matrix_view<const std::remove_const_t<B>> right = b;
  if constexpr (std::is_same_v<C, double>) {
    product_reference(left, right, c, mode);
  } else if constexpr (std::is_same_v<std::remove_const_t<A>, bf16>) {
    if (host_detail::matmul_library::has_bf16())
      host_detail::matmul_library::multiply_bf16(
          host_detail::is_transposed(left), host_detail::is_transposed(right), c.rows, c.columns,
          a.columns, left.data, host_detail::leading(left), right.data, host_detail::leading(right),
          c.data, c.row_stride, add);
    else
      product_serial(host_detail::widened<host_detail::convert_a>(left),
                     host_detail::widened<host_detail::convert_b>(right), c, mode);
  } else {
    host_detail::matmul_library::multiply_float(
        host_detail::is_transposed(left), host_detail::is_transposed(right), c.rows, c.columns,
        a.columns, left.data, host_detail::leading(left), right.data, host_detail::leading(right),
        c.data, c.row_stride, add);
  }
}

/// C = A B or C += A B on the policy's threads; counts 2 m n k.
template <class Compute, class A, class B, class C>
void product(const host<Compute>& run, matrix_view<A> a, matrix_view<B> b, matrix_view<C> c,
             into mode = into::overwrite) {
  run.count_product(c.rows, c.columns, a.columns);
  // Enough rows for a full register tile, few enough to share a small result among threads. The
  // numbers depend on the shape alone, never on the threads.
  const std::int64_t block = std::clamp<std::int64_t>(c.rows / 8 / 16 * 16, 32, 256);
  for_each_block(run, c.rows, block, [&](std::int64_t begin, std::int64_t end) {
    product_serial(a.rows_between(begin, end), b, c.rows_between(begin, end), mode);
  });
}

/// Whether bf16 products run on matrix hardware (AMX) here; without it bf16 is slower than float32.
inline bool bf16_is_fast() {
  return host_detail::matmul_library::has_bf16();
}

/// The library behind the products, for reports.
inline const char* matmul_library_name() {
  return host_detail::matmul_library::name;
}

}  // namespace host_backend
}  // namespace smelt
