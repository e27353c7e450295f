// SPDX-License-Identifier: Apache-2.0
//
// dtype: the element types that a safetensors file can name, how long each is, and which C++ type
// each one is.
//
// In the order of the format's own list, from the least to the most aligned: files hold their
// tensors in descending order of it. Types of less than a byte are not among them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "smelt/exec/bf16.hpp"

namespace smelt {

/// The type of a tensor's elements in a file. The order is part of the format: do not sort it.
enum class dtype : std::uint8_t {
  boolean,  // a byte, 0 or 1
  u8,
  i8,
  f8_e5m2,  // 8-bit floats: bits of exponent, bits of mantissa
  f8_e4m3,
  i16,
  u16,
  f16,  // IEEE 754 half
  bf16,
  i32,
  u32,
  f32,
  f64,
  i64,
  u64,
};

namespace detail {
// One row per enumerator, in the same order.
struct dtype_row {
  std::string_view name;   // as files spell it
  std::int64_t bytes = 0;  // of one element
};
inline constexpr std::array<dtype_row, 15> dtype_rows{{{"BOOL", 1},
                                                       {"U8", 1},
                                                       {"I8", 1},
                                                       {"F8_E5M2", 1},
                                                       {"F8_E4M3", 1},
                                                       {"I16", 2},
                                                       {"U16", 2},
                                                       {"F16", 2},
                                                       {"BF16", 2},
                                                       {"I32", 4},
                                                       {"U32", 4},
                                                       {"F32", 4},
                                                       {"F64", 8},
                                                       {"I64", 8},
                                                       {"U64", 8}}};

// No row for a type: dtype_of then does not exist and the caller's static_assert speaks.
template <class T>
struct dtype_selector {};
// The types of an exact width, so that a file means the same on every machine.
template <dtype Value>
struct dtype_constant {
  static constexpr dtype value = Value;
};
template <>
struct dtype_selector<std::uint8_t> : dtype_constant<dtype::u8> {};
template <>
struct dtype_selector<std::int8_t> : dtype_constant<dtype::i8> {};
template <>
struct dtype_selector<std::int16_t> : dtype_constant<dtype::i16> {};
template <>
struct dtype_selector<std::uint16_t> : dtype_constant<dtype::u16> {};
template <>
struct dtype_selector<smelt::bf16> : dtype_constant<dtype::bf16> {};
template <>
struct dtype_selector<std::int32_t> : dtype_constant<dtype::i32> {};
template <>
struct dtype_selector<std::uint32_t> : dtype_constant<dtype::u32> {};
template <>
struct dtype_selector<float> : dtype_constant<dtype::f32> {};
template <>
struct dtype_selector<double> : dtype_constant<dtype::f64> {};
template <>
struct dtype_selector<std::int64_t> : dtype_constant<dtype::i64> {};
template <>
struct dtype_selector<std::uint64_t> : dtype_constant<dtype::u64> {};
}  // namespace detail

/// As files spell it: "F32", "BF16", "I64".
constexpr std::string_view dtype_name(dtype type) {
  return detail::dtype_rows[static_cast<std::size_t>(type)].name;
}

/// Bytes of one element.
constexpr std::int64_t dtype_bytes(dtype type) {
  return detail::dtype_rows[static_cast<std::size_t>(type)].bytes;
}

/// The type that files spell so, or nothing.
constexpr std::optional<dtype> dtype_named(std::string_view name) {
  for (std::size_t i = 0; i < detail::dtype_rows.size(); ++i)
    if (detail::dtype_rows[i].name == name) return static_cast<dtype>(i);
  return std::nullopt;
}

/// Whether T is an element type. bool is none: a byte of a file that is neither 0 nor 1 must not
/// become one. F16 and the 8-bit floats have no C++ type here; their tensors are bytes.
template <class T>
concept tensor_element = requires {
  detail::dtype_selector<T>::value;
};

/// The element type of a C++ type: dtype_of<float> is dtype::f32.
template <tensor_element T>
inline constexpr dtype dtype_of = detail::dtype_selector<T>::value;

namespace detail {
// All names with commas, for the message about an unknown one.
inline std::string known_dtypes() {
  std::string text;
  for (const dtype_row& row : dtype_rows) {
    if (!text.empty()) text += ", ";
    text += row.name;
  }
  return text;
}
}  // namespace detail

}  // namespace smelt
