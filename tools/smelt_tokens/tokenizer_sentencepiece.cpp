// SPDX-License-Identifier: Apache-2.0
//
// A SentencePiece model as tokenizer.
#include <sentencepiece_processor.h>

#include "smelt/io/message.hpp"
#include "tokenizer.hpp"

namespace smelt_tokens {
namespace {

class sentencepiece final : public tokenizer {
 public:
  explicit sentencepiece(const std::filesystem::path& model)
      : name_("sentencepiece " + model.filename().string()) {
    if (const auto status = processor_.Load(model.string()); !status.ok())
      throw smelt::detail::io_error(model.string(), "a SentencePiece model",
                                    smelt::detail::quoted_name(status.ToString()),
                                    "name the tokenizer bytes or a .model file");
    if (processor_.eos_id() < 0)
      throw smelt::detail::io_error(model.string(), "an end-of-sentence piece", "none",
                                    "train the model with one");
  }
  std::string name() const override { return name_; }
  std::int64_t vocabulary() const override { return processor_.GetPieceSize(); }
  std::int64_t end_of_text() const override { return processor_.eos_id(); }
  void encode(std::string_view text, std::vector<std::int64_t>& ids) const override {
    ids.clear();
    for (const int id : processor_.EncodeAsIds({text.data(), text.size()})) ids.push_back(id);
  }

 private:
  ::sentencepiece::SentencePieceProcessor processor_;
  std::string name_;
};

}  // namespace

std::unique_ptr<tokenizer> sentencepiece_tokenizer(const std::filesystem::path& model) {
  return std::make_unique<sentencepiece>(model);
}

}  // namespace smelt_tokens
