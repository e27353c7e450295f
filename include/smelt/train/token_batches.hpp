// SPDX-License-Identifier: Apache-2.0
//
// From token shards to batches, for sets of any size.
//
//   epoch      the set as a ring of size() tokens, end-of-text tokens among them, cut into
//              sequences of T from a seeded place on; what is left, below T, is left out
//   sequence   T consecutive tokens; in epoch e, number i of the training is the piece pi_e(i),
//              where pi_e is a seeded permutation that is computed and not stored (see below)
//   batch      B sequences; rank r of R takes the numbers [r B / R, (r + 1) B / R) of them
//   document   closed by its end-of-text token, which it predicts and which itself predicts nothing
//   segment    begins where a sequence or a document begins; it sees itself alone
//
// Batch(step) depends on set, seed, shape and step and on nothing else, and the ranks' shares
// behind one another are the same batch whatever the number of ranks. A step is the whole position:
// nothing else need be saved. Memory: T + 1 tokens, and 0 bytes per token of the set.
//
//   pi     a Feistel network of 8 rounds over 2 w bits, the least for which 2^(2w) >= n; what falls
//          outside [0, n) goes through it again (fewer than 4 times on average). Each round is a
//          bijection, and walking a cycle until it re-enters the range is one too.
//
// Documents that are neighbours in the shards may stand in one sequence: the order of sequences is
// shuffled, that of documents is the writer's. Text that fits into memory is shuffled document by
// document, without an end-of-text token, by train/data.hpp: two families of one interface (fill,
// tokens_per_epoch, sequences_per_epoch). Source: paper section 1 (packed documents).
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "smelt/error.hpp"
#include "smelt/exec/random.hpp"
#include "smelt/io/message.hpp"
#include "smelt/io/token_set.hpp"
#include "smelt/train/batch.hpp"
#include "smelt/train/data.hpp"

namespace smelt {

/// Sequences [begin, end) of a batch, counted over all ranks.
struct sequence_range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const sequence_range&) const = default;
};

/// What rank `rank` of `ranks` takes of a batch: consecutive sequences, one more or fewer than the
/// other ranks, so that a mean loss must be weighted by token_batch::counted().
/// @throws smelt::error where there is no such rank, or a rank would be left without a sequence.
inline sequence_range rank_share(batch_shape shape, std::int64_t rank, std::int64_t ranks) {
  if (ranks < 1)
    throw detail::io_error("rank_share", "at least 1 rank", std::to_string(ranks),
                           "give the number of ranks");
  if (rank < 0 || rank >= ranks)
    throw detail::io_error("rank_share", "a rank of [0, " + std::to_string(ranks) + ")",
                           std::to_string(rank), "count the ranks from 0");
  if (ranks > shape.sequences)
    throw detail::io_error("batch of " + std::to_string(shape.sequences) + " sequences",
                           "at least 1 for each rank", std::to_string(ranks) + " ranks",
                           "make the batch larger or take fewer ranks");
  return {rank * shape.sequences / ranks, (rank + 1) * shape.sequences / ranks};
}

namespace detail {
/// A permutation of [0, size) that is computed. Seeded; the same on every machine.
class computed_permutation {
 public:
  computed_permutation(std::int64_t size, std::uint64_t seed)
      : size_(static_cast<std::uint64_t>(size)),
        seed_(seed),
        half_bits_(std::max(1, (static_cast<int>(std::bit_width(size_ - 1)) + 1) / 2)) {}

  std::int64_t operator()(std::int64_t i) const {
    auto place = static_cast<std::uint64_t>(i);
    // From inside the range the cycle comes back to it at the latest at its own beginning.
    do place = network(place);
    while (place >= size_);
    return static_cast<std::int64_t>(place);
  }

 private:
  std::uint64_t network(std::uint64_t place) const {
    constexpr std::uint64_t rounds = 8;
    const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
    std::uint64_t left = place >> half_bits_;
    std::uint64_t right = place & mask;
    for (std::uint64_t round = 0; round < rounds; ++round) {
      // The round and the half together are the counter: a half has at most 32 bits.
      const std::uint64_t mixed = random_bits(seed_, (round << 32U) | right) & mask;
      const std::uint64_t next = left ^ mixed;
      left = right;
      right = next;
    }
    return (left << half_bits_) | right;
  }

  std::uint64_t size_;
  std::uint64_t seed_;
  int half_bits_;
};

/// Tokens of a set on their way into a batch; the set must outlive it.
class token_packer {
 public:
  /// @throws smelt::error where the set does not fit: see token_batches.
  token_packer(const token_set& set, std::int64_t end_of_text, batch_shape shape)
      : set_(&set), end_of_text_(end_of_text) {
    check_shape(shape);
    // Its constructor is the check of the end-of-text token.
    const token_documents documents(set, end_of_text);
    constexpr std::int64_t most_ids = std::numeric_limits<std::int32_t>::max();
    if (set.vocabulary() > most_ids)
      throw io_error(set.place(), "a vocabulary of at most " + std::to_string(most_ids),
                     std::to_string(set.vocabulary()), "give the model's vocabulary");
    window_.resize(static_cast<std::size_t>(shape.context) + 1);
  }

  /// Appends tokens [begin, end), at most a sequence of them, within the set.
  void read(std::int64_t begin, std::int64_t end, token_batch& batch) {
    // The token behind them is the last one's target, if there is one.
    const std::int64_t known = std::min(end + 1, set_->size()) - begin;
    const std::int64_t count = end - begin;
    const std::span<std::int32_t> tokens(window_.data(), static_cast<std::size_t>(known));
    set_->read(begin, tokens);
    for (std::int64_t first = 0; first < count;) {
      const auto from = tokens.begin() + first;
      const auto closing = std::find(from, tokens.begin() + count, end_of_text_);
      const bool is_closed = closing != tokens.begin() + count;
      const std::int64_t last = is_closed ? closing - tokens.begin() + 1 : count;
      const bool goes_on = !is_closed && known > count;
      batch.add_segment(window_.data() + first, last - first, goes_on ? tokens.back() : no_target);
      first = last;
    }
  }

  const token_set& set() const { return *set_; }

 private:
  const token_set* set_;
  std::int64_t end_of_text_;
  std::vector<std::int32_t> window_;  // a sequence and the token behind it
};

inline void check_room(const token_batch& batch, std::int64_t tokens) {
  if (batch.capacity() < tokens)
    throw io_error("token_batch", "room for " + std::to_string(tokens) + " tokens",
                   std::to_string(batch.capacity()), "make the batch larger");
}
}  // namespace detail

/// The batches of a training run, by number. The set must outlive it.
class token_batches {
 public:
  /// @param shape  of a whole step: the sequences of all ranks and of all accumulated parts.
  /// @throws smelt::error where the set holds less than a batch or no end-of-text token, where
  ///         that id or the shape is impossible.
  token_batches(const token_set& set, std::int64_t end_of_text, batch_shape shape,
                std::uint64_t seed)
      : packer_(set, end_of_text, shape), shape_(shape), seed_(seed) {
    if (set.size() < shape.tokens())
      throw detail::io_error(set.place(),
                             "at least one batch of " + std::to_string(shape.sequences) +
                                 " sequences of " + std::to_string(shape.context) + " tokens",
                             std::to_string(set.size()) + " tokens",
                             "name more shards or choose a smaller batch or context");
  }

  batch_shape shape() const { return shape_; }
  /// Whole sequences; what is left of the ring, less than one, differs from epoch to epoch.
  std::int64_t sequences_per_epoch() const { return packer_.set().size() / shape_.context; }
  std::int64_t tokens_per_epoch() const { return sequences_per_epoch() * shape_.context; }
  /// The epoch that step `step` begins in; a batch may reach into the next.
  std::int64_t epoch(std::int64_t step) const {
    return first_sequence(step) / sequences_per_epoch();
  }

  /// Sequences `part` of batch `step`, from 0 and without end: after an epoch the ring is cut
  /// anew and its pieces come in another order. Parts behind one another are the whole batch, for
  /// gradient accumulation. Any step costs the same; allocates nothing.
  /// @throws smelt::error where step or part are outside their range or `batch` is too small, and
  ///         naming file, position and id where a token is not below the vocabulary; the batch is
  ///         then empty.
  void fill(std::int64_t step, sequence_range part, token_batch& batch) {
    batch.clear();
    const std::int64_t first = first_sequence(step);
    if (part.begin < 0 || part.end <= part.begin || part.end > shape_.sequences)
      throw detail::io_error(
          "step " + std::to_string(step),
          "sequences within [0, " + std::to_string(shape_.sequences) + ")",
          "[" + std::to_string(part.begin) + ", " + std::to_string(part.end) + ")",
          "ask for at least 1 sequence of the batch");
    detail::check_room(batch, part.size() * shape_.context);
    // A bad token must not leave half a batch that looks like one.
    try {
      for (std::int64_t b = part.begin; b < part.end; ++b) read_sequence(first + b, batch);
    } catch (...) {
      batch.clear();
      throw;
    }
  }

  /// What rank `rank` of `ranks` takes of batch `step`.
  void fill(std::int64_t step, std::int64_t rank, std::int64_t ranks, token_batch& batch) {
    fill(step, rank_share(shape_, rank, ranks), batch);
  }

  /// All of batch `step`.
  void fill(std::int64_t step, token_batch& batch) { fill(step, {0, shape_.sequences}, batch); }

 private:
  std::int64_t first_sequence(std::int64_t step) const {
    const std::int64_t most = std::numeric_limits<std::int64_t>::max() / shape_.sequences - 1;
    if (step < 0 || step >= most)
      throw detail::io_error("token_batches", "a step of [0, " + std::to_string(most) + ")",
                             std::to_string(step), "count the steps from 0");
    return step * shape_.sequences;
  }

  // Two random numbers are all that an epoch draws: where the ring is cut, and the order's seed.
  void read_sequence(std::int64_t number, token_batch& batch) {
    const std::int64_t size = packer_.set().size();
    const auto epoch = static_cast<std::uint64_t>(number / sequences_per_epoch());
    const detail::computed_permutation order(sequences_per_epoch(),
                                             random_bits(seed_, 2 * epoch + 1));
    const auto cut =
        static_cast<std::int64_t>(random_bits(seed_, 2 * epoch) % static_cast<std::uint64_t>(size));
    const std::int64_t offset = order(number % sequences_per_epoch()) * shape_.context;
    // cut + offset < 2 size: no division, and no overflow below 2^62 tokens.
    std::int64_t begin = cut + offset;
    if (begin >= size) begin -= size;
    // The end of the set ends a document too.
    const std::int64_t end = std::min(begin + shape_.context, size);
    packer_.read(begin, end, batch);
    if (end - begin < shape_.context) packer_.read(0, shape_.context - (end - begin), batch);
  }

  detail::token_packer packer_;
  batch_shape shape_;
  std::uint64_t seed_;
};

/// What is held out, batch by batch: the set in its own order, cut into sequences; the last one may
/// be short. With a limit, sequences at equal distances over the whole. The set must outlive it.
class held_out_token_batches {
 public:
  /// @param most_tokens  0: all of them.
  /// @throws smelt::error as token_batches, but for a set that is smaller than a batch.
  held_out_token_batches(const token_set& set, std::int64_t end_of_text, batch_shape shape,
                         std::int64_t most_tokens = 0)
      : packer_(set, end_of_text, shape), shape_(shape) {
    available_ = (set.size() + shape.context - 1) / shape.context;
    used_ = available_;
    if (most_tokens > 0)
      used_ = std::min(available_, std::max<std::int64_t>(1, most_tokens / shape.context));
  }

  std::int64_t batches() const { return (used_ + shape_.sequences - 1) / shape_.sequences; }

  /// Batch `index` of [0, batches()); beyond, an empty one. Allocates nothing.
  /// @throws smelt::error as token_batches::fill.
  void fill(std::int64_t index, token_batch& batch) {
    batch.clear();
    if (index < 0 || index >= batches()) return;
    const std::int64_t last = std::min(used_, (index + 1) * shape_.sequences);
    detail::check_room(batch, shape_.tokens());
    try {
      for (std::int64_t i = index * shape_.sequences; i < last; ++i) {
        // The floor of i available_ / used_, in two steps because that product may pass 2^63.
        const std::int64_t spread = available_ / used_ * i + available_ % used_ * i / used_;
        const std::int64_t first = spread * shape_.context;
        packer_.read(first, std::min(first + shape_.context, packer_.set().size()), batch);
      }
    } catch (...) {
      batch.clear();
      throw;
    }
  }

 private:
  detail::token_packer packer_;
  batch_shape shape_;
  std::int64_t available_ = 0;  // sequences that there are
  std::int64_t used_ = 0;       // and that are asked for
};

}  // namespace smelt
