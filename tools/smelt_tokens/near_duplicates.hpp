// SPDX-License-Identifier: Apache-2.0
//
// Near-duplicates between training and held-out text.
//
//   word      a run of letters, digits and bytes above 127; capitals count as small letters
//   shingle   `words` consecutive words, hashed to 64 bits; a shorter document is one shingle
//   common    a shingle of more than `common` documents: a licence, the frame of a web page
//
// A training document t goes where one of these reaches the threshold, for a held-out document h
// and the sets S of shingles, or R of those that are not common:
//
//   |S(t) and S(h)| / |S(t) or S(h)|            the same text, changed here and there
//   |R(t) and R(h)| / min(|R(t)|, |R(h)|)       one inside the other; of at least 8 shingles
//   |R(t) and all R(h)| / |R(t)|                made of held-out pieces; of at least 8 shingles
//
// Held-out text is never touched. Different shingles of one hash: odds of one in 10^5 among ten
// million of each. Deterministic; memory: 20 bytes per word of held-out text.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "smelt/exec/random.hpp"

namespace smelt_tokens {

/// The distinct shingles of a text, sorted.
inline void shingles_of(std::string_view text, std::int64_t words,
                        std::vector<std::uint64_t>& shingles) {
  shingles.clear();
  const auto window = static_cast<std::size_t>(words);
  std::vector<std::uint64_t> recent;  // hashes of all words so far
  std::uint64_t word = 0;
  bool in_word = false;
  const auto end_word = [&] {
    if (in_word) recent.push_back(smelt::mixed_bits(word));
    in_word = false;
    word = 0;
  };
  for (const char c : text) {
    auto byte = static_cast<unsigned char>(c);
    if (byte >= 'A' && byte <= 'Z') byte = static_cast<unsigned char>(byte + 32);
    if ((byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9') || byte >= 128) {
      in_word = true;
      word = (word ^ byte) * 0x100000001b3U + 1;
    } else {
      end_word();
    }
  }
  end_word();
  const std::size_t count = recent.size();
  for (std::size_t first = 0; first + std::min(window, count) <= count && count > 0; ++first) {
    std::uint64_t hash = 0;
    for (std::size_t i = first; i < first + std::min(window, count); ++i)
      hash = smelt::mixed_bits(hash ^ recent[i]);
    shingles.push_back(hash);
  }
  std::sort(shingles.begin(), shingles.end());
  shingles.erase(std::unique(shingles.begin(), shingles.end()), shingles.end());
}

/// In this order: add_held_out for each held-out document, finish_held_out, count for each training
/// document, finish_counts, and then is_one.
class near_duplicates {
 public:
  near_duplicates(std::int64_t words, double threshold, std::int64_t common)
      : words_(words), threshold_(threshold), common_(common) {}

  void add_held_out(std::string_view text) {
    shingles_of(text, words_, shingles_);
    const auto number = static_cast<std::uint32_t>(held_.size());
    for (const std::uint64_t shingle : shingles_) entries_.push_back({shingle, number});
    held_.push_back({shingles_.size(), shingles_.size()});
  }
  void finish_held_out() {
    std::sort(entries_.begin(), entries_.end());
    documents_.assign(entries_.size(), 0);
    for (std::size_t i = 0; i < entries_.size(); ++i)
      ++documents_[place(first_of(entries_[i].first))];
  }

  void count(std::string_view text) {
    shingles_of(text, words_, shingles_);
    for (const std::uint64_t shingle : shingles_) {
      const auto found = first_of(shingle);
      if (found != entries_.end() && found->first == shingle) ++documents_[place(found)];
    }
  }
  void finish_counts() {
    for (const entry& each : entries_)
      if (is_common(first_of(each.first))) --held_[each.second].rare;
  }

  /// Whether a training document is one.
  bool is_one(std::string_view text) {
    shingles_of(text, words_, shingles_);
    for (const std::uint32_t h : touched_) held_[h].shared = held_[h].shared_rare = 0;
    touched_.clear();
    std::size_t rare = shingles_.size();
    std::size_t shared_rare = 0;
    for (const std::uint64_t shingle : shingles_) {
      auto found = first_of(shingle);
      if (found == entries_.end() || found->first != shingle) continue;
      const bool common = is_common(found);
      if (common)
        --rare;
      else
        ++shared_rare;
      for (; found != entries_.end() && found->first == shingle; ++found) {
        held_document& h = held_[found->second];
        if (++h.shared == 1) touched_.push_back(found->second);
        h.shared_rare += common ? 0 : 1;
      }
    }
    constexpr std::size_t least = 8;
    if (shared_rare >= least && reaches(shared_rare, rare)) return true;
    return std::any_of(touched_.begin(), touched_.end(), [&](std::uint32_t number) {
      const held_document& h = held_[number];
      return reaches(h.shared, shingles_.size() + h.all - h.shared) ||
             (h.shared_rare >= least && reaches(h.shared_rare, std::min(h.rare, rare)));
    });
  }

 private:
  using entry = std::pair<std::uint64_t, std::uint32_t>;  // shingle, held-out document
  struct held_document {
    std::size_t all = 0;          // shingles
    std::size_t rare = 0;         // that are not common
    std::size_t shared = 0;       // with the training document at hand
    std::size_t shared_rare = 0;  // of them not common
  };

  std::vector<entry>::const_iterator first_of(std::uint64_t shingle) const {
    return std::lower_bound(entries_.begin(), entries_.end(), entry(shingle, 0U));
  }
  std::size_t place(std::vector<entry>::const_iterator found) const {
    return static_cast<std::size_t>(found - entries_.begin());
  }
  bool is_common(std::vector<entry>::const_iterator found) const {
    return documents_[place(found)] > common_;
  }
  bool reaches(std::size_t shared, std::size_t all) const {
    return static_cast<double>(shared) >= threshold_ * static_cast<double>(all);
  }

  std::int64_t words_;
  double threshold_;
  std::int64_t common_;
  std::vector<entry> entries_;            // sorted
  std::vector<std::uint32_t> documents_;  // that have a shingle, at its first entry
  std::vector<held_document> held_;
  std::vector<std::uint32_t> touched_;  // that share anything
  std::vector<std::uint64_t> shingles_;
};

}  // namespace smelt_tokens
