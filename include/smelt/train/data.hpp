// SPDX-License-Identifier: Apache-2.0
//
// From a corpus to batches: what is held out, and which tokens stand in which step.
//
//   stream    the documents of an epoch behind one another, in a seeded order
//   sequence  T consecutive tokens of the stream; the rest of an epoch, below T, is left out
//   batch     B sequences, taken in a second seeded order, so that the B T tokens of a step come
//             from all over the text even where single documents are long
//   segment   begins where a sequence or a document begins; it sees itself alone
//
// Batch(step) depends on corpus, seed, shape and step and on nothing else: two models that ask for
// the same step get the same tokens. Source: paper section 1 (packed documents).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "smelt/error.hpp"
#include "smelt/exec/random.hpp"
#include "smelt/train/batch.hpp"
#include "smelt/train/text.hpp"

namespace smelt {

/// Bytes [begin, end) of a corpus that belong together: a document, or what is left of one.
struct text_range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const text_range&) const = default;
};

namespace detail {
inline std::int64_t total_size(const std::vector<text_range>& ranges) {
  std::int64_t total = 0;
  for (const text_range& range : ranges) total += range.size();
  return total;
}

/// Order 0 1 2 ... shuffled (Fisher-Yates). std::shuffle differs between standard libraries.
inline void shuffled_order(std::vector<std::int64_t>& order, std::uint64_t seed) {
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
  for (std::size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[random_bits(seed, i) % i]);
}

/// Pieces of a corpus behind one another as one stream of tokens, in an order that can change.
class text_stream {
 public:
  text_stream(const std::uint8_t* bytes, std::vector<text_range> pieces)
      : bytes_(bytes), pieces_(std::move(pieces)), order_(pieces_.size()), starts_(pieces_.size()) {
    for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = static_cast<std::int64_t>(i);
    place();
  }

  std::int64_t tokens() const { return tokens_; }

  /// Another order of the pieces, from `seed` alone and not from the order before.
  void shuffle(std::uint64_t seed) {
    shuffled_order(order_, seed);
    place();
  }

  /// Appends tokens [begin, end) of the stream, a segment per document that they touch. The last
  /// token of a window still knows its successor where the document goes on.
  void read(std::int64_t begin, std::int64_t end, token_batch& batch) const {
    // The piece that holds token `begin`: the last one that starts at or before it.
    auto place = static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), begin) -
                                          starts_.begin() - 1);
    for (; begin < end; ++place) {
      const text_range& piece = pieces_[static_cast<std::size_t>(order_[place])];
      const std::int64_t offset = begin - starts_[place];
      const std::int64_t count = std::min(piece.size() - offset, end - begin);
      const std::uint8_t* first = bytes_ + piece.begin + offset;
      const bool goes_on = offset + count < piece.size();
      batch.add_segment(first, count, goes_on ? first[count] : no_target);
      begin += count;
    }
  }

 private:
  // Where each piece starts, in the present order.
  void place() {
    tokens_ = 0;
    for (std::size_t i = 0; i < order_.size(); ++i) {
      starts_[i] = tokens_;
      tokens_ += pieces_[static_cast<std::size_t>(order_[i])].size();
    }
  }

  const std::uint8_t* bytes_;
  std::vector<text_range> pieces_;    // none is empty
  std::vector<std::int64_t> order_;   // which piece stands where
  std::vector<std::int64_t> starts_;  // and at which token it begins
  std::int64_t tokens_ = 0;
};
}  // namespace detail

/// What is trained on, and what is only predicted.
struct text_split {
  struct held_out_source {
    std::string name;
    std::vector<text_range> pieces;
    std::int64_t tokens() const { return detail::total_size(pieces); }
  };
  std::vector<text_range> training;         // all sources
  std::vector<held_out_source> held_out{};  // one per source, in the order of the corpus

  std::int64_t training_tokens() const { return detail::total_size(training); }
};

/// Holds out about one byte in `one_in` of every source, at least one byte: whole documents in the
/// order of a hash of their names, as long as they fit; where that yields less than half (few or
/// long documents), the end of the longest document makes up the rest. Adding a source or moving
/// the folder changes nothing for the others.
inline text_split split_text(const text_corpus& corpus, std::int64_t one_in = 16) {
  if (one_in < 2)
    throw error("split_text: one_in must be at least 2, found " + std::to_string(one_in));
  text_split split;
  for (const text_source& source : corpus.sources()) {
    const std::vector<text_document>& documents = corpus.documents();
    std::vector<std::int64_t> order;
    for (std::int64_t i = source.first_document; i < source.last_document; ++i) order.push_back(i);
    // By the hash of the names, which is as good as random and never changes.
    const auto at = [&](std::int64_t i) -> const text_document& {
      return documents[static_cast<std::size_t>(i)];
    };
    std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      const std::uint64_t left = detail::text_hash(at(a).name);
      const std::uint64_t right = detail::text_hash(at(b).name);
      return left != right ? left < right : a < b;
    });
    text_split::held_out_source held{source.name, {}};
    std::vector<text_range> kept;
    const std::int64_t wanted = std::max<std::int64_t>(1, source.bytes / one_in);
    std::int64_t room = wanted;
    for (const std::int64_t i : order) {
      const text_range range{at(i).begin, at(i).end};
      // A source of one document, however small, is first of all there to train on.
      const bool fits = range.size() <= room && range.size() < source.bytes;
      (fits ? held.pieces : kept).push_back(range);
      if (fits) room -= range.size();
    }
    if (2 * held.tokens() < wanted) {
      const auto longest = std::max_element(
          kept.begin(), kept.end(),
          [](const text_range& a, const text_range& b) { return a.size() < b.size(); });
      const std::int64_t cut = std::min(room, longest->size() - 1);
      if (cut > 0) {
        held.pieces.push_back({longest->end - cut, longest->end});
        longest->end -= cut;
      }
    }
    split.training.insert(split.training.end(), kept.begin(), kept.end());
    split.held_out.push_back(std::move(held));
  }
  return split;
}

/// Sequences of a step and tokens of a sequence.
struct batch_shape {
  std::int64_t sequences = 0;
  std::int64_t context = 0;
  std::int64_t tokens() const { return sequences * context; }
};

namespace detail {
inline void check_shape(batch_shape shape) {
  if (shape.sequences < 1 || shape.context < 1 ||
      shape.sequences > (std::int64_t{1} << 40) / shape.context)
    throw error("batch of " + std::to_string(shape.sequences) + " sequences of " +
                std::to_string(shape.context) +
                " tokens: expected at least 1 of each and at most 2^40 tokens; choose others");
}
}  // namespace detail

/// The batches of a training run, by number. The corpus must outlive it.
class training_batches {
 public:
  training_batches(const text_corpus& corpus, const text_split& split, batch_shape shape,
                   std::uint64_t seed)
      : stream_(corpus.bytes(), split.training), shape_(shape), seed_(seed) {
    detail::check_shape(shape);
    if (stream_.tokens() < shape.tokens())
      throw error(names_of(corpus) + ": " + std::to_string(stream_.tokens()) +
                  " tokens to train on, fewer than one batch of " +
                  std::to_string(shape.sequences) + " sequences of " +
                  std::to_string(shape.context) +
                  "; name more text or choose a smaller batch or context");
    order_.resize(static_cast<std::size_t>(stream_.tokens() / shape.context));
    begin_epoch(0);
  }

  /// Whole sequences; what is left of the text, less than one, differs from epoch to epoch.
  std::int64_t sequences_per_epoch() const { return static_cast<std::int64_t>(order_.size()); }
  std::int64_t tokens_per_epoch() const { return sequences_per_epoch() * shape_.context; }

  /// Batch `step`, from 0 and without end: after an epoch the text comes in another order.
  /// A step of the same epoch as the one before costs a binary search per sequence; a change of
  /// epoch shuffles. Allocates nothing.
  void fill(std::int64_t step, token_batch& batch) {
    batch.clear();
    for (std::int64_t b = 0; b < shape_.sequences; ++b) {
      const std::int64_t sequence = step * shape_.sequences + b;
      const std::int64_t epoch = sequence / sequences_per_epoch();
      if (epoch != epoch_) begin_epoch(epoch);
      const std::int64_t first =
          order_[static_cast<std::size_t>(sequence % sequences_per_epoch())] * shape_.context;
      stream_.read(first, first + shape_.context, batch);
    }
  }

 private:
  static std::string names_of(const text_corpus& corpus) {
    if (corpus.sources().empty()) return "no text";
    const std::size_t others = corpus.sources().size() - 1;
    return corpus.sources()[0].name +
           (others == 0 ? "" : " and " + std::to_string(others) + " other sources");
  }

  // Two independent orders: of the documents in the stream, and of the sequences cut from it.
  void begin_epoch(std::int64_t epoch) {
    const auto number = static_cast<std::uint64_t>(epoch);
    stream_.shuffle(random_bits(seed_, 2 * number));
    detail::shuffled_order(order_, random_bits(seed_, 2 * number + 1));
    epoch_ = epoch;
  }

  detail::text_stream stream_;
  batch_shape shape_;
  std::uint64_t seed_;
  std::int64_t epoch_ = -1;
  std::vector<std::int64_t> order_;  // which sequence of the stream comes when
};

/// What is held out of one source, batch by batch: its documents in order, cut into sequences; the
/// last one may be short. With a limit, sequences at equal distances over the whole.
class held_out_batches {
 public:
  held_out_batches(const text_corpus& corpus, const text_split::held_out_source& held,
                   batch_shape shape, std::int64_t most_tokens = 0)
      : stream_(corpus.bytes(), held.pieces), shape_(shape) {
    detail::check_shape(shape);
    available_ = (stream_.tokens() + shape.context - 1) / shape.context;
    used_ = available_;
    if (most_tokens > 0)
      used_ = std::min(available_, std::max<std::int64_t>(1, most_tokens / shape.context));
  }

  std::int64_t batches() const { return (used_ + shape_.sequences - 1) / shape_.sequences; }

  /// Batch `index` of [0, batches()). Allocates nothing.
  void fill(std::int64_t index, token_batch& batch) const {
    batch.clear();
    const std::int64_t last = std::min(used_, (index + 1) * shape_.sequences);
    for (std::int64_t i = index * shape_.sequences; i < last; ++i) {
      const std::int64_t first = i * available_ / used_ * shape_.context;
      stream_.read(first, std::min(first + shape_.context, stream_.tokens()), batch);
    }
  }

 private:
  detail::text_stream stream_;
  batch_shape shape_;
  std::int64_t available_ = 0;  // sequences that there are
  std::int64_t used_ = 0;       // and that are asked for
};

}  // namespace smelt
