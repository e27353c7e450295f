// SPDX-License-Identifier: Apache-2.0
//
// train FOLDER STEPS EVERY [THREADS]: a run that may be killed at any moment.
//
// Trains a tiny looped model on a text that it makes itself, writes a checkpoint to FOLDER every
// EVERY steps and goes on from whatever it finds there. Ends with 0 and a checkpoint of the last
// step when STEPS are taken, with 1 and one line on an error. Says at which step it starts, so that
// a script can measure the start alone.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "smelt/host.hpp"
#include "smelt/io/file.hpp"
#include "smelt/train/checkpoint.hpp"

namespace {
using namespace smelt;

using body =
    transformer<hidden<32>, gqa<4, 2, 8>, moe<8, 2, 16>, stack<plain<1>, looped<2, 2>, plain<1>>>;
using model = language_model<body, vocabulary<256>, tied>;

// Sentences of numbers; short, so that a run passes its end often.
std::filesystem::path make_text(const std::filesystem::path& folder) {
  std::string text;
  for (int i = 0; i < 300; ++i)
    text += "line " + std::to_string(i * 7919 % 307) + " follows " + std::to_string(i) + ".\n";
  std::filesystem::create_directories(folder);
  // Whole or not at all: the program may be killed here too.
  atomic_file file(folder / "text.txt");
  file.write(std::as_bytes(std::span(text)));
  file.finish();
  return file.path();
}

int run(const std::filesystem::path& folder, std::int64_t steps, std::int64_t every, int threads) {
  constexpr batch_shape shape{4, 32};
  constexpr std::int64_t micro_batches = 2;
  text_corpus corpus;
  corpus.add({"lines", {make_text(folder)}});
  const text_split split = split_text(corpus);

  training_record record{.seed = 3,
                         .sequences = shape.sequences,
                         .context = shape.context,
                         .micro_batches = micro_batches};
  const auto bytes =
      std::as_bytes(std::span(corpus.bytes(), static_cast<std::size_t>(corpus.size())));
  record.corpus = checksum_of(bytes).value();
  record.options.batch_tokens = shape.tokens();
  record.options.schedule = {
      .peak = 3e-3, .warmup_steps = steps / 10, .decay_steps = steps / 4, .steps = steps};

  trainer<model, host<float>> t(host<>(threads), record.options, record.seed);
  const auto found = resume(t, folder, record);
  std::cout << "from step " << (found ? found->step : 0) << std::endl;
  training_batches batches(corpus, split, shape, record.seed);
  token_batch first(shape.tokens()), second(shape.tokens());
  std::int64_t saved = found ? found->step : -1;
  const auto checkpoint = [&] {
    if (saved == t.steps()) return;
    save(t, folder, record, {.last = 2, .branch_points = {steps / 2}});
    saved = t.steps();
  };
  while (t.steps() < steps) {
    batches.fill(t.steps() * micro_batches, first);
    batches.fill(t.steps() * micro_batches + 1, second);
    const std::vector<batch_view> views{first.view(), second.view()};
    t.step(views);
    if (t.steps() % every == 0) checkpoint();
  }
  checkpoint();
  std::cout << "at step " << t.steps() << std::endl;
  return 0;
}
}  // namespace

int main(int count, char** arguments) {
  try {
    if (count < 4) throw smelt::error("usage: train FOLDER STEPS EVERY [THREADS]");
    return run(arguments[1], std::atoll(arguments[2]), std::atoll(arguments[3]),
               count > 4 ? std::atoi(arguments[4]) : 1);
  } catch (const std::exception& e) {
    std::cerr << e.what() << std::endl;
    return 1;
  }
}
