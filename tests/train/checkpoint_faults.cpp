// SPDX-License-Identifier: Apache-2.0
//
// A checkpoint that is broken, or of another model or run: one line, and nothing has changed.
#include "smelt/train/checkpoint.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "../model/small_models.hpp"
#include "checkpoint.hpp"
#include "support/folder.hpp"

using namespace smelt;
using namespace smelt::test;
namespace fs = std::filesystem;

namespace {
// A checkpoint, and a trainer that must not change when it is refused.
struct broken {
  smelt_test::folder root;
  fs::path place;
  trainer<looped_moe, host<float>> t{host<>(1), test_options(20), 2};
  std::vector<double> before;

  broken() {
    const token_batch batch = documents_of({20}, 5);
    trainer<looped_moe, host<float>> from(host<>(1), test_options(20), 1);
    from.step(batch.view());
    place = save(from, root.path(), {});
    t.step(batch.view());
    t.step(batch.view());
    before = everything(t);
  }
  std::string message() {
    const std::string found = message_of([&] { load(t, place); });
    CHECK(everything(t) == before);
    CHECK(found.find('\n') == std::string::npos);
    return found;
  }
  void edit(const char* file, const std::string& from, const std::string& to) const {
    put(place / file, replaced(text_of(place / file), from, to));
  }
  // state.json with a changed field, and checksums that agree again.
  void edit_state(const std::string& field, const nlohmann::ordered_json& value) const {
    auto json = nlohmann::ordered_json::parse(text_of(place / checkpoint_record));
    json.erase("checksum");
    json[field] = value;
    json["checksum"] = detail::json_checksum(json);
    put(place / checkpoint_record, json.dump(2));
  }
};
}  // namespace

TEST_CASE("damage to the tensors is one line that names the file") {
  broken b;
  const std::string weights = text_of(b.place / checkpoint_weights);
  SUBCASE("a flipped bit") {
    std::string bytes = weights;
    bytes[bytes.size() - 100] = static_cast<char>(bytes[bytes.size() - 100] ^ 1);
    put(b.place / checkpoint_weights, bytes);
    const std::string found = b.message();
    CHECK(found.find("weights.safetensors: checksum: expected ") != std::string::npos);
    CHECK(ends_with(found, "; the file was changed or damaged: use another checkpoint"));
    put(b.place / checkpoint_weights, weights);
    bytes = text_of(b.place / checkpoint_optimizer);
    bytes.back() = static_cast<char>(bytes.back() ^ 64);
    put(b.place / checkpoint_optimizer, bytes);
    CHECK(b.message().find("optimizer.safetensors: checksum: expected ") != std::string::npos);
  }
  SUBCASE("truncated") {
    put(b.place / checkpoint_weights, weights.substr(0, weights.size() - 4));
    CHECK(b.message().find("weights.safetensors: ") != std::string::npos);
    CHECK(b.message().find("the file is truncated") != std::string::npos);
  }
  SUBCASE("cut to nothing") {
    put(b.place / checkpoint_optimizer, "");
    CHECK(b.message().find("optimizer.safetensors: expected at least 8 bytes") !=
          std::string::npos);
  }
  SUBCASE("oversized") {
    put(b.place / checkpoint_optimizer, text_of(b.place / checkpoint_optimizer) + "more");
    CHECK(b.message().find("optimizer.safetensors: expected ") != std::string::npos);
  }
  SUBCASE("missing") {
    fs::remove(b.place / checkpoint_optimizer);
    CHECK(b.message().find("optimizer.safetensors: expected a readable file, found No such file") !=
          std::string::npos);
  }
  SUBCASE("another version") {
    b.edit(checkpoint_weights, R"("smelt.version":"1")", R"("smelt.version":"2")");
    CHECK(ends_with(b.message(),
                    "weights.safetensors: __metadata__ smelt.version: expected '1', found '2'; "
                    "read it with the version of this library that wrote it"));
  }
  SUBCASE("the files in each other's place") {
    fs::copy_file(b.place / checkpoint_optimizer, b.place / checkpoint_weights,
                  fs::copy_options::overwrite_existing);
    CHECK(b.message().find("__metadata__ smelt.content: expected 'weights', found 'adamw "
                           "moments'") != std::string::npos);
  }
  SUBCASE("tensors of another name, type or shape") {
    b.edit(checkpoint_weights, "layers.1.query\"", "layers.1.quern\"");
    CHECK(b.message().find("weights.safetensors: tensor 'layers.1.query': expected it in the file, "
                           "found ") != std::string::npos);
    put(b.place / checkpoint_weights, replaced(weights, R"("dtype":"F32")", R"("dtype":"I32")"));
    CHECK(b.message().find("weights.safetensors: tensor 'embedding': expected F32 [11, 12], found "
                           "I32 [11, 12]") != std::string::npos);
    put(b.place / checkpoint_weights, replaced(weights, "[11,12]", "[12,11]"));
    CHECK(b.message().find("tensor 'embedding': expected F32 [11, 12], found F32 [12, 11]") !=
          std::string::npos);
  }
  SUBCASE("a tensor too many") {
    const safetensors_file file(b.place / checkpoint_weights);
    std::vector<tensor_view> tensors;
    for (const tensor_info& info : file.tensors())
      tensors.push_back({info.name, info.type, info.shape, file.bytes(info.name)});
    const std::vector<float> one{1.0F};
    tensors.push_back(view_tensor("bias", {1}, std::span<const float>(one)));
    write_safetensors(b.place / checkpoint_weights, tensors, file.metadata());
    CHECK(b.message().find("weights.safetensors: tensor 'bias': expected only tensors of the "
                           "model, found F32 [1]") != std::string::npos);
  }
}

TEST_CASE("damage to state.json is one line that names the field (case 32)") {
  broken b;
  const std::string state = text_of(b.place / checkpoint_record);
  const auto with = [&](const std::string& text) {
    put(b.place / checkpoint_record, text);
    return b.message();
  };
  CHECK(with("").find("state.json: expected a JSON object, found no valid JSON") !=
        std::string::npos);
  CHECK(with("[1]").find("state.json: expected a JSON object, found array") != std::string::npos);
  CHECK(with(std::string(40000, '[')).find("found no valid JSON") != std::string::npos);
  CHECK(with(state.substr(0, state.size() / 2)).find("found no valid JSON") != std::string::npos);
  CHECK(with(std::string(2 << 20, ' '))
            .find("state.json: expected at most 1048576 bytes, found "
                  "2097152 bytes") != std::string::npos);
  CHECK(with("{}").find("state.json: format: expected this field, found none") !=
        std::string::npos);
  CHECK(with(replaced(state, "smelt checkpoint", "other"))
            .find("state.json: format: expected 'smelt checkpoint', found 'other'") !=
        std::string::npos);
  CHECK(ends_with(with(replaced(state, "\"version\": 1", "\"version\": 2")),
                  "state.json: version: expected 1, found 2; read it with the version of this "
                  "library that wrote it"));
  CHECK(with(replaced(state, "\"step\": 1", "\"step\": 2")).find("state.json: checksum: ") !=
        std::string::npos);
  put(b.place / checkpoint_record, state);
  // With a checksum that agrees, the fields themselves are still not believed.
  b.edit_state("step", -1);
  CHECK(b.message().find("state.json: step: expected a whole number of at least 0") !=
        std::string::npos);
  b.edit_state("step", 18446744073709551615U);
  CHECK(b.message().find("state.json: step: expected a whole number") != std::string::npos);
  b.edit_state("step", "1");
  CHECK(b.message().find("state.json: step: expected a whole number of at least 0, found string") !=
        std::string::npos);
  b.edit_state("step", 1);
  b.edit_state("files", {{checkpoint_weights, 3}});
  CHECK(b.message().find("state.json: files: 'weights.safetensors': bytes: ") != std::string::npos);
  b.edit_state("files", nlohmann::ordered_json::object());
  CHECK(b.message().find("weights.safetensors: expected a note of it in state.json, found none") !=
        std::string::npos);
}

TEST_CASE("another architecture is refused by its first difference, in words") {
  broken b;
  const token_batch batch = documents_of({20}, 5);
  const auto refused = [&](auto& t) { return message_of([&] { load(t, b.place); }); };
  const std::string remedy = "; load it into the type that it was saved from";
  {
    trainer<plain_moe, host<float>> t(host<>(1), test_options(20), 1);
    CHECK(ends_with(refused(t),
                    "weights.safetensors: architecture: hidden: expected 8, found '12'" + remedy));
    CHECK(t.steps() == 0);
  }
  {
    trainer<shared_expert, host<float>> t(host<>(1), test_options(20), 1);
    CHECK(ends_with(
        refused(t),
        "weights.safetensors: architecture: head: expected tied, found 'untied'" + remedy));
  }
  {
    // The same tensors in every shape: only the number of visits is another.
    using thrice = tiny<transformer<hidden<12>, gqa<4, 2, 4>, moe<5, 2, 6>,
                                    stack<plain<1>, looped<2, 3>, plain<1>>>>;
    trainer<thrice, host<float>> t(host<>(1), test_options(20), 1);
    CHECK(ends_with(
        refused(t),
        "weights.safetensors: architecture: span.1.visits: expected 3, found '2'" + remedy));
  }
  {
    trainer<looped_moe, host<double>> t(host<double>(1), test_options(20), 1);
    CHECK(refused(t).find("tensor 'embedding': expected F64 [11, 12], found F32 [11, 12]") !=
          std::string::npos);
  }
  const auto here = architecture_fields<looped_moe>();
  const std::string text = architecture_text(here);
  CHECK_NOTHROW(expect_architecture(here, text, "f"));
  CHECK_THROWS_WITH(expect_architecture(here, "", "f"),
                    ("f: architecture: hidden: expected 12, found no such field" + remedy).c_str());
  CHECK_THROWS_WITH(
      expect_architecture(here, text + " depth=\nx", "f"),
      ("f: architecture: expected the type's own fields, found 'depth' as well" + remedy).c_str());
  CHECK_THROWS_WITH(
      expect_architecture(here, text + " hidden=12", "f"),
      ("f: architecture: expected every field once, found 'hidden' a second time" + remedy)
          .c_str());
  // Spans that are apart only in the type are one network.
  using apart = tiny<
      transformer<hidden<8>, gqa<2, 2, 4>, moe<4, 2, 8>, stack<plain<1>, plain<1>, looped<1, 1>>>>;
  CHECK(architecture_fields<apart>() == architecture_fields<plain_moe>());
}

TEST_CASE("resume refuses another record by its first difference") {
  const smelt_test::folder root;
  trainer<looped_moe, host<float>> t(host<>(1), test_options(20), 1);
  training_record record{.seed = 1, .options = test_options(20)};
  record.options.beta2 = 0.1 + 0.2;  // a number that needs all its digits
  record.notes["who"] = "a test";
  save(t, root.path(), record);
  const auto found = resume(t, root.path(), record);
  REQUIRE(found);
  CHECK(found->record.options.beta2 == 0.1 + 0.2);
  CHECK(found->record.notes.at("who") == "a test");
  training_record other = record;
  other.notes.clear();  // not compared
  CHECK(resume(t, root.path(), other));
  other.options.beta2 = 0.3;
  other.options.clip_norm = 7.0;
  CHECK(ends_with(message_of([&] { resume(t, root.path(), other); }),
                  "state.json: options.beta2: expected 0.3, found 0.30000000000000004; resume with "
                  "what the run was started with, or start another run"));
  other = record;
  other.seed = ~std::uint64_t{0};
  CHECK(ends_with(message_of([&] { resume(t, root.path(), other); }),
                  "state.json: seed: expected 18446744073709551615, found 1; resume with what the "
                  "run was started with, or start another run"));
  record.notes["who"] = "\xff";
  CHECK(message_of([&] { save(t, root.path(), record); }).find("notes: expected text in UTF-8") !=
        std::string::npos);
  record.notes.clear();
  record.options.beta1 = std::nan("");
  CHECK(message_of([&] {
          save(t, root.path(), record);
        }).find("state.json: options.beta1: expected a finite number") != std::string::npos);
  CHECK(names_in(root.path()) == std::vector<std::string>{"step-00000000"});  // nothing is left
}

TEST_CASE("a step in flight is neither saved nor loaded into") {
  const smelt_test::folder root;
  const token_batch batch = documents_of({20}, 5);
  trainer<looped_moe, host<float>> t(host<>(1), test_options(20), 1);
  const fs::path place = save(t, root.path(), {});
  t.submit(batch.view());
  CHECK_THROWS_AS(save(t, root.path(), {}), error);
  CHECK_THROWS_AS(load(t, place), error);
  t.finish();
  CHECK_NOTHROW(save(t, root.path(), {}));
}
