// SPDX-License-Identifier: Apache-2.0
//
// Broken safetensors headers, one fault each, with the exact message; and legal ones that look
// unusual.
#include "smelt/io/safetensors_header.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "io/bytes.hpp"
#include "smelt/io/safetensors.hpp"

namespace {
using namespace smelt;
using namespace smelt_test;
using namespace std::string_literals;

// Reads a file of this header and this many bytes of data.
safetensors_header parsed(const std::string& header, std::size_t data_bytes = 0) {
  const std::string file = safetensors_bytes(header, std::string(data_bytes, 'd'));
  return parse_safetensors(span_of(file), "f");
}

std::string refusal(const std::string& header, std::size_t data_bytes = 0) {
  return message_of([&] { parsed(header, data_bytes); });
}

// A header of one tensor 'w'.
std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"w":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

const std::string again = "; fetch or write the file again";

TEST_CASE("the length of the header") {
  const auto of_bytes = [](const std::string& file) {
    return message_of([&] { parse_safetensors(span_of(file), "f"); });
  };
  CHECK(of_bytes("") ==
        "f: expected at least 8 bytes, the length of the header, found 0 bytes" + again);
  CHECK(of_bytes("1234567") ==
        "f: expected at least 8 bytes, the length of the header, found 7 bytes" + again);
  CHECK(of_bytes(bytes_of(std::uint64_t{3}) + "{}") ==
        "f: expected a header of 3 bytes, found 2 bytes; the file is truncated: fetch or write it "
        "again");
  CHECK(of_bytes(bytes_of(std::uint64_t{0}) + "{}") ==
        "f: header: expected '{' as its first byte, found a header of 0 bytes; name a safetensors "
        "file");
  // The length alone: no such file is needed to refuse it.
  CHECK(of_bytes(bytes_of(std::uint64_t{100'000'001}) + "{}") ==
        "f: expected a header of at most 100000000 bytes, found 100000001; name a safetensors "
        "file");
  CHECK(of_bytes(bytes_of(std::uint64_t{100'000'000}) + "{}") ==
        "f: expected a header of 100000000 bytes, found 2 bytes; the file is truncated: fetch or "
        "write it again");
  CHECK(of_bytes(bytes_of(~std::uint64_t{0}) + "{}") ==
        "f: expected a header of at most 100000000 bytes, found 18446744073709551615; name a "
        "safetensors file");
  // Files of other kinds: a zip (as PyTorch writes), a GGUF.
  CHECK(of_bytes("PK\3\4\0\0\x08\x08 and more"s).find("expected a header of at most") !=
        std::string::npos);
  CHECK(of_bytes("GGUF\3\0\0\0 and more"s).find("expected a header of at most") !=
        std::string::npos);
}

TEST_CASE("what is not a JSON object") {
  struct faulty {
    std::string header;
    std::string message;
  };
  const std::string first = "f: header: expected '{' as its first byte, found ";
  const std::string syntax =
      "f: header: expected valid JSON in UTF-8, found something else at byte ";
  for (const faulty& input : std::vector<faulty>{
           {"[]", first + "'['; name a safetensors file"},
           {" {}", first + "' '; name a safetensors file"},
           {"null", first + "'n'; name a safetensors file"},
           {"\xef\xbb\xbf{}", first + "'\\xef'; name a safetensors file"},
           {"\0{}"s, first + "'\\x00'; name a safetensors file"},
           {"{", syntax + "2 of it" + again},
           {"{}}", syntax + "3 of it" + again},
           {"{} {}", syntax + "4 of it" + again},
           {"{\"a\"}", syntax + "5 of it" + again},
           {"{'a':1}", syntax + "2 of it" + again},
           {"{,}", syntax + "2 of it" + again},
           {"{}//", syntax + "3 of it" + again},
           {"{\"a\xff\":1}", syntax + "4 of it" + again},
           {"{\"a\xed\xa0\x80\":1}", syntax + "5 of it" + again},
           {"{\"\\ud800\":1}", syntax + "9 of it" + again},
           {"{}\0"s, "f: header: expected text, found a NUL at byte 3" + again},
           {"{}\0garbage"s, "f: header: expected text, found a NUL at byte 3" + again},
           {"{\"a\0b\":1}"s, "f: header: expected text, found a NUL at byte 4" + again},
       }) {
    CAPTURE(input.header);
    CHECK(refusal(input.header) == input.message);
  }
}

TEST_CASE("JSON of another shape") {
  struct faulty {
    std::string header;
    std::string message;
  };
  const std::string w = "f: tensor 'w'";
  for (const faulty& input : std::vector<faulty>{
           {R"({"w":1})", w + ": expected a JSON object, found a number" + again},
           {R"({"w":-1})", w + ": expected a JSON object, found a number below zero" + again},
           {R"({"w":"x"})", w + ": expected a JSON object, found a string" + again},
           {R"({"w":null})", w + ": expected a JSON object, found null" + again},
           {R"({"w":true})", w + ": expected a JSON object, found true or false" + again},
           {R"({"w":[]})", w + ": expected a JSON object, found an array" + again},
           {R"({"w":{}})", w + ": expected dtype, shape and data_offsets, found no dtype" + again},
           {R"({"w":{"dtype":"U8","data_offsets":[0,0]}})",
            w + ": expected dtype, shape and data_offsets, found no shape" + again},
           {R"({"w":{"dtype":"U8","shape":[0]}})",
            w + ": expected dtype, shape and data_offsets, found no data_offsets" + again},
           {R"({"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"more":1}})",
            w + ": expected dtype, shape and data_offsets, found 'more'" + again},
           {R"({"w":{"dtype":"U8","dtype":"U8"}})",
            w + ": expected dtype once, found it a second time" + again},
           {R"({"w":{"shape":[],"shape":[]}})",
            w + ": expected shape once, found it a second time" + again},
           {tensor("7", "[0]", "[0,0]"), w + ": dtype: expected a string, found a number" + again},
           {tensor("[]", "[0]", "[0,0]"), w + ": dtype: expected a string, found an array" + again},
           {tensor("{}", "[0]", "[0,0]"),
            w + ": dtype: expected a string, found an object" + again},
           {tensor(R"("F31")", "[0]", "[0,0]"),
            w + ": dtype: expected a dtype of BOOL, U8, I8, F8_E5M2, F8_E4M3, I16, U16, F16, BF16, "
                "I32, U32, F32, F64, I64, U64, found 'F31'; convert the tensor to one of them"},
           {tensor(R"("U8")", "4", "[0,0]"),
            w + ": shape: expected an array, found a number" + again},
           {tensor(R"("U8")", R"("x")", "[0,0]"),
            w + ": shape: expected an array, found a string" + again},
           {tensor(R"("U8")", "{}", "[0,0]"),
            w + ": shape: expected an array, found an object" + again},
           {tensor(R"("U8")", "[-1]", "[0,0]"),
            w + ": shape: expected whole numbers of at least 0, found a number below zero" + again},
           {tensor(R"("U8")", "[1.0]", "[0,0]"),
            w +
                ": shape: expected whole numbers of at least 0, found a number that is no 64-bit "
                "integer" +
                again},
           {tensor(R"("U8")", "[1e2]", "[0,0]"),
            w +
                ": shape: expected whole numbers of at least 0, found a number that is no 64-bit "
                "integer" +
                again},
           {tensor(R"("U8")", "[99999999999999999999]", "[0,0]"),
            w +
                ": shape: expected whole numbers of at least 0, found a number that is no 64-bit "
                "integer" +
                again},
           {tensor(R"("U8")", "[9223372036854775808]", "[0,0]"),
            w +
                ": shape: expected whole numbers of at least 0, found a number that is no 63-bit "
                "integer" +
                again},
           {tensor(R"("U8")", R"(["4"])", "[0,0]"),
            w + ": shape: expected whole numbers of at least 0, found a string" + again},
           {tensor(R"("U8")", "[[4]]", "[0,0]"),
            w + ": shape: expected whole numbers of at least 0, found an array" + again},
           {tensor(R"("U8")", "[null]", "[0,0]"),
            w + ": shape: expected whole numbers of at least 0, found null" + again},
           {tensor(R"("U8")", "[0]", "[]"),
            w + ": data_offsets: expected two offsets, found 0" + again},
           {tensor(R"("U8")", "[0]", "[0]"),
            w + ": data_offsets: expected two offsets, found 1" + again},
           {tensor(R"("U8")", "[0]", "[0,0,0]"),
            w + ": data_offsets: expected whole numbers of at least 0, found a third offset" +
                again},
           {tensor(R"("U8")", "[0]", "[0,-1]"),
            w + ": data_offsets: expected whole numbers of at least 0, found a number below zero" +
                again},
           {R"({"__metadata__":1})",
            "f: __metadata__: expected a JSON object, found a number" + again},
           {R"({"__metadata__":null})",
            "f: __metadata__: expected a JSON object, found null" + again},
           {R"({"__metadata__":{"k":1}})",
            "f: __metadata__ 'k': expected a string, found a number" + again},
           {R"({"__metadata__":{"k":{"a":"b"}}})",
            "f: __metadata__ 'k': expected a string, found an object" + again},
           {R"({"__metadata__":{"k":["a"]}})",
            "f: __metadata__ 'k': expected a string, found an array" + again},
           {R"({"__metadata__":{"k":"a","k":"b"}})",
            "f: __metadata__ 'k': expected every key once, found it a second time" + again},
           {R"({"__metadata__":{},"__metadata__":{}})",
            "f: '__metadata__': expected every name once, found it a second time" + again},
       }) {
    CAPTURE(input.header);
    CHECK(refusal(input.header) == input.message);
  }
}

TEST_CASE("a doubled name, also one that is spelled another way") {
  const std::string one = R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  CHECK(refusal(R"({"w":)" + one + R"(,"w":)" + one + "}", 1) ==
        "f: 'w': expected every name once, found it a second time" + again);
  CHECK(refusal(R"({"w":)" + one + R"(,"\u0077":)" + one + "}", 1) ==
        "f: 'w': expected every name once, found it a second time" + again);
}

TEST_CASE("sizes and offsets that do not fit") {
  struct faulty {
    std::string header;
    std::size_t data_bytes;
    std::string message;
  };
  const std::string w = "f: tensor 'w': expected ";
  for (const faulty& input : std::vector<faulty>{
           {tensor(R"("F32")", "[2]", "[8,0]"), 8,
            w + "data_offsets in ascending order, found [8, 0]" + again},
           {tensor(R"("F32")", "[2]", "[0,8]"), 7,
            w + "data_offsets within the 7 bytes of data, found [0, 8]; the file is truncated: "
                "fetch or write it again"},
           {tensor(R"("F32")", "[2]", "[9223372036854775800,9223372036854775807]"), 8,
            w + "data_offsets within the 8 bytes of data, found [9223372036854775800, "
                "9223372036854775807]; the file is truncated: fetch or write it again"},
           {tensor(R"("F32")", "[3]", "[0,8]"), 8,
            w + "12 bytes for F32 [3], found 8 bytes at [0, 8]" + again},
           {tensor(R"("F16")", "[3]", "[0,8]"), 8,
            w + "6 bytes for F16 [3], found 8 bytes at [0, 8]" + again},
           {tensor(R"("U8")", "[]", "[0,0]"), 0,
            w + "1 byte for U8 [], found 0 bytes at [0, 0]" + again},
           // Products that come out as 8 in 64 bits.
           {tensor(R"("U8")", "[4294967296,4294967296,8]", "[0,8]"), 8,
            w + "a size below 2^63 bytes, found an overflow for U8 [4294967296, 4294967296, 8]" +
                again},
           {tensor(R"("F64")", "[2305843009213693953]", "[0,8]"), 8,
            w + "a size below 2^63 bytes, found an overflow for F64 [2305843009213693953]" + again},
           {tensor(R"("U8")", "[1099511627776,1099511627776,0]", "[0,0]"), 0,
            w +
                "a size below 2^63 bytes, found an overflow for U8 [1099511627776, 1099511627776, "
                "0]" +
                again},
           {tensor(R"("F32")", "[2]", "[4,12]"), 12,
            w + "data that begin at 0, where the data begin, found a hole before 4" + again},
           {tensor(R"("F32")", "[2]", "[0,8]"), 9,
            "f: expected 8 bytes of data, where the last tensor ends, found 9 bytes" + again},
           {"{}", 1,
            "f: expected 0 bytes of data, where the last tensor ends, found 1 byte" + again},
       }) {
    CAPTURE(input.header);
    CHECK(refusal(input.header, input.data_bytes) == input.message);
  }
}

TEST_CASE("tensors that overlap, and a hole between two") {
  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + a +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}";
  };
  CHECK(refusal(two("[0,4]", "[4,8]"), 8) == "");
  CHECK(refusal(two("[4,8]", "[0,4]"), 8) == "");
  const std::string b = "f: tensor 'b': expected data that begin at 4, where 'a' ends, found ";
  CHECK(refusal(two("[0,4]", "[3,7]"), 7) == b + "an overlap at 3" + again);
  CHECK(refusal(two("[0,4]", "[0,4]"), 4) == b + "an overlap at 0" + again);
  CHECK(refusal(two("[0,4]", "[5,9]"), 9) == b + "a hole before 5" + again);
  // An empty tensor inside another one.
  CHECK(refusal(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                R"("b":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})",
                4) == b + "an overlap at 2" + again);
}

TEST_CASE("a hostile name neither breaks the line nor fills the screen") {
  const std::string message = refusal("{\"\\n\\u001b[31m" + std::string(500, 'x') + "\":1}");
  CHECK(message.starts_with("f: tensor '\\x0a\\x1b[31mxxx"));
  CHECK(message.find("xxx...': expected a JSON object") != std::string::npos);
  CHECK(message.size() < 200);
}

TEST_CASE("depth costs nothing: a million brackets are refused at the first") {
  CHECK(refusal(R"({"w":)" + std::string(1'000'000, '[')) ==
        "f: tensor 'w': expected a JSON object, found an array" + again);
}

TEST_CASE("legal, if unusual") {
  CHECK(parsed("{}").tensors.empty());
  CHECK(parsed("{}   \n").tensors.empty());
  CHECK(parsed(R"({"__metadata__":{}})").metadata.empty());
  CHECK(parsed(R"({"__metadata__":{"a":"1","b":""}})").metadata.size() == 2);
  // Fields in any order, blanks anywhere, metadata last, an escape in a name.
  const safetensors_header header = parsed(
      "{ \"t\\u00e9\" : { \"data_offsets\" : [ 0 , 2 ] , \"shape\" : [ ] , \"dtype\" : \"F16\" } , "
      "\"__metadata__\" : { \"k\" : \"v\" } }",
      2);
  REQUIRE(header.tensors.size() == 1);
  CHECK(header.tensors[0].name == "t\xc3\xa9");
  CHECK(header.tensors[0].type == dtype::f16);
  CHECK(header.tensors[0].shape.empty());
  CHECK(header.metadata.at("k") == "v");
  // A tensor may be called as a field is.
  CHECK(parsed(R"({"dtype":{"dtype":"U8","shape":[0,7],"data_offsets":[0,0]}})").tensors[0].name ==
        "dtype");
  // A dimension of zero before large ones: nothing overflows.
  CHECK(parsed(tensor(R"("U8")", "[0,1099511627776,1099511627776]", "[0,0]")).tensors.size() == 1);
}

}  // namespace
