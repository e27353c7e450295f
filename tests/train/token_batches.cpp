// SPDX-License-Identifier: Apache-2.0
//
// Batches of shards: against a plain loop over the documents, one batch for any number of ranks,
// epochs, positions, and every bad input with its line.
#include "smelt/train/token_batches.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "support/allocation_counter.hpp"
#include "support/folder.hpp"

namespace {
using namespace smelt;

constexpr std::int32_t end_of_text = 50000;
constexpr std::int64_t vocabulary = 50001;

// Every token but the end of a text is there once, so that a token tells its place.
struct sample {
  smelt_test::folder folder;
  std::vector<std::int32_t> tokens;
  std::vector<std::filesystem::path> paths;

  // Documents of 0 to 40 tokens; the last one is not closed. Three shards that cut documents.
  explicit sample(int documents = 60) {
    std::int32_t id = 0;
    for (int d = 0; d < documents; ++d) {
      for (int i = 0; i < d * 29 % 41; ++i) tokens.push_back(id++);
      tokens.push_back(end_of_text);
    }
    for (int i = 0; i < 5; ++i) tokens.push_back(id++);
    const std::size_t cuts[] = {0, tokens.size() / 3 + 1, tokens.size() / 2, tokens.size()};
    for (int shard = 0; shard < 3; ++shard) {
      paths.push_back(folder / ("train." + std::to_string(shard) + ".bin"));
      token_writer writer(paths.back(), token_format::llmc_uint16, vocabulary);
      writer.append(std::span(tokens).subspan(cuts[shard], cuts[shard + 1] - cuts[shard]));
      writer.finish();
    }
  }
  token_set set() const { return {paths, vocabulary}; }
  std::int64_t size() const { return static_cast<std::int64_t>(tokens.size()); }
};

// A batch as plain numbers.
struct plain_batch {
  std::vector<std::int32_t> inputs, targets, positions;
  std::vector<std::int64_t> starts;
  bool operator==(const plain_batch&) const = default;

  void append(const token_batch& batch) {
    const batch_view view = batch.view();
    const auto before = static_cast<std::int64_t>(inputs.size());
    inputs.insert(inputs.end(), view.inputs, view.inputs + view.tokens);
    targets.insert(targets.end(), view.targets, view.targets + view.tokens);
    positions.insert(positions.end(), view.positions, view.positions + view.tokens);
    for (std::int64_t d = 0; d < view.documents.count; ++d)
      starts.push_back(before + view.documents.begin(d));
  }
};

plain_batch plain(const token_batch& batch) {
  plain_batch copy;
  copy.append(batch);
  return copy;
}

// What a sequence must be, token by token and from the plain list alone: `at` is the place of its
// first token in the ring.
void append_expected(plain_batch& expected, const sample& s, std::int64_t at,
                     std::int64_t context) {
  std::int32_t position = 0;
  for (std::int64_t i = 0; i < context; ++i) {
    const std::int64_t place = (at + i) % s.size();
    const std::int32_t token = s.tokens[static_cast<std::size_t>(place)];
    const bool begins =
        i == 0 || place == 0 || s.tokens[static_cast<std::size_t>(place) - 1] == end_of_text;
    if (begins) {
      position = 0;
      expected.starts.push_back(static_cast<std::int64_t>(expected.inputs.size()));
    }
    expected.inputs.push_back(token);
    expected.positions.push_back(position++);
    const bool ends = token == end_of_text || place + 1 == s.size();
    expected.targets.push_back(ends ? no_target : s.tokens[static_cast<std::size_t>(place) + 1]);
  }
}

// Where a sequence stands in the ring, told by the first of its tokens that is not an end.
std::int64_t place_of(const sample& s, const std::int32_t* sequence, std::int64_t context) {
  for (std::int64_t i = 0; i < context; ++i)
    if (sequence[i] != end_of_text) {
      const auto found = std::find(s.tokens.begin(), s.tokens.end(), sequence[i]);
      return (found - s.tokens.begin() - i + s.size()) % s.size();
    }
  FAIL("a sequence of ends alone");
  return 0;
}

template <class Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const error& e) {
    return e.what();
  }
  return "";
}

TEST_CASE(
    "every sequence is what a plain loop over the documents makes; an epoch shows each once") {
  const sample s;
  const token_set set = s.set();
  for (const batch_shape shape : {batch_shape{3, 50}, {1, 7}, {4, 32}, {2, 1 << 9}}) {
    token_batches batches(set, end_of_text, shape, 7);
    token_batch batch(shape.tokens());
    const std::int64_t sequences = s.size() / shape.context;
    CHECK(batches.sequences_per_epoch() == sequences);
    CHECK(batches.tokens_per_epoch() == sequences * shape.context);
    std::vector<std::set<std::int64_t>> places(4);          // of each epoch
    std::vector<std::vector<std::int64_t>> steps_apart(3);  // from one sequence to the next
    std::int64_t number = 0;
    std::int64_t before = 0;
    for (std::int64_t step = 0; number < 3 * sequences; ++step) {
      CHECK(batches.epoch(step) == number / sequences);
      batches.fill(step, batch);
      REQUIRE(batch.tokens() == shape.tokens());
      REQUIRE(batch.view().documents.tokens() == shape.tokens());
      plain_batch expected;
      for (std::int64_t b = 0; b < shape.sequences; ++b, ++number) {
        const std::int64_t place =
            place_of(s, batch.view().inputs + b * shape.context, shape.context);
        append_expected(expected, s, place, shape.context);
        if (number < 3 * sequences) {
          const auto epoch = static_cast<std::size_t>(number / sequences);
          CHECK(places[epoch].insert(place).second);
          if (number % sequences > 0)
            steps_apart[epoch].push_back((place - before + s.size()) % s.size());
        }
        before = place;
      }
      REQUIRE(plain(batch) == expected);
    }
    // The pieces of an epoch do not overlap, and epochs cut the ring at different places.
    for (std::size_t epoch = 0; epoch < 3; ++epoch) {
      REQUIRE(places[epoch].size() == static_cast<std::size_t>(sequences));
      std::int64_t gaps = 0;
      for (auto place = places[epoch].begin(); place != places[epoch].end(); ++place) {
        const auto next =
            std::next(place) == places[epoch].end() ? places[epoch].begin() : std::next(place);
        const std::int64_t distance = (*next - *place + s.size() - 1) % s.size() + 1;
        CHECK(distance >= shape.context);
        gaps += distance - shape.context;
      }
      CHECK(gaps == s.size() % shape.context);
      CHECK(places[epoch] != places[(epoch + 1) % 3]);
      // Not the same order, moved along the ring.
      if (sequences > 6) CHECK(steps_apart[epoch] != steps_apart[(epoch + 1) % 3]);
    }
  }
}

TEST_CASE("1, 2, 3, 4 and 5 ranks, and any accumulation, make the same batch of disjoint shares") {
  const sample s;
  const token_set set = s.set();
  const batch_shape shape{12, 17};
  token_batches batches(set, end_of_text, shape, 3);
  token_batch batch(shape.tokens());
  for (std::int64_t step : {0, 1, 5, 6, 40, 1000}) {
    batches.fill(step, batch);
    const plain_batch whole = plain(batch);
    for (std::int64_t ranks = 1; ranks <= 5; ++ranks) {
      plain_batch together;
      std::int64_t next = 0;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        // A process of its own: it knows nothing of the others.
        token_batches own(set, end_of_text, shape, 3);
        const sequence_range share = rank_share(shape, rank, ranks);
        CHECK(share.begin == next);
        CHECK(share.size() >= shape.sequences / ranks);
        CHECK(share.size() <= (shape.sequences + ranks - 1) / ranks);
        next = share.end;
        own.fill(step, rank, ranks, batch);
        CHECK(batch.tokens() == share.size() * shape.context);
        together.append(batch);
      }
      CHECK(next == shape.sequences);
      CHECK(together == whole);
    }
    plain_batch parts;
    for (std::int64_t b = 0; b < shape.sequences; b += 4) {
      batches.fill(step, {b, b + 4}, batch);
      parts.append(batch);
    }
    CHECK(parts == whole);
  }
}

TEST_CASE("a batch depends on set, seed, shape and step, not on what was asked for before") {
  const sample s;
  const token_set set = s.set();
  const batch_shape shape{4, 16};
  token_batches one(set, end_of_text, shape, 1);
  token_batches two(set, end_of_text, shape, 1);
  token_batches other(set, end_of_text, shape, 2);
  token_batch a(shape.tokens());
  token_batch b(shape.tokens());
  const std::int64_t per_epoch = one.sequences_per_epoch() / shape.sequences;
  for (std::int64_t step : {3 * per_epoch + 1, std::int64_t{0}, per_epoch, std::int64_t{5}}) {
    one.fill(step, a);
    two.fill(step + 1, b);
    two.fill(step, b);
    CHECK(plain(a) == plain(b));
    other.fill(step, b);
    CHECK(plain(a) != plain(b));
    one.fill(step + per_epoch, b);
    CHECK(plain(a) != plain(b));
  }
  // A step far away costs what any costs.
  one.fill(std::int64_t{1} << 40, a);
  CHECK(a.tokens() == shape.tokens());
}

TEST_CASE("the order is a permutation of any size, is mixed, and is the same on every machine") {
  for (std::int64_t size : {1, 2, 3, 4, 5, 15, 16, 17, 1000, 4097}) {
    const detail::computed_permutation order(size, 11);
    std::vector<int> seen(static_cast<std::size_t>(size), 0);
    for (std::int64_t i = 0; i < size; ++i) ++seen[static_cast<std::size_t>(order(i))];
    CHECK(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
  }
  // As good as random: neighbours stay neighbours about twice in a permutation, and over many
  // seeds each place is as likely as any other (6000 draws of 6 places: 1000 each, deviation 29).
  const detail::computed_permutation order(10'000, 5);
  std::int64_t neighbours = 0;
  for (std::int64_t i = 0; i + 1 < 10'000; ++i)
    neighbours += std::abs(order(i) - order(i + 1)) == 1;
  CHECK(neighbours < 12);
  std::vector<int> counts(36, 0);
  for (std::uint64_t seed = 0; seed < 6000; ++seed)
    for (std::int64_t i = 0; i < 6; ++i)
      ++counts[static_cast<std::size_t>(6 * i + detail::computed_permutation(6, seed)(i))];
  for (const int count : counts) CHECK(std::abs(count - 1000) < 150);
  // 64 bits: beyond any set that exists.
  const std::int64_t huge = (std::int64_t{1} << 62) + 1;
  const detail::computed_permutation far(huge, 5);
  for (std::int64_t i : {std::int64_t{0}, huge / 2, huge - 1}) {
    CHECK(far(i) >= 0);
    CHECK(far(i) < huge);
  }
}

TEST_CASE(
    "held-out batches cover the set once, the last one short; a limit takes equal distances") {
  const sample s;
  const token_set set = s.set();
  const batch_shape shape{2, 30};
  held_out_token_batches all(set, end_of_text, shape);
  token_batch batch(shape.tokens());
  plain_batch read;
  plain_batch expected;
  for (std::int64_t i = 0; i < all.batches(); ++i) {
    all.fill(i, batch);
    read.append(batch);
  }
  for (std::int64_t at = 0; at < s.size(); at += shape.context)
    append_expected(expected, s, at, std::min(shape.context, s.size() - at));
  CHECK(read == expected);
  all.fill(all.batches(), batch);
  CHECK(batch.tokens() == 0);

  held_out_token_batches some(set, end_of_text, shape, s.size() / 3);
  std::int64_t tokens = 0;
  std::set<std::int64_t> places;
  for (std::int64_t i = 0; i < some.batches(); ++i) {
    some.fill(i, batch);
    tokens += batch.tokens();
    for (std::int64_t b = 0; b * shape.context < batch.tokens(); ++b)
      places.insert(place_of(s, batch.view().inputs + b * shape.context, shape.context));
  }
  CHECK(tokens <= s.size() / 3);
  CHECK(tokens >= s.size() / 3 - shape.context);
  CHECK(static_cast<std::int64_t>(places.size()) == s.size() / 3 / shape.context);
  CHECK(*places.begin() == 0);
  CHECK(*places.rbegin() > s.size() / 2);
}

TEST_CASE("filling allocates nothing") {
  const sample s;
  const token_set set = s.set();
  const batch_shape shape{4, 16};
  token_batches batches(set, end_of_text, shape, 1);
  held_out_token_batches held(set, end_of_text, shape);
  token_batch batch(shape.tokens());
  const std::int64_t before = smelt::test::allocations();
  CHECK(before > 0);  // the counter counts
  for (std::int64_t step = 0; step < 100; ++step) batches.fill(step, step % 3, 3, batch);
  for (std::int64_t i = 0; i < held.batches(); ++i) held.fill(i, batch);
  const std::int64_t after = smelt::test::allocations();
  CHECK(after == before);
}

TEST_CASE("bad input is one line with place, expected, found and remedy") {
  const sample s;
  const token_set set = s.set();
  const std::string place = s.paths[0].string() + " and 2 other shards";
  const std::string size = std::to_string(s.size());
  const auto refusal = [&](batch_shape shape, std::int64_t end = end_of_text) {
    return message_of([&] { token_batches(set, end, shape, 1); });
  };
  CHECK(refusal({1, s.size()}) == "");
  CHECK(refusal({1, s.size() + 1}) ==
        place + ": expected at least one batch of 1 sequences of " + std::to_string(s.size() + 1) +
            " tokens, found " + size +
            " tokens; name more shards or choose a smaller batch or context");
  CHECK(refusal({0, 8}) ==
        "batch of 0 sequences of 8 tokens: expected at least 1 of each and at most 2^40 tokens; "
        "choose others");
  CHECK(refusal({std::int64_t{1} << 62, 8}).find("at most 2^40") != std::string::npos);
  CHECK(refusal({1, 8}, vocabulary) ==
        place + ": expected an end-of-text id below 50001, found 50001; give the tokenizer's own");
  CHECK(refusal({1, 8}, 49'999) ==
        place + ": expected the end-of-text token 49999 somewhere in " + size +
            " tokens, found none; check which id the tokenizer ends a text with");
  const token_set wide(s.paths, std::int64_t{1} << 31);
  CHECK(message_of([&] {
          token_batches(wide, end_of_text, {1, 8}, 1);
        }) ==
        place +
            ": expected a vocabulary of at most 2147483647, found 2147483648; give the model's "
            "vocabulary");

  const batch_shape shape{2, 8};
  CHECK(message_of([&] { rank_share(shape, 0, 0); }) ==
        "rank_share: expected at least 1 rank, found 0; give the number of ranks");
  CHECK(message_of([&] { rank_share(shape, 2, 2); }) ==
        "rank_share: expected a rank of [0, 2), found 2; count the ranks from 0");
  CHECK(message_of([&] { rank_share(shape, -1, 2); }) ==
        "rank_share: expected a rank of [0, 2), found -1; count the ranks from 0");
  CHECK(message_of([&] { rank_share(shape, 0, 3); }) ==
        "batch of 2 sequences: expected at least 1 for each rank, found 3 ranks; make the batch "
        "larger or take fewer ranks");

  token_batches batches(set, end_of_text, shape, 1);
  token_batch batch(shape.tokens());
  token_batch small(shape.tokens() - 1);
  CHECK(message_of([&] { batches.fill(-1, batch); }) ==
        "token_batches: expected a step of [0, 4611686018427387902), found -1; count the steps "
        "from 0");
  CHECK(message_of([&] { batches.fill(std::numeric_limits<std::int64_t>::max(), batch); }) != "");
  CHECK(message_of([&] { batches.fill(4'611'686'018'427'387'901, batch); }) == "");
  CHECK(message_of([&] {
          batches.fill(3, sequence_range{1, 3}, batch);
        }) ==
        "step 3: expected sequences within [0, 2), found [1, 3); ask for at least 1 sequence of "
        "the batch");
  CHECK(message_of([&] { batches.fill(3, sequence_range{1, 1}, batch); }) != "");
  CHECK(message_of([&] { batches.fill(0, small); }) ==
        "token_batch: expected room for 16 tokens, found 15; make the batch larger");
  CHECK(small.tokens() == 0);
}

TEST_CASE("a token outside the vocabulary is named by file and position; the batch is left empty") {
  const sample s;
  const token_set narrow({s.paths}, vocabulary);
  const auto bad = s.folder / "bad.bin";
  token_writer writer(bad, token_format::llmc_uint16, 65'536);
  for (int i = 0; i < 64; ++i) writer.append(std::vector<int>{i == 40 ? 60'000 : 1, end_of_text});
  writer.finish();
  const token_set set({bad}, vocabulary);
  const batch_shape shape{16, 8};
  token_batches batches(set, end_of_text, shape, 1);
  token_batch batch(shape.tokens());
  // All of the set is in the first batch: the bad one too.
  REQUIRE(batches.sequences_per_epoch() == shape.sequences);
  const std::string expected =
      bad.string() +
      ": token at position 80: expected an id below 50001, found 60000; check that the tokenizer "
      "belongs to this vocabulary";
  CHECK(message_of([&] { batches.fill(0, batch); }) == expected);
  CHECK(batch.tokens() == 0);
  held_out_token_batches held(set, end_of_text, shape);
  CHECK(message_of([&] { held.fill(0, batch); }) == expected);
  CHECK(batch.tokens() == 0);
}

}  // namespace
