// SPDX-License-Identifier: Apache-2.0
//
// Batches: every token of an epoch once, targets that are the true next byte of the document, a
// split that keeps the held-out text out, and the same batch for whoever asks.
#include "smelt/train/data.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "support/allocation_counter.hpp"
#include "support/folder.hpp"

namespace {
using namespace smelt;

// Documents of ascending lengths in which each byte tells its document and its successor is known:
// document d is d, d+1, d+2, ... modulo 251, so a token's true successor is token + 1.
std::string counting_document(int first, std::size_t length) {
  std::string text;
  for (std::size_t i = 0; i < length; ++i)
    text.push_back(static_cast<char>((static_cast<std::size_t>(first) + i) % 251 + 1));
  return text;
}

struct sample {
  smelt_test::folder folder;
  text_corpus corpus;

  sample() {
    for (int d = 0; d < 30; ++d) {
      const std::string source = d < 20 ? "many/" : "few/";
      folder.write(source + std::to_string(d),
                   counting_document(d * 7, 40 + static_cast<std::size_t>(d) * 13));
    }
    corpus.add({"many", {folder / "many"}});
    corpus.add({"few", {folder / "few"}});
    corpus.add({"single", {folder.write("single", counting_document(3, 1000))}});
  }
};

std::vector<std::int32_t> copy(const std::int32_t* values, std::int64_t count) {
  return {values, values + count};
}

TEST_CASE("the split covers each source without overlap and holds out about its share") {
  const sample s;
  const text_split split = split_text(s.corpus, 10);
  REQUIRE(split.held_out.size() == 3);
  std::vector<int> covered(static_cast<std::size_t>(s.corpus.size()), 0);
  const auto cover = [&](const text_range& range) {
    for (std::int64_t i = range.begin; i < range.end; ++i) ++covered[static_cast<std::size_t>(i)];
  };
  for (const text_range& range : split.training) cover(range);
  for (std::size_t i = 0; i < 3; ++i) {
    const text_source& source = s.corpus.sources()[i];
    CHECK(split.held_out[i].name == source.name);
    const std::int64_t held = split.held_out[i].tokens();
    CHECK(held * 10 <= source.bytes);
    CHECK(held * 20 >= source.bytes - 20);
    for (const text_range& range : split.held_out[i].pieces) {
      cover(range);
      CHECK(range.begin >=
            s.corpus.documents()[static_cast<std::size_t>(source.first_document)].begin);
    }
  }
  CHECK(std::all_of(covered.begin(), covered.end(), [](int times) { return times == 1; }));
  // One document: its end.
  REQUIRE(split.held_out[2].pieces.size() == 1);
  CHECK(split.held_out[2].pieces[0] == text_range{s.corpus.size() - 100, s.corpus.size()});
}

TEST_CASE("a source more changes nothing for the others") {
  const smelt_test::folder folder;
  for (int d = 0; d < 50; ++d)
    folder.write("many/" + std::to_string(d),
                 counting_document(d, 60 + static_cast<std::size_t>(d)));
  const auto file = folder.write("first", "another source that is read before");
  text_corpus alone;
  alone.add({"many", {folder / "many"}});
  text_corpus both;
  both.add({"first", {file}});
  both.add({"many", {folder / "many"}});
  std::vector<text_range> moved = split_text(both).held_out[1].pieces;
  for (text_range& range : moved) {
    range.begin -= both.sources()[0].bytes;
    range.end -= both.sources()[0].bytes;
  }
  CHECK(moved == split_text(alone).held_out[0].pieces);
  CHECK(moved.size() > 1);
}

TEST_CASE("an epoch shows every sequence once; targets are true successors; -1 ends a document") {
  const sample s;
  const text_split split = split_text(s.corpus);
  const batch_shape shape{3, 50};
  training_batches batches(s.corpus, split, shape, 7);
  token_batch batch(shape.tokens());

  const std::int64_t sequences = split.training_tokens() / shape.context;
  CHECK(batches.sequences_per_epoch() == sequences);
  std::map<std::int32_t, std::int64_t> expected;  // how often each byte stands in the training text
  for (const text_range& range : split.training)
    for (std::int64_t i = range.begin; i < range.end; ++i) ++expected[s.corpus.bytes()[i]];

  std::map<std::int32_t, std::int64_t> seen;
  std::int64_t ends = 0;
  // Whole batches of the first epoch, and what the last one takes from it.
  for (std::int64_t step = 0; step * shape.sequences < sequences; ++step) {
    batches.fill(step, batch);
    const batch_view view = batch.view();
    REQUIRE(view.tokens == shape.tokens());
    REQUIRE(view.documents.tokens() == view.tokens);
    std::set<std::int64_t> starts;
    for (std::int64_t d = 0; d < view.documents.count; ++d) {
      REQUIRE(view.documents.length(d) > 0);
      starts.insert(view.documents.begin(d));
      for (std::int64_t i = 0; i < view.documents.length(d); ++i)
        REQUIRE(view.positions[view.documents.begin(d) + i] == i);
    }
    for (std::int64_t b = 0; b < shape.sequences; ++b) CHECK(starts.count(b * shape.context) == 1);
    const std::int64_t of_this_epoch =
        std::min(shape.sequences, sequences - step * shape.sequences) * shape.context;
    for (std::int64_t i = 0; i < of_this_epoch; ++i) {
      ++seen[view.inputs[i]];
      if (view.targets[i] == no_target) {
        ++ends;
        CHECK((i + 1 == view.tokens || starts.count(i + 1) == 1));
      } else {
        REQUIRE(view.targets[i] == view.inputs[i] % 251 + 1);
      }
    }
    CHECK(batch.counted() ==
          view.tokens - std::count(view.targets, view.targets + view.tokens, no_target));
  }
  // The rest of the stream, below one sequence, is left out; nothing comes twice.
  std::int64_t missing = 0;
  for (const auto& [byte, count] : expected) {
    CHECK(seen[byte] <= count);
    missing += count - seen[byte];
  }
  CHECK(missing == split.training_tokens() % shape.context);
  // Every document ends once, but for those in the rest.
  CHECK(ends <= static_cast<std::int64_t>(split.training.size()));
  CHECK(ends >= static_cast<std::int64_t>(split.training.size()) - 2);
}

TEST_CASE("the same seed and step give the same batch, in any order and over epochs") {
  const sample s;
  const text_split split = split_text(s.corpus);
  const batch_shape shape{4, 64};
  training_batches one(s.corpus, split, shape, 1);
  training_batches two(s.corpus, split, shape, 1);
  training_batches other(s.corpus, split, shape, 2);
  const std::int64_t per_epoch = one.sequences_per_epoch() / shape.sequences;
  token_batch a(shape.tokens());
  token_batch b(shape.tokens());
  for (const std::int64_t step : {3 * per_epoch + 1, std::int64_t{0}, per_epoch, std::int64_t{5}}) {
    one.fill(step, a);
    two.fill(step + 1, b);  // asked for something else in between
    two.fill(step, b);
    CHECK(copy(a.view().inputs, a.tokens()) == copy(b.view().inputs, b.tokens()));
    CHECK(copy(a.view().targets, a.tokens()) == copy(b.view().targets, b.tokens()));
    CHECK(a.view().documents.count == b.view().documents.count);
  }
  one.fill(0, a);
  other.fill(0, b);
  CHECK(copy(a.view().inputs, a.tokens()) != copy(b.view().inputs, b.tokens()));
  one.fill(2 * per_epoch, b);
  CHECK(copy(a.view().inputs, a.tokens()) != copy(b.view().inputs, b.tokens()));
}

TEST_CASE("held-out batches cover what is held out once, the last one short") {
  const sample s;
  const text_split split = split_text(s.corpus, 4);
  const batch_shape shape{2, 30};
  token_batch batch(shape.tokens());
  const text_split::held_out_source& held = split.held_out[0];
  const held_out_batches all(s.corpus, held, shape);
  std::vector<std::int32_t> read;
  for (std::int64_t i = 0; i < all.batches(); ++i) {
    all.fill(i, batch);
    const std::vector<std::int32_t> inputs = copy(batch.view().inputs, batch.tokens());
    read.insert(read.end(), inputs.begin(), inputs.end());
  }
  std::vector<std::int32_t> expected;
  for (const text_range& range : held.pieces)
    for (std::int64_t i = range.begin; i < range.end; ++i) expected.push_back(s.corpus.bytes()[i]);
  CHECK(read == expected);

  // A third of it, from beginning to end, whole sequences.
  const held_out_batches some(s.corpus, held, shape, held.tokens() / 3);
  std::int64_t tokens = 0;
  for (std::int64_t i = 0; i < some.batches(); ++i) {
    some.fill(i, batch);
    tokens += batch.tokens();
  }
  CHECK(tokens <= held.tokens() / 3);
  CHECK(tokens >= held.tokens() / 3 - 2 * shape.context);
}

TEST_CASE("filling a batch allocates nothing, not even where an epoch ends") {
  const sample s;
  const text_split split = split_text(s.corpus);
  const batch_shape shape{4, 64};
  training_batches batches(s.corpus, split, shape, 1);
  const held_out_batches held(s.corpus, split.held_out[0], shape);
  token_batch batch(shape.tokens());
  const std::int64_t before = smelt::test::allocations();
  CHECK(before > 0);  // the counter counts
  std::int64_t tokens = 0;
  const std::int64_t steps = 3 * batches.sequences_per_epoch() / shape.sequences;
  for (std::int64_t step = 0; step < steps; ++step) {
    batches.fill(step, batch);
    tokens += batch.view().tokens;
  }
  for (std::int64_t i = 0; i < held.batches(); ++i) held.fill(i, batch);
  const std::int64_t after = smelt::test::allocations();
  CHECK(after == before);
  CHECK(tokens > 2 * batches.tokens_per_epoch());
}

TEST_CASE("too little text, impossible shapes and an overfull batch are refused") {
  const sample s;
  const text_split split = split_text(s.corpus);
  const auto message = [&](batch_shape shape) {
    try {
      training_batches(s.corpus, split, shape, 1);
    } catch (const error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const std::int64_t tokens = split.training_tokens();
  CHECK(message({1, tokens}).empty());
  CHECK(message({1, tokens + 1})
            .find("many and 2 other sources: " + std::to_string(tokens) + " tokens") == 0);
  CHECK(message({tokens, 2}).find("smaller batch or context") != std::string::npos);
  CHECK(message({0, 8}).find("at least 1") != std::string::npos);
  CHECK(message({std::int64_t{1} << 62, 8}).find("at most 2^40") != std::string::npos);
  CHECK_THROWS_AS(token_batch(0), error);
  token_batch small(4);
  const std::uint8_t text[] = {1, 2, 3, 4, 5};
  small.add_segment(text, 3, 4);
  CHECK_THROWS_AS(small.add_segment(text, 2, 3), error);
  CHECK(small.tokens() == 3);
  CHECK_THROWS_AS(split_text(s.corpus, 1), error);
}

}  // namespace
