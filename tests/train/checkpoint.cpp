// SPDX-License-Identifier: Apache-2.0
//
// A resumed run is the straight run to the last bit: from every step, twice in a row, past the end
// of the text, with several micro-batches, on another number of threads.
#include "smelt/train/checkpoint.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "../model/small_models.hpp"
#include "checkpoint.hpp"
#include "support/folder.hpp"

using namespace smelt;
using namespace smelt::test;
namespace fs = std::filesystem;

namespace {

constexpr batch_shape shape{3, 16};
constexpr std::int64_t micro_batches = 2;

// A byte model, as text has bytes: grouped queries, a shared expert, tied head, looped.
template <class Body>
using byte_model = language_model<Body, vocabulary<256>, tied>;
using looped_bytes = byte_model<transformer<hidden<12>, gqa<4, 2, 4>, moe<5, 2, 6, shared<4>>,
                                            stack<plain<1>, looped<2, 2>, plain<1>>>>;

training_options options_of(std::int64_t steps) {
  training_options options = test_options(shape.tokens(), steps);
  options.schedule.warmup_steps = 3;
  options.schedule.decay_steps = 4;
  return options;
}

training_record record_of(std::int64_t steps) {
  return {.seed = 11,
          .options = options_of(steps),
          .sequences = shape.sequences,
          .context = shape.context,
          .micro_batches = micro_batches};
}

// A small text of which a run of a few steps passes the end several times.
struct small_text {
  smelt_test::folder folder;
  text_corpus corpus;
  text_split split;
  small_text() {
    std::string text;
    for (int i = 0; i < 62; ++i) text += "word " + std::to_string(i * 37 % 61) + " ";
    corpus.add({"words", {folder.write("words.txt", text)}});
    split = split_text(corpus);
  }
};

// Takes steps up to `last`; a step is two micro-batches, numbered from its own.
template <class Trainer>
void train_to(Trainer& t, const small_text& text, std::int64_t last) {
  training_batches batches(text.corpus, text.split, shape, 11);
  token_batch a(shape.tokens()), b(shape.tokens());
  while (t.steps() < last) {
    batches.fill(t.steps() * micro_batches, a);
    batches.fill(t.steps() * micro_batches + 1, b);
    const std::vector<batch_view> views{a.view(), b.view()};
    t.step(views);
  }
}

}  // namespace

TEST_CASE_TEMPLATE("k steps, save, load and N - k steps are N steps", Compute, float, bf16,
                   double) {
  using policy = host<Compute>;
  constexpr std::int64_t steps = 16;
  const small_text text;
  // The run passes the end of the text within a step, and once between two: before step 14.
  const training_batches batches(text.corpus, text.split, shape, 11);
  REQUIRE(batches.sequences_per_epoch() % shape.sequences != 0);
  REQUIRE(14 * micro_batches * shape.sequences == 3 * batches.sequences_per_epoch());

  trainer<looped_bytes, policy> straight(policy(1), options_of(steps), 11);
  train_to(straight, text, steps);
  const auto expected = everything(straight);
  for (const std::int64_t k : {0, 1, 4, 5, 9, 14, 15, 16}) {
    CAPTURE(k);
    const smelt_test::folder root;
    trainer<looped_bytes, policy> first(policy(1), options_of(steps), 11);
    CHECK(!resume(first, root.path(), record_of(steps)));
    train_to(first, text, k);
    const fs::path place = save(first, root.path(), record_of(steps));
    CHECK(place == root.path() / checkpoint_name(k));

    // Into a trainer of another seed that was at work meanwhile, on two threads.
    trainer<looped_bytes, policy> second(policy(2), options_of(steps), 99);
    train_to(second, text, 3);
    const auto found = resume(second, root.path(), record_of(steps));
    REQUIRE(found);
    CHECK(found->step == k);
    CHECK(everything(second) == everything(first));
    train_to(second, text, steps);
    CHECK(everything(second) == expected);
  }
}

TEST_CASE_TEMPLATE("stopped twice and more, once right after a load, is as if never stopped",
                   Compute, float, bf16) {
  using policy = host<Compute>;
  constexpr std::int64_t steps = 12;
  const small_text text;
  trainer<looped_bytes, policy> straight(policy(2), options_of(steps), 11);
  train_to(straight, text, steps);
  const smelt_test::folder root;
  int threads = 1;
  for (const std::int64_t stop : {3, 4, 4, 9, 12}) {
    trainer<looped_bytes, policy> t(policy(threads), options_of(steps), 11);
    resume(t, root.path(), record_of(steps));
    train_to(t, text, stop);
    save(t, root.path(), record_of(steps));
    threads = 3 - threads;
  }
  trainer<looped_bytes, policy> last(policy(1), options_of(steps), 11);
  REQUIRE(resume(last, root.path(), record_of(steps)));
  CHECK(everything(last) == everything(straight));
}

TEST_CASE_TEMPLATE("every kind of model goes there and back", Model, looped_moe, shared_expert,
                   mixed, dense_looped, one_layer, plain_dense) {
  const token_batch batch = documents_of({30, 11}, 5);
  const smelt_test::folder root;
  trainer<Model, host<float>> a(host<>(1), test_options(41), 1), b(host<>(1), test_options(41), 2);
  a.step(batch.view());
  const fs::path place = save(a, root.path(), {});
  load(b, place);
  CHECK(everything(a) == everything(b));
  a.step(batch.view());
  b.step(batch.view());
  CHECK(everything(a) == everything(b));
  // The same trainer gives the same bytes, and a tied head is stored once (case 27).
  const safetensors_file file(place / checkpoint_weights);
  CHECK(file.contains("head") == !Model::is_tied);
  CHECK(file.metadata().contains("head") == Model::is_tied);
  std::size_t tensors = 0;
  for_each_tensor(a.plan(), [&](const std::string& name, const tensor_place& where) {
    CHECK(file.tensor(name).shape == std::vector<std::int64_t>{where.rows, where.columns});
    CHECK(file.tensor(name).type == dtype::f32);
    ++tensors;
  });
  CHECK(file.tensors().size() == tensors);
}

TEST_CASE("a tensor in many pieces is the same file") {
  const smelt_test::folder root;
  trainer<mixed, host<float>> t(host<>(1), test_options(20), 1);
  alone one;
  const auto tensors = detail::weight_tensors<float>(t, detail::part_choice::to_write);
  const auto whole = detail::write_tensors(one, t.policy(), root / "whole", tensors, {});
  const auto pieces = detail::write_tensors(one, t.policy(), root / "pieces", tensors, {}, 7);
  CHECK(whole.xxh64 == pieces.xxh64);
  CHECK(text_of(root / "whole") == text_of(root / "pieces"));
}

TEST_CASE("a checkpoint in float32 goes on in bf16 by load, and not by resume") {
  const smelt_test::folder root;
  const token_batch batch = documents_of({20}, 5);
  trainer<looped_moe, host<float>> a(host<>(1), test_options(20), 1);
  a.step(batch.view());
  const fs::path place = save(a, root.path(), {});
  trainer<looped_moe, host<bf16>> b(host<bf16>(1), test_options(20), 2);
  CHECK(ends_with(message_of([&] { resume(b, root.path(), {}); }),
                  "state.json: compute: expected \"BF16\", found \"F32\"; resume with what the run "
                  "was started with, or start another run"));
  CHECK(load(b, place).compute == "F32");
  CHECK(weights_of(a) == weights_of(b));
  CHECK(b.steps() == 1);
  for (std::int64_t i = 0; i < b.plan().elements; ++i)  // and the copy that products read is fresh
    CHECK(b.state().copy_data()[i].bits == bf16(a.state().weights.data()[i]).bits);
}
