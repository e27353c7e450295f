// SPDX-License-Identifier: Apache-2.0
//
// From text to token ids.
//
//   bytes           id = the byte; 256 ends a text; vocabulary 257
//   SentencePiece   a model's own ids, its end-of-sentence piece ends a text; where the library
//                   was found at configure time (tokenizer_sentencepiece.cpp)
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace smelt_tokens {

class tokenizer {
 public:
  virtual ~tokenizer() = default;
  /// As the manifest names it.
  virtual std::string name() const = 0;
  virtual std::int64_t vocabulary() const = 0;
  virtual std::int64_t end_of_text() const = 0;
  /// Replaces `ids` by those of a document, without the end of the text.
  virtual void encode(std::string_view text, std::vector<std::int64_t>& ids) const = 0;
};

class byte_tokenizer final : public tokenizer {
 public:
  std::string name() const override { return "bytes"; }
  std::int64_t vocabulary() const override { return 257; }
  std::int64_t end_of_text() const override { return 256; }
  void encode(std::string_view text, std::vector<std::int64_t>& ids) const override {
    ids.clear();
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  }
};

/// @throws smelt::error naming the model where it cannot be loaded or has no end-of-sentence piece,
///         or where this program was built without the library.
std::unique_ptr<tokenizer> sentencepiece_tokenizer(const std::filesystem::path& model);

/// "bytes" or the path of a SentencePiece model.
inline std::unique_ptr<tokenizer> make_tokenizer(const std::string& name) {
  if (name == "bytes") return std::make_unique<byte_tokenizer>();
  return sentencepiece_tokenizer(name);
}

}  // namespace smelt_tokens
