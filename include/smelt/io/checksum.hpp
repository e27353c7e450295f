// SPDX-License-Identifier: Apache-2.0
//
// checksum: XXH64 with seed 0, over bytes that come in pieces of any size.
//
//   four lanes, each  a = rotate(a + input * prime_2, 31) * prime_1  for every 8 bytes of 32;
//   the lanes folded into one word, the length added, the last 0..31 bytes mixed in, the bits
//   spread over the word.
//
// It finds disks, copies and truncations that went wrong; it is no protection against somebody who
// forges a file. Why this one: a checkpoint is gigabytes, and four independent lanes of 8 bytes
// run at the speed of memory, where FNV-1a takes a multiplication per byte one behind the other.
// Source: the public specification of xxHash (XXH64).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace smelt {

// Files are little-endian and are read in place.
static_assert(
    std::endian::native == std::endian::little,
    "smelt/io reads and writes little-endian files in place: use a little-endian machine");

/// Streaming XXH64. The value depends on the bytes alone, never on how they were cut into pieces.
class checksum {
 public:
  void update(std::span<const std::byte> bytes) {
    total_bytes_ += bytes.size();
    // First fill up the block that an earlier piece began.
    if (held_bytes_ > 0) {
      const std::size_t taken = std::min(bytes.size(), block_bytes - held_bytes_);
      std::copy_n(bytes.begin(), taken, block_.begin() + static_cast<std::ptrdiff_t>(held_bytes_));
      held_bytes_ += taken;
      bytes = bytes.subspan(taken);
      if (held_bytes_ < block_bytes) return;
      add_block(block_.data());
      held_bytes_ = 0;
    }
    for (; bytes.size() >= block_bytes; bytes = bytes.subspan(block_bytes)) add_block(bytes.data());
    std::copy(bytes.begin(), bytes.end(), block_.begin());
    held_bytes_ = bytes.size();
  }

  /// Of everything so far; more may follow.
  std::uint64_t value() const {
    std::uint64_t hash = prime_5;
    if (total_bytes_ >= block_bytes) {
      hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) +
             std::rotl(lanes_[3], 18);
      for (const std::uint64_t lane : lanes_) hash = (hash ^ round(0, lane)) * prime_1 + prime_4;
    }
    hash += total_bytes_;
    // What is left of the last block: by 8, then by 4, then byte by byte.
    const std::byte* next = block_.data();
    const std::byte* const end = next + held_bytes_;
    for (; end - next >= 8; next += 8)
      hash = std::rotl(hash ^ round(0, load<std::uint64_t>(next)), 27) * prime_1 + prime_4;
    if (end - next >= 4) {
      hash = std::rotl(hash ^ (load<std::uint32_t>(next) * prime_1), 23) * prime_2 + prime_3;
      next += 4;
    }
    for (; next != end; ++next)
      hash = std::rotl(hash ^ (std::to_integer<std::uint64_t>(*next) * prime_5), 11) * prime_1;
    hash = (hash ^ (hash >> 33U)) * prime_2;
    hash = (hash ^ (hash >> 29U)) * prime_3;
    return hash ^ (hash >> 32U);
  }

  /// The value as 16 hexadecimal digits: how it stands in metadata, which are text.
  std::string text() const {
    std::string digits(16, '0');
    std::uint64_t rest = value();
    for (auto digit = digits.rbegin(); digit != digits.rend(); ++digit, rest >>= 4U)
      *digit = "0123456789abcdef"[rest & 15U];
    return digits;
  }

 private:
  static constexpr std::size_t block_bytes = 32;
  // Odd numbers given by the specification.
  static constexpr std::uint64_t prime_1 = 0x9e3779b185ebca87U;
  static constexpr std::uint64_t prime_2 = 0xc2b2ae3d27d4eb4fU;
  static constexpr std::uint64_t prime_3 = 0x165667b19e3779f9U;
  static constexpr std::uint64_t prime_4 = 0x85ebca77c2b2ae63U;
  static constexpr std::uint64_t prime_5 = 0x27d4eb2f165667c5U;

  static std::uint64_t round(std::uint64_t lane, std::uint64_t input) {
    return std::rotl(lane + input * prime_2, 31) * prime_1;
  }
  // Bytes of a file lie at any address.
  template <class Word>
  static std::uint64_t load(const std::byte* bytes) {
    Word word;
    std::memcpy(&word, bytes, sizeof word);
    return word;
  }
  void add_block(const std::byte* bytes) {
    for (std::size_t i = 0; i < lanes_.size(); ++i)
      lanes_[i] = round(lanes_[i], load<std::uint64_t>(bytes + 8 * i));
  }

  std::array<std::uint64_t, 4> lanes_{prime_1 + prime_2, prime_2, 0, 0 - prime_1};
  std::array<std::byte, block_bytes> block_{};
  std::size_t held_bytes_ = 0;  // of block_, always fewer than a block
  std::uint64_t total_bytes_ = 0;
};

/// The checksum of bytes that are all there.
inline checksum checksum_of(std::span<const std::byte> bytes) {
  checksum sum;
  sum.update(bytes);
  return sum;
}

}  // namespace smelt
