// SPDX-License-Identifier: Apache-2.0
//
// tensor_info: what a file says of a tensor besides its elements: name, type, shape, and which
// bytes of the data are its own.
//
//   bytes = product of the dimensions * bytes of an element        (no dimension: one element)
//
// Row-major and little-endian, as everything in this room.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "smelt/io/dtype.hpp"

namespace smelt {

/// One tensor of a file: bytes [begin_bytes, end_bytes) of the data.
struct tensor_info {
  std::string name;
  dtype type = dtype::f32;
  std::vector<std::int64_t> shape{};
  std::int64_t begin_bytes = 0;
  std::int64_t end_bytes = 0;

  /// Bytes and elements that it has in the file.
  std::int64_t bytes() const { return end_bytes - begin_bytes; }
  std::int64_t count() const { return bytes() / dtype_bytes(type); }
};

/// Bytes of a tensor, or nothing where a dimension is negative or the product leaves 63 bits.
/// Dimensions are multiplied from the left, so [2^40, 2^40, 0] is refused although it is empty.
inline std::optional<std::int64_t> tensor_bytes(dtype type, std::span<const std::int64_t> shape) {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  std::int64_t count = 1;
  for (const std::int64_t dimension : shape) {
    // Asked before multiplying: a product that has overflowed may look like a small one.
    if (dimension < 0 || (dimension > 0 && count > most / dimension)) return std::nullopt;
    count *= dimension;
  }
  if (count > most / dtype_bytes(type)) return std::nullopt;
  return count * dtype_bytes(type);
}

/// "[2, 3]".
inline std::string shape_text(std::span<const std::int64_t> shape,
                              std::string_view separator = ", ") {
  std::string text = "[";
  for (const std::int64_t dimension : shape) {
    if (text.size() > 1) text += separator;
    text += std::to_string(dimension);
  }
  return text + "]";
}

/// "F32 [2, 3]", as messages name what a tensor is.
inline std::string tensor_text(dtype type, std::span<const std::int64_t> shape) {
  std::string text(dtype_name(type));
  return text + " " + shape_text(shape);
}

}  // namespace smelt
