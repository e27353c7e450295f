// SPDX-License-Identifier: Apache-2.0
//
// matrix_view: rows x columns of somebody's memory, with a stride for each. transposed() only swaps
// the two, so a product is told what to do by the views alone.
#pragma once

#include <cstdint>
#include <type_traits>

#include "smelt/exec/host_device.hpp"

namespace smelt {

/// A view of Rows x Columns elements; strides are in elements. Row-major unless transposed.
template <class T>
struct matrix_view {
  T* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t row_stride = 0;
  std::int64_t column_stride = 1;

  matrix_view() = default;
  SMELT_HD matrix_view(T* data_, std::int64_t rows_, std::int64_t columns_)
      : data(data_), rows(rows_), columns(columns_), row_stride(columns_) {}
  SMELT_HD matrix_view(T* data_, std::int64_t rows_, std::int64_t columns_,
                       std::int64_t row_stride_, std::int64_t column_stride_ = 1)
      : data(data_),
        rows(rows_),
        columns(columns_),
        row_stride(row_stride_),
        column_stride(column_stride_) {}
  /// A view of constants from a view of variables.
  template <class Variable>
  requires(std::is_const_v<T>&& std::is_same_v<const Variable, T>) SMELT_HD
      matrix_view(const matrix_view<Variable>& other)
      : matrix_view(other.data, other.rows, other.columns, other.row_stride, other.column_stride) {}

  SMELT_HD T& operator()(std::int64_t row, std::int64_t column) const {
    return data[row * row_stride + column * column_stride];
  }
  /// First element of a row; consecutive elements where column_stride is 1.
  SMELT_HD T* row(std::int64_t index) const { return data + index * row_stride; }
  /// Rows [begin, end).
  SMELT_HD matrix_view rows_between(std::int64_t begin, std::int64_t end) const {
    return {data + begin * row_stride, end - begin, columns, row_stride, column_stride};
  }
  /// Columns [begin, end).
  SMELT_HD matrix_view columns_between(std::int64_t begin, std::int64_t end) const {
    return {data + begin * column_stride, rows, end - begin, row_stride, column_stride};
  }
  SMELT_HD std::int64_t size() const { return rows * columns; }
};

/// The same memory with rows and columns exchanged.
template <class T>
SMELT_HD matrix_view<T> transposed(const matrix_view<T>& view) {
  return {view.data, view.columns, view.rows, view.column_stride, view.row_stride};
}

}  // namespace smelt
