// SPDX-License-Identifier: Apache-2.0
//
// Stands in where SentencePiece was not found.
#include "smelt/io/message.hpp"
#include "tokenizer.hpp"

namespace smelt_tokens {

std::unique_ptr<tokenizer> sentencepiece_tokenizer(const std::filesystem::path& model) {
  throw smelt::detail::io_error(model.string(), "the tokenizer bytes",
                                "a model, and a smelt-tokens without SentencePiece",
                                "install libsentencepiece-dev and build again");
}

}  // namespace smelt_tokens
