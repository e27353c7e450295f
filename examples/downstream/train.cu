// SPDX-License-Identifier: Apache-2.0
//
// CUDA: a small looped model learns one sentence by heart. No host library of products is needed.
#include <cstdio>
#include <exception>
#include <smelt/cuda.hpp>
#include <string_view>

using looped = smelt::language_model<
    smelt::transformer<smelt::hidden<32>, smelt::gqa<2, 1, 32>, smelt::moe<4, 2, 16>,
                       smelt::stack<smelt::looped<1, 2>>>,
    smelt::vocabulary<128>, smelt::tied>;

int main() try {
  constexpr std::string_view text = "the middle half of the layers executed twice";
  smelt::token_batch batch(text.size());
  batch.add_segment(text.data(), text.size(), smelt::no_target);

  smelt::training_options options;
  options.batch_tokens = batch.tokens();
  options.schedule = {.peak = 1e-2, .warmup_steps = 0, .decay_steps = 0, .steps = 20};
  smelt::trainer<looped, smelt::cuda<smelt::bf16>> trainer(smelt::cuda<smelt::bf16>(), options, 1);
  double first = 0, last = 0;
  for (int step = 0; step < 20; ++step) {
    last = trainer.step(batch.view()).loss;
    if (step == 0) first = last;
  }
  std::printf("loss %.3f -> %.3f: %s\n", first, last, last < 0.7 * first ? "learned" : "no");
} catch (const std::exception& e) {
  std::fprintf(stderr, "train: %s\n", e.what());
  return 1;
}
