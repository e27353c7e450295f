// SPDX-License-Identifier: Apache-2.0
//
// What the tests of io share: bytes made by hand, bytes read back by other means than the
// library's, and the text of an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>

#include "smelt/error.hpp"

namespace smelt_test {

/// The whole of a file, by the standard library.
inline std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// How many entries a folder has: what a writer left behind shows here.
inline std::ptrdiff_t entries_of(const std::filesystem::path& folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

/// The bytes of a number as it stands in a little-endian file.
template <class T>
std::string bytes_of(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

inline std::span<const std::byte> span_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

/// A safetensors file of a header and data that need not fit together.
inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  return bytes_of(std::uint64_t{header.size()}) + header + data;
}

/// The error that a call ends with; empty if it goes through.
template <class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const smelt::error& e) {
    return e.what();
  }
  return "";
}

}  // namespace smelt_test
