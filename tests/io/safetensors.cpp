// SPDX-License-Identifier: Apache-2.0
//
// Whole safetensors files: the bytes of a known one, there and back, and what a writer or a reader
// must refuse. Broken headers are in safetensors_header.cpp.
#include "smelt/io/safetensors.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "io/bytes.hpp"
#include "support/folder.hpp"

namespace {
using namespace smelt;
using namespace smelt_test;
using namespace std::string_literals;

const std::vector<float> floats{1.0F, -2.0F};
const std::vector<std::uint8_t> small_numbers{1, 2, 3};
const std::vector<std::int64_t> one_number{-1};
const std::vector<bf16> halves{bf16(1.0F), bf16(-0.5F)};

std::vector<tensor_view> known_tensors() {
  return {view_tensor<std::uint8_t>("a", {3}, small_numbers), view_tensor<float>("b", {2}, floats),
          view_tensor<bf16>("c", {1, 2}, halves), view_tensor<std::int64_t>("z", {}, one_number)};
}

// By hand from the format's description: by alignment z (8), b (4), c (2), a (1).
std::string known_bytes() {
  const std::string header = R"({"__metadata__":{"format":"pt"},)"
                             R"("z":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
                             R"("b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},)"
                             R"("c":{"dtype":"BF16","shape":[1,2],"data_offsets":[16,20]},)"
                             R"("a":{"dtype":"U8","shape":[3],"data_offsets":[20,23]}})"
                             "      ";
  return "\0\1\0\0\0\0\0\0"s + header + "\xff\xff\xff\xff\xff\xff\xff\xff" +
         "\0\0\x80\x3f\0\0\0\xc0"s + "\x80\x3f\0\xbf"s + "\1\2\3";
}

TEST_CASE("a known file, bit for bit, in whatever order the tensors are given") {
  const folder folder;
  REQUIRE(known_bytes().size() == 8 + 256 + 23);
  std::vector<tensor_view> tensors = known_tensors();
  for (int order = 0; order < 24; ++order) {
    const written_file written = write_safetensors(folder / "f", tensors, {{"format", "pt"}});
    REQUIRE(text_of(folder / "f") == known_bytes());
    CHECK(written.size_bytes == 287);
    CHECK(written.checksum.value() == checksum_of(span_of(known_bytes())).value());
    std::next_permutation(
        tensors.begin(), tensors.end(),
        [](const tensor_view& a, const tensor_view& b) { return a.name < b.name; });
  }
  CHECK(entries_of(folder.path()) == 1);
}

TEST_CASE("what was written is read back, in place") {
  const folder folder;
  write_safetensors(folder / "f", known_tensors(), {{"format", "pt"}});
  const safetensors_file file(folder / "f");
  CHECK(file.path() == folder / "f");
  CHECK(file.metadata() == std::map<std::string, std::string>{{"format", "pt"}});
  CHECK(file.names() == std::vector<std::string>{"a", "b", "c", "z"});
  CHECK(file.tensors().front().name == "z");
  CHECK(file.checksum().value() == checksum_of(span_of(known_bytes())).value());
  CHECK(file.contains("b"));
  CHECK_FALSE(file.contains("d"));
  CHECK(file.tensor("c").shape == std::vector<std::int64_t>{1, 2});
  CHECK(file.tensor("c").type == dtype::bf16);
  CHECK(file.tensor("c").count() == 2);
  CHECK(file.tensor("z").count() == 1);
  CHECK(std::ranges::equal(file.view<float>("b"), floats));
  CHECK(std::ranges::equal(file.view<std::int64_t>("z"), one_number));
  CHECK(file.view<bf16>("c")[1].bits == 0xbf00);
  CHECK(std::ranges::equal(file.bytes("a"), std::as_bytes(std::span(small_numbers))));
  std::vector<float> copied(2);
  file.copy<float>("b", std::vector<std::int64_t>{2}, copied);
  CHECK(copied == floats);
}

TEST_CASE("files without tensors, and tensors without elements") {
  const folder folder;
  write_safetensors(folder / "none", {});
  CHECK(text_of(folder / "none") == "\x08\0\0\0\0\0\0\0{}      "s);
  CHECK(safetensors_file(folder / "none").tensors().empty());

  const std::vector<tensor_view> empty{view_tensor<float>("e", {0, 4}, {}),
                                       view_tensor<float>("d", {2}, floats),
                                       view_tensor<float>("c", {3, 0}, {})};
  write_safetensors(folder / "empty", empty);
  const safetensors_file file(folder / "empty");
  CHECK(file.view<float>("e").empty());
  CHECK(file.tensor("c").count() == 0);
  CHECK(std::ranges::equal(file.view<float>("d"), floats));
  file.copy<float>("c", std::vector<std::int64_t>{3, 0}, std::span<float>{});
}

TEST_CASE("every element type keeps its name, its size and its alignment") {
  const folder folder;
  const std::string data(24, 'x');
  std::vector<tensor_view> tensors;
  for (int i = 0; i <= static_cast<int>(dtype::u64); ++i) {
    const auto type = static_cast<dtype>(i);
    CHECK(dtype_named(dtype_name(type)) == type);
    tensors.push_back({std::string(dtype_name(type)),
                       type,
                       {24 / dtype_bytes(type)},
                       std::as_bytes(std::span(data))});
  }
  REQUIRE(tensors.size() == 15);
  write_safetensors(folder / "f", tensors);
  const safetensors_file file(folder / "f");
  std::int64_t last_bytes = 8;
  for (const tensor_info& tensor : file.tensors()) {
    CHECK(tensor.name == dtype_name(tensor.type));
    CHECK(dtype_bytes(tensor.type) <= last_bytes);
    last_bytes = dtype_bytes(tensor.type);
    const auto address = reinterpret_cast<std::uintptr_t>(file.bytes(tensor.name).data());
    CHECK(address % static_cast<std::uintptr_t>(last_bytes) == 0);
    CHECK(file.bytes(tensor.name).size() == 24);
  }
  CHECK(file.view<std::uint16_t>("U16").size() == 12);
  CHECK(file.view<double>("F64").size() == 3);
  CHECK_FALSE(dtype_named("f32"));
  CHECK_FALSE(dtype_named(""));
  static_assert(dtype_of<float> == dtype::f32 && dtype_of<bf16> == dtype::bf16);
  static_assert(!tensor_element<bool> && !tensor_element<long double>);
}

TEST_CASE("a checkpoint's names come in natural order; in the file they stand as bytes sort them") {
  const folder folder;
  std::vector<tensor_view> tensors;
  for (int expert = 0; expert < 12; ++expert)
    tensors.push_back(view_tensor<float>("experts." + std::to_string(expert), {2}, floats));
  write_safetensors(folder / "f", tensors);
  const safetensors_file file(folder / "f");
  const std::vector<std::string> names = file.names();
  REQUIRE(names.size() == 12);
  CHECK(names[2] == "experts.2");
  CHECK(names[10] == "experts.10");
  CHECK(file.tensors()[2].name == "experts.10");
}

TEST_CASE("names and texts that JSON must escape") {
  const folder folder;
  const std::string odd = "quote \" backslash \\ tab \t line \n bell \a del \x7f caf\xc3\xa9 /";
  const std::vector<tensor_view> tensors{view_tensor<float>(odd, {2}, floats),
                                         view_tensor<float>("", {2}, floats)};
  write_safetensors(folder / "f", tensors, {{odd, odd}, {"", ""}});
  const safetensors_file file(folder / "f");
  CHECK(std::ranges::equal(file.view<float>(odd), floats));
  CHECK(file.contains(""));
  CHECK(file.metadata().at(odd) == odd);
  CHECK(text_of(folder / "f").find(R"(tab \t line \n bell \u0007 del )") != std::string::npos);
  const auto refused = [&](const std::vector<tensor_view>& views,
                           const std::map<std::string, std::string>& metadata) {
    return message_of([&] { write_safetensors(folder / "g", views, metadata); });
  };
  const std::string g = (folder / "g").string();
  CHECK(refused({view_tensor<float>("\xff", {2}, floats)}, {}) ==
        g + ": tensor '\\xff': expected text in UTF-8, found '\\xff'; name it otherwise");
  CHECK(refused({}, {{"key", "\xc3"}}) ==
        g + ": __metadata__ 'key': expected text in UTF-8, found '\\xc3'; name it otherwise");
  CHECK_FALSE(std::filesystem::exists(folder / "g"));
}

TEST_CASE("a writer refuses what would make a broken file, and leaves the old one") {
  const folder folder;
  const auto path = folder.write("f", "old");
  const auto refused = [&](const std::vector<tensor_view>& views) {
    return message_of([&] { write_safetensors(path, views); });
  };
  const std::string f = path.string() + ": tensor ";
  CHECK(refused({view_tensor<float>("a", {2}, floats), view_tensor<float>("a", {2}, floats)}) ==
        f + "'a': expected every name once, and none reserved, found it a second time; name a "
            "shared tensor once, and its aliases in the metadata");
  CHECK(refused({view_tensor<float>("a", {2}, floats),
                 view_tensor<std::uint8_t>("a", {3}, small_numbers)}) != "");
  CHECK(refused({view_tensor<float>("__metadata__", {2}, floats)}) != "");
  CHECK(refused({view_tensor<float>("a", {3}, floats)}) ==
        f + "'a': expected 12 bytes for F32 [3], found 8 bytes; check shape and view");
  CHECK(refused({view_tensor<float>("a", {-2}, floats)}) ==
        f + "'a': expected a size below 2^63 bytes, found F32 [-2]; check the shape");
  const std::int64_t large = std::int64_t{1} << 40;
  CHECK(refused({view_tensor<float>("a", {large, large}, floats)}) ==
        f + "'a': expected a size below 2^63 bytes, found F32 [1099511627776, 1099511627776]; "
            "check the shape");
  // Each fits, together they do not.
  CHECK(message_of([&] {
          safetensors_writer writer(path, {{"a", dtype::u8, {std::int64_t{1} << 62}},
                                           {"b", dtype::u8, {std::int64_t{1} << 62}}});
        }) == f + "'b': expected a size below 2^63 bytes, found U8 [4611686018427387904]; check "
                  "the shape");
  CHECK(message_of([&] {
          safetensors_writer writer(path, {{std::string(100'000'000, 'n'), dtype::u8, {0}}});
        }) == path.string() +
                  ": expected a header of at most 100000000 bytes, found 100000056; "
                  "spread the tensors over several files");
  CHECK(text_of(path) == "old");
  CHECK(entries_of(folder.path()) == 1);
}

TEST_CASE(
    "tensors that are not all in memory at once: told first, handed over in order, in pieces") {
  const folder folder;
  const auto path = folder.write("f", "old");
  {
    safetensors_writer writer(path,
                              {{"a", dtype::u8, {3}},
                               {"b", dtype::f32, {2}},
                               {"c", dtype::bf16, {1, 2}},
                               {"z", dtype::i64, {}}},
                              {{"format", "pt"}});
    REQUIRE(writer.order().size() == 4);
    CHECK(writer.order()[0].name == "z");
    CHECK(writer.order()[3].name == "a");
    const std::string known = known_bytes().substr(264);
    const std::span<const std::byte> data = span_of(known);
    const std::string f = path.string() + ": tensor ";
    const std::string in_order = "; hand over each tensor once, in order()";
    writer.write("z", data.first(5));
    CHECK(message_of([&] { writer.write("b", data.subspan(8, 8)); }) ==
          f + "'b': expected those of 'z' next, found 8 bytes" + in_order);
    CHECK(message_of([&] { writer.write("z", data.subspan(5, 4)); }) ==
          f + "'z': expected at most 3 bytes more, found 4 bytes; check shape and data");
    writer.write("z", data.subspan(5, 3));
    CHECK(message_of([&] { writer.write("c", data.subspan(16, 4)); }) ==
          f + "'c': expected those of 'b' next, found 4 bytes" + in_order);
    CHECK(message_of([&] { writer.write("y", data.subspan(16, 4)); }) != "");
    writer.write("b", data.subspan(8, 8));
    CHECK(message_of([&] { writer.finish(); }) ==
          f + "'c': expected 4 bytes, found 0 bytes" + in_order);
    writer.write("c", data.subspan(16, 4));
    writer.write("a", data.subspan(20, 2));
    CHECK(message_of([&] { writer.finish(); }) ==
          f + "'a': expected 3 bytes, found 2 bytes" + in_order);
    CHECK(text_of(path) == "old");
    writer.write("a", data.last(1));
    CHECK(message_of([&] { writer.write("e", data.first(1)); }) ==
          f + "'e': expected no more data, found 1 byte" + in_order);
    writer.finish();
  }
  CHECK(text_of(path) == known_bytes());
  CHECK(entries_of(folder.path()) == 1);
}

TEST_CASE("a full disk under a writer leaves the old file") {
  const folder folder;
  const auto path = folder / "f";
  write_safetensors(path, known_tensors(), {{"format", "pt"}});
  const std::vector<float> many(5000, 1.0F);
  ::rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &limit) == 0);
  const ::rlimit low{4096, limit.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &low) == 0);
  const std::string message = message_of(
      [&] { write_safetensors(path, std::vector{view_tensor<float>("many", {5000}, many)}); });
  ::setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, handler);
  CHECK(message.find("expected to write 20000 bytes at offset 72, found File too large after 4024 "
                     "of them") != std::string::npos);
  CHECK(text_of(path) == known_bytes());
  CHECK(entries_of(folder.path()) == 1);
}

TEST_CASE("a reader names file, tensor, what was expected and what was found") {
  const folder folder;
  write_safetensors(folder / "f", known_tensors());
  const safetensors_file file(folder / "f");
  const std::string f = (folder / "f").string() + ": tensor ";
  CHECK(message_of([&] { file.bytes("layers.0"); }) ==
        f + "'layers.0': expected it in the file, found 4 others; check the name and that the file "
            "belongs to this model");
  CHECK(message_of([&] { file.view<double>("b"); }) ==
        f + "'b': expected F64 [2], found F32 [2]; check that the file belongs to this model");
  CHECK(message_of([&] {
          file.expect("c", dtype::bf16, std::vector<std::int64_t>{2, 1});
        }) ==
        f + "'c': expected BF16 [2, 1], found BF16 [1, 2]; check that the file belongs to this "
            "model");
  std::vector<float> room(3);
  CHECK(message_of([&] { file.copy<float>("b", std::vector<std::int64_t>{3}, room); }) ==
        f + "'b': expected F32 [3], found F32 [2]; check that the file belongs to this model");
  CHECK(message_of([&] { file.copy<float>("b", std::vector<std::int64_t>{2}, room); }) ==
        f + "'b': expected room for 8 bytes, found 12 bytes; hand over memory of the tensor's "
            "size");
  file.expect("z", dtype::i64, {});
}

TEST_CASE("data that are not aligned, as old writers left them, are copied and not viewed") {
  const folder folder;
  const std::string header = R"({"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  REQUIRE(header.size() % 4 != 0);
  folder.write("f", safetensors_bytes(header, "\0\0\x80\x3f\0\0\0\xc0"s));
  const safetensors_file file(folder / "f");
  CHECK(message_of([&] { file.view<float>("b"); }) ==
        (folder / "f").string() +
            ": tensor 'b': expected data at a multiple of 4 bytes, found them beside one; copy the "
            "tensor, or write the file again");
  std::vector<float> copied(2);
  file.copy<float>("b", std::vector<std::int64_t>{2}, copied);
  CHECK(copied == floats);
}

TEST_CASE("every prefix of a valid file is refused, and every file that is longer") {
  const folder folder;
  const std::string whole = known_bytes();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    CAPTURE(length);
    // Memory of exactly this length, so that a sanitizer sees a byte too far.
    const std::vector<char> prefix(whole.begin(),
                                   whole.begin() + static_cast<std::ptrdiff_t>(length));
    const std::string message =
        message_of([&] { parse_safetensors(std::as_bytes(std::span(prefix)), "name"); });
    CHECK(message.starts_with("name: "));
    CHECK(message.find("expected ") != std::string::npos);
    CHECK(message.find('\n') == std::string::npos);
  }
  CHECK(message_of([&] { parse_safetensors(span_of(whole), "name"); }) == "");
  CHECK(message_of([&] { parse_safetensors(span_of(whole + "x"), "name"); }) ==
        "name: expected 23 bytes of data, where the last tensor ends, found 24 bytes; fetch or "
        "write the file again");
  // And as files.
  for (const std::size_t length : {0U, 7U, 8U, 100U, 264U, 286U}) {
    const auto path = folder.write("cut", whole.substr(0, length));
    CHECK(message_of([&] { safetensors_file file(path); }).starts_with(path.string() + ": "));
  }
}

TEST_CASE("random tensors there and back") {
  const folder folder;
  std::uint64_t state = 1;
  const auto random = [&](std::uint64_t below) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return (state >> 33U) % below;
  };
  for (int round = 0; round < 30; ++round) {
    std::vector<std::string> data(random(12));
    std::vector<tensor_view> tensors;
    for (std::size_t i = 0; i < data.size(); ++i) {
      const auto type = static_cast<dtype>(random(15));
      std::vector<std::int64_t> shape(random(4));
      for (std::int64_t& dimension : shape) dimension = static_cast<std::int64_t>(random(5));
      data[i].resize(static_cast<std::size_t>(*tensor_bytes(type, shape)));
      for (char& byte : data[i]) byte = static_cast<char>(random(256));
      tensors.push_back({"layer." + std::to_string(i), type, shape, span_of(data[i])});
    }
    const written_file written = write_safetensors(folder / "f", tensors);
    const safetensors_file file(folder / "f");
    CHECK(file.tensors().size() == tensors.size());
    CHECK(file.checksum().text() == written.checksum.text());
    CHECK(written.size_bytes == static_cast<std::int64_t>(text_of(folder / "f").size()));
    for (const tensor_view& tensor : tensors) {
      file.expect(tensor.name, tensor.type, tensor.shape);
      CHECK(std::ranges::equal(file.bytes(tensor.name), tensor.bytes));
    }
  }
}

}  // namespace
