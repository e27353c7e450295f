// SPDX-License-Identifier: Apache-2.0
//
// Operands of grouped products on their way from global to shared memory.
//
// A product sums over an inner index; the other index of an operand is its outer one. A block takes
// a tile of 128 outer indices through the sum in panels of 64 bytes of inner indices:
//
//   panel_order::inner   a row of memory is one outer index    panel [128, 64 bytes]
//   panel_order::outer   a row of memory is one inner index    panel [64 bytes of rows, 128]
//
// Either way a panel is a rectangle of memory, moved in chunks of 16 bytes by cp.async. Rows and
// columns past the operand's end become zero in shared memory, whatever lies there (a NaN of the
// neighbouring expert times zero would be NaN). A row may be looked up first (row_of): that is how
// slots gather their tokens, and no copy in slot order exists.
//
// Chunk c of row r lies at chunk c ^ swizzle(r) of that row, so that 8 rows read at one chunk, as
// ldmatrix does, and 8 chunks written to one or two rows, as cp.async does, each touch all 32
// banks once. In inner order that is the 64-byte swizzle of the hardware's matrix descriptors.
//
// Where rows do not begin at multiples of 16 bytes (a width of 3) elements are copied one by one,
// by the same threads to the same places: right, but not overlapped with the product.
#pragma once

#include <cstdint>
#include <type_traits>

#include "smelt/exec/cuda/policy.cuh"
#include "smelt/kernel/tensor_core.cuh"

namespace smelt {
inline namespace cuda_backend {

namespace cuda_detail {

inline constexpr int chunk_bytes = 16;

/// Which index of an operand is contiguous in memory.
enum class panel_order : std::uint8_t { inner, outer };

struct index_range {
  std::int64_t first = 0;
  std::int64_t end = 0;
};

/// One operand of the products of all groups.
template <class Element>
struct grouped_operand {
  const Element* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t group_stride = 0;         // from one group's matrix to the next; 0: one for all
  const std::int64_t* row_of = nullptr;  // where row i lies; null: at i
  bool chunked = false;                  // every row begins at a multiple of 16 bytes

  grouped_operand(const Element* data_, std::int64_t row_stride_, std::int64_t group_stride_,
                  const std::int64_t* row_of_)
      : data(data_),
        row_stride(row_stride_),
        group_stride(group_stride_),
        row_of(row_of_),
        chunked(reinterpret_cast<std::uintptr_t>(data_) % chunk_bytes == 0 &&
                row_stride_ * sizeof(Element) % chunk_bytes == 0 &&
                group_stride_ * sizeof(Element) % chunk_bytes == 0) {}
};

/// The shape of a panel in shared memory, and where its chunks lie.
template <class Element, int Outer, panel_order Order>
struct panel {
  static constexpr panel_order order = Order;
  static constexpr int chunk = chunk_bytes / static_cast<int>(sizeof(Element));  // elements
  static constexpr int inner = 4 * chunk;
  static constexpr int outer = Outer;
  static constexpr int rows = Order == panel_order::inner ? outer : inner;
  static constexpr int chunks = (Order == panel_order::inner ? inner : outer) / chunk;  // of a row
  static constexpr int elements = outer * inner;
  static_assert(chunks == 4 || chunks % 8 == 0, "smelt: a swizzle for rows of 4 or 8 n chunks");

  /// First element of a chunk.
  static __device__ int offset(int row, int at_chunk) {
    const int swizzle = chunks == 4 ? (row >> 1) & 3 : row & 7;
    return (row * chunks + (at_chunk ^ swizzle)) * chunk;
  }
};

// How many elements of a chunk are there where `left` (any number) are left.
template <class Element>
__device__ int elements_of_chunk(std::int64_t left) {
  constexpr int most = chunk_bytes / static_cast<int>(sizeof(Element));
  return left >= most ? most : left > 0 ? static_cast<int>(left) : 0;
}

// One chunk: the first `count` elements of `from`, then zeros. `from` is an address of the operand
// even where nothing is read.
template <class Element>
__device__ void copy_chunk(Element* to, const Element* from, int count, bool chunked) {
  if (chunked) {
    copy_async_16(to, from, count * static_cast<int>(sizeof(Element)));
  } else {
    constexpr int most = chunk_bytes / static_cast<int>(sizeof(Element));
#pragma unroll 1
    for (int i = 0; i < most; ++i) to[i] = i < count ? from[i] : Element{};
  }
}

/// Loads panels in inner order: a thread keeps its rows, and the columns move on.
///   PairDistance > 0: the panel's rows alternate, PairDistance of the outer range and as many that
///   lie pair_offset further on (gate and up columns of the same experts' h).
///   LookedUp: rows may be looked up, so each has an address of its own; the others are equally far
///   apart, and one address serves them all.
template <class Panel, class Element, int Threads, int PairDistance, bool LookedUp>
class standing_rows_loader {
  static constexpr int copies = Panel::rows * Panel::chunks / Threads;
  static constexpr int rows_apart = Threads / Panel::chunks;
  static constexpr int outer_apart = PairDistance > 0 ? rows_apart / 2 : rows_apart;
  static constexpr int addresses = LookedUp ? copies : 1;
  static_assert(Threads % Panel::chunks == 0 && copies * rows_apart == Panel::rows);
  static_assert(rows_apart % (PairDistance > 0 ? 2 * PairDistance : 1) == 0,
                "smelt: all rows of a thread are of the same half");

 public:
  __device__ void start(const grouped_operand<Element>& operand, std::int64_t group,
                        const index_range& outer, const index_range& inner,
                        std::int64_t pair_offset) {
    const Element* base = operand.data + group * operand.group_stride;
    chunked_ = operand.chunked;
    column_ = inner.first + chunk() * Panel::chunk;
    end_ = inner.end;
    std::int64_t first = outer.first + at(0);
    std::int64_t further = 0;
    if constexpr (PairDistance > 0) {
      first = outer.first + at(0) / (2 * PairDistance) * PairDistance + at(0) % PairDistance;
      further = at(0) / PairDistance % 2 * pair_offset;
    }
    rows_left_ =
        outer.end - first < Panel::rows ? static_cast<int>(outer.end - first) : Panel::rows;
    apart_ = outer_apart * operand.row_stride;
#pragma unroll
    for (int i = 0; i < addresses; ++i) {
      std::int64_t row = first + i * outer_apart;
      const bool inside = i * outer_apart < rows_left_;
      if (LookedUp && inside && operand.row_of != nullptr) row = operand.row_of[row];
      // Past the end, where nothing is read, an address of the operand all the same.
      from_[i] = base + (inside ? (row + further) * operand.row_stride : 0);
    }
  }
  /// Begins to copy the next panel.
  __device__ void load(Element* to) {
    const int most = elements_of_chunk<Element>(end_ - column_);
#pragma unroll
    for (int i = 0; i < copies; ++i) {
      const int count = i * outer_apart < rows_left_ ? most : 0;
      const Element* row =
          LookedUp ? from_[LookedUp ? i : 0] : from_[0] + (count > 0 ? i : 0) * apart_;
      copy_chunk(to + Panel::offset(at(i), chunk()), row + (count > 0 ? column_ : 0), count,
                 chunked_);
    }
    column_ += Panel::inner;
  }

 private:
  static __device__ int chunk() {
    return static_cast<int>(threadIdx.x) % Panel::chunks;
  }
  static __device__ int at(int i) {
    return static_cast<int>(threadIdx.x) / Panel::chunks + i * rows_apart;
  }

  const Element* from_[addresses];
  std::int64_t apart_, column_, end_;
  int rows_left_;  // from this thread's first row to the operand's end
  bool chunked_;
};

/// Loads panels in outer order: a thread keeps its column, and the rows move on. Rows that must be
/// looked up are looked up one panel ahead, so that no copy waits for its address.
template <class Panel, class Element, int Threads, bool LookedUp>
class moving_rows_loader {
  static constexpr int copies = Panel::rows * Panel::chunks / Threads;
  static constexpr int rows_apart = Threads / Panel::chunks;
  static_assert(Threads % Panel::chunks == 0 && copies * rows_apart == Panel::rows);

 public:
  __device__ void start(const grouped_operand<Element>& operand, std::int64_t group,
                        const index_range& outer, const index_range& inner, std::int64_t) {
    chunked_ = operand.chunked;
    row_of_ = operand.row_of;
    row_stride_ = operand.row_stride;
    const std::int64_t column = outer.first + chunk() * Panel::chunk;
    columns_ = elements_of_chunk<Element>(outer.end - column);
    from_ = operand.data + group * operand.group_stride + (columns_ > 0 ? column : 0);
    row_ = inner.first + at(0);
    end_ = inner.end;
    look_up();
  }
  __device__ void load(Element* to) {
#pragma unroll
    for (int i = 0; i < copies; ++i) {
      const std::int64_t row = row_ + i * rows_apart;
      const int count = row < end_ ? columns_ : 0;
      const std::int64_t found = LookedUp ? found_[LookedUp ? i : 0] : row;
      copy_chunk(to + Panel::offset(at(i), chunk()), from_ + (count > 0 ? found * row_stride_ : 0),
                 count, chunked_);
    }
    row_ += Panel::rows;
    look_up();
  }

 private:
  static __device__ int chunk() {
    return static_cast<int>(threadIdx.x) % Panel::chunks;
  }
  static __device__ int at(int i) {
    return static_cast<int>(threadIdx.x) / Panel::chunks + i * rows_apart;
  }
  __device__ void look_up() {
    if constexpr (LookedUp) {
#pragma unroll
      for (int i = 0; i < copies; ++i) {
        found_[i] = row_ + i * rows_apart;
        if (row_of_ != nullptr && found_[i] < end_) found_[i] = row_of_[found_[i]];
      }
    }
  }

  const Element* from_;  // this thread's column of row 0
  int columns_;          // elements of its chunk
  const std::int64_t* row_of_;
  std::int64_t row_stride_, row_, end_;
  std::int64_t found_[LookedUp ? copies : 1];  // where the next panel's rows lie
  bool chunked_;
};

/// What loads a panel with all threads of a block.
template <class Panel, class Element, int Threads, int PairDistance, bool LookedUp>
using panel_loader =
    std::conditional_t<Panel::order == panel_order::inner,
                       standing_rows_loader<Panel, Element, Threads, PairDistance, LookedUp>,
                       moving_rows_loader<Panel, Element, Threads, LookedUp>>;

}  // namespace cuda_detail

}  // namespace cuda_backend
}  // namespace smelt
