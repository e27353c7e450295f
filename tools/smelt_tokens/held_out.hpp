// SPDX-License-Identifier: Apache-2.0
//
// Which documents are held out: about one byte in `one_in` of every source, at least one document.
//
//   order   documents by the hash of their contents, which is as good as random and depends on
//           neither place nor name; taken as long as they fit
//   tail    where that yields less than half (few or long documents), the end of the longest
//           document makes up the rest, cut behind a line where there is one
//
// Adding a source changes nothing for the others, but for documents that both have.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "spool.hpp"

namespace smelt_tokens {

/// Documents of one source, in the order in which they are written.
struct document_split {
  std::vector<spooled_document> training{};
  std::vector<spooled_document> held_out{};
};

namespace detail {
// The first place from `wanted` on at which text may be cut: behind a line if one ends within the
// next part of the text, else between two characters. The whole size if there is none.
inline std::int64_t cut_place(std::string_view text, std::int64_t wanted) {
  constexpr std::size_t farthest = 4096;
  const auto from = static_cast<std::size_t>(wanted);
  if (from >= text.size()) return static_cast<std::int64_t>(text.size());
  const std::size_t line = text.substr(from, farthest).find('\n');
  if (line != std::string_view::npos && from + line + 1 < text.size())
    return static_cast<std::int64_t>(from + line + 1);
  std::size_t place = from;
  // A byte 10xxxxxx goes on with a character.
  while (place < text.size() && (static_cast<unsigned char>(text[place]) & 0xc0U) == 0x80U) ++place;
  return static_cast<std::int64_t>(place);
}
}  // namespace detail

/// @param documents  of one source.
/// @param one_in     0: nothing is held out.
inline document_split split_documents(const spool& texts, std::vector<spooled_document> documents,
                                      std::int64_t one_in) {
  std::sort(documents.begin(), documents.end(),
            [](const spooled_document& a, const spooled_document& b) {
              return a.hash != b.hash ? a.hash < b.hash : a.begin < b.begin;
            });
  document_split split;
  std::int64_t bytes = 0;
  for (const spooled_document& document : documents) bytes += document.size();
  if (one_in == 0 || bytes == 0) {
    split.training = std::move(documents);
    return split;
  }
  const std::int64_t wanted = std::max<std::int64_t>(1, bytes / one_in);
  std::int64_t room = wanted;
  for (const spooled_document& document : documents) {
    // A source of one document, however small, is first of all there to train on.
    const bool fits = document.size() <= room && document.size() < bytes;
    (fits ? split.held_out : split.training).push_back(document);
    if (fits) room -= document.size();
  }
  if (2 * (wanted - room) < wanted) {
    const auto longest =
        std::max_element(split.training.begin(), split.training.end(),
                         [](const auto& a, const auto& b) { return a.size() < b.size(); });
    const std::int64_t size = longest->size();
    const std::int64_t cut =
        longest->begin +
        detail::cut_place(texts.text(*longest), std::max<std::int64_t>(1, size - room));
    if (cut < longest->end) {
      spooled_document tail = *longest;
      tail.begin = cut;
      longest->end = cut;
      tail.hash = content_hash(texts.text(tail));
      longest->hash = content_hash(texts.text(*longest));
      split.held_out.push_back(tail);
    }
  }
  return split;
}

}  // namespace smelt_tokens
