// SPDX-License-Identifier: Apache-2.0
//
// The header of a safetensors file: a JSON object, padded with spaces,
//
//   {"__metadata__": {"key": "text", ...},
//    "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
//
// where the offsets count bytes of the data behind it. What is read here is believed only when it
// all fits together: every tensor as long as its dtype and shape say, and the tensors side by side
// over the whole of the data, without overlap and without a hole.
//
// Needs nlohmann-json (Debian: nlohmann-json3-dev), header only; of the io room only this header
// and safetensors.hpp do. It is read event by event, as its tree would forget a doubled name.
// Source: the format's own description (safetensors, "Format").
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "smelt/io/dtype.hpp"
#include "smelt/io/message.hpp"
#include "smelt/io/tensor_info.hpp"

namespace smelt {

/// What a header says.
struct safetensors_header {
  std::vector<tensor_info> tensors;             ///< in the order of their data
  std::map<std::string, std::string> metadata;  ///< texts, for people and programs
};

/// No header is longer, here and in the format's own library.
inline constexpr std::int64_t safetensors_header_limit_bytes = 100'000'000;

namespace detail {

// The one name that is no tensor's.
inline constexpr const char* metadata_name = "__metadata__";

[[noreturn]] inline void refuse_header(const std::string& place, const std::string& expected,
                                       const std::string& found) {
  throw io_error(place, expected, found, "fetch or write the file again");
}

// What the JSON parser calls, an event after the other. The grammar is so small that one word, in
// which bracket we are, is all its state; whatever is not expected there ends the reading at once,
// so neither deep nor long nonsense costs anything.
class safetensors_header_reader {
 public:
  safetensors_header_reader(std::string file, safetensors_header& header)
      : file_(std::move(file)), header_(header) {}

  // Values that are right nowhere.
  bool null() { refuse("null"); }
  bool boolean(bool) { refuse("true or false"); }
  bool number_integer(std::int64_t) { refuse("a number below zero"); }
  bool number_float(double, const std::string&) { refuse("a number that is no 64-bit integer"); }
  bool binary(const std::vector<std::uint8_t>&) { refuse("binary data"); }

  // A dimension or an offset.
  bool number_unsigned(std::uint64_t value) {
    if (where_ != place::shape && where_ != place::offsets) refuse("a number");
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      refuse("a number that is no 63-bit integer");
    if (where_ == place::offsets && offsets_.size() == 2) refuse("a third offset");
    (where_ == place::shape ? tensor_.shape : offsets_).push_back(static_cast<std::int64_t>(value));
    return true;
  }

  // A text of the metadata or a dtype.
  bool string(std::string& value) {
    if (where_ == place::metadata) {
      header_.metadata[key_] = std::move(value);
    } else if (where_ == place::tensor && key_ == "dtype") {
      const std::optional<dtype> type = dtype_named(value);
      if (!type)
        throw io_error(here(), "a dtype of " + known_dtypes(), quoted_name(value),
                       "convert the tensor to one of them");
      tensor_.type = *type;
    } else {
      refuse("a string");
    }
    return true;
  }

  bool start_object(std::size_t) {
    if (where_ == place::outside) {
      where_ = place::root;
    } else if (where_ == place::root && key_ == metadata_name) {
      where_ = place::metadata;
    } else if (where_ == place::root) {
      where_ = place::tensor;
      tensor_ = tensor_info{.name = key_};
      offsets_.clear();
      fields_.clear();
    } else {
      refuse("an object");
    }
    return true;
  }

  // Every name once, on each level: of two tensors of one name a reader would have to guess which.
  bool key(std::string& name) {
    if (where_ == place::root) {
      if (!names_.insert(name).second)
        refuse_header(file_ + ": " + quoted_name(name), "every name once", "it a second time");
    } else if (where_ == place::metadata) {
      if (header_.metadata.contains(name))
        refuse_header(file_ + ": __metadata__ " + quoted_name(name), "every key once",
                      "it a second time");
    } else if (name != "dtype" && name != "shape" && name != "data_offsets") {
      // What it means is unknown, and it may change what the others mean.
      refuse_header(tensor_place(), "dtype, shape and data_offsets", quoted_name(name));
    } else if (!fields_.insert(name).second) {
      refuse_header(tensor_place(), name + " once", "it a second time");
    }
    key_ = std::move(name);
    return true;
  }

  bool end_object() {
    if (where_ == place::tensor) {
      for (const char* field : {"dtype", "shape", "data_offsets"})
        if (!fields_.contains(field))
          refuse_header(tensor_place(), "dtype, shape and data_offsets",
                        "no " + std::string(field));
      // Both are there: end_array has counted them.
      tensor_.begin_bytes = offsets_[0];
      tensor_.end_bytes = offsets_[1];
      header_.tensors.push_back(std::move(tensor_));
    }
    where_ = place::root;
    return true;
  }

  // Only a shape and the offsets are arrays, and neither holds another.
  bool start_array(std::size_t) {
    if (where_ != place::tensor || key_ == "dtype") refuse("an array");
    where_ = key_ == "shape" ? place::shape : place::offsets;
    return true;
  }

  bool end_array() {
    if (where_ == place::offsets && offsets_.size() != 2)
      refuse_header(here(), "two offsets", std::to_string(offsets_.size()));
    where_ = place::tensor;
    return true;
  }

  // Only where, not what: the parser's own words quote the input as it is and change by version.
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    refuse_header(file_ + ": header", "valid JSON in UTF-8",
                  "something else at byte " + std::to_string(position) + " of it");
  }

 private:
  // In which bracket the next event falls.
  enum class place { outside, root, metadata, tensor, shape, offsets };

  std::string tensor_place() const { return file_ + ": tensor " + quoted_name(tensor_.name); }

  // The place of the next event, for messages.
  std::string here() const {
    switch (where_) {
      case place::outside:
        return file_ + ": header";
      case place::root:
        if (key_ == metadata_name) return file_ + ": " + key_;
        return file_ + ": tensor " + quoted_name(key_);
      case place::metadata:
        return file_ + ": __metadata__ " + quoted_name(key_);
      default:
        return tensor_place() + ": " + key_;
    }
  }

  // Says what would have been right here.
  [[noreturn]] void refuse(const std::string& found) const {
    std::string expected = "a JSON object";
    if (where_ == place::metadata || (where_ == place::tensor && key_ == "dtype"))
      expected = "a string";
    else if (where_ == place::tensor)
      expected = "an array";
    else if (where_ == place::shape || where_ == place::offsets)
      expected = "whole numbers of at least 0";
    refuse_header(here(), expected, found);
  }

  std::string file_;
  safetensors_header& header_;
  place where_ = place::outside;
  std::string key_;                    // the last one read
  tensor_info tensor_;                 // the one being read
  std::vector<std::int64_t> offsets_;  // of it
  std::set<std::string> fields_;       // of it, that were there
  std::set<std::string> names_;        // of all tensors so far
};

// What a tensor says of itself: offsets in order and inside the data, as far apart as type and
// shape demand.
inline void check_tensor(const tensor_info& tensor, std::int64_t data_bytes,
                         const std::string& file) {
  const std::optional<std::int64_t> bytes = tensor_bytes(tensor.type, tensor.shape);
  if (bytes == tensor.bytes() && tensor.bytes() >= 0 && tensor.end_bytes <= data_bytes) return;
  // Texts are made only now; a file has tens of thousands of tensors, and they are right.
  const std::string place = file + ": tensor " + quoted_name(tensor.name);
  const std::string found = shape_text(std::array{tensor.begin_bytes, tensor.end_bytes});
  const std::string what = tensor_text(tensor.type, tensor.shape);
  if (tensor.begin_bytes > tensor.end_bytes)
    refuse_header(place, "data_offsets in ascending order", found);
  if (tensor.end_bytes > data_bytes)
    throw io_error(place, "data_offsets within the " + byte_text(data_bytes) + " of data", found,
                   "the file is truncated: fetch or write it again");
  if (!bytes) refuse_header(place, "a size below 2^63 bytes", "an overflow for " + what);
  refuse_header(place, byte_text(*bytes) + " for " + what,
                byte_text(tensor.bytes()) + " at " + found);
}

// What all of them say together. Sorts them by their place in the data.
inline void check_tensors(std::vector<tensor_info>& tensors, std::int64_t data_bytes,
                          const std::string& file) {
  for (const tensor_info& tensor : tensors) check_tensor(tensor, data_bytes, file);
  std::sort(tensors.begin(), tensors.end(), [](const tensor_info& a, const tensor_info& b) {
    if (a.begin_bytes != b.begin_bytes) return a.begin_bytes < b.begin_bytes;
    if (a.end_bytes != b.end_bytes) return a.end_bytes < b.end_bytes;
    return a.name < b.name;  // empty tensors at one place
  });
  // Each begins where the one before ends, as the format demands: nothing is hidden in a hole, and
  // no two share their bytes.
  std::int64_t end = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const tensor_info& tensor = tensors[i];
    if (tensor.begin_bytes != end)
      refuse_header(file + ": tensor " + quoted_name(tensor.name),
                    "data that begin at " + std::to_string(end) + ", where " +
                        (i == 0 ? "the data begin" : quoted_name(tensors[i - 1].name) + " ends"),
                    (tensor.begin_bytes < end ? "an overlap at " : "a hole before ") +
                        std::to_string(tensor.begin_bytes));
    end = tensor.end_bytes;
  }
  if (end != data_bytes)
    refuse_header(file, byte_text(end) + " of data, where the last tensor ends",
                  byte_text(data_bytes));
}

// A JSON string with its quotes.
inline std::string json_text(const std::string& text, const std::string& place) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw io_error(place, "text in UTF-8", quoted_name(text), "name it otherwise");
  }
}

}  // namespace detail

/// Reads a header.
/// @param text        the header without the 8 bytes of its length.
/// @param data_bytes  how much the file holds behind it.
/// @param file        its name for messages.
/// @throws smelt::error naming the file, the tensor, what was expected and what was found.
inline safetensors_header parse_safetensors_header(std::string_view text, std::int64_t data_bytes,
                                                   const std::string& file) {
  // The parser takes a NUL for the end and skips a byte order mark; neither belongs here.
  if (text.empty() || text.front() != '{')
    throw detail::io_error(
        file + ": header", "'{' as its first byte",
        text.empty() ? "a header of 0 bytes" : detail::quoted_name(text.substr(0, 1)),
        "name a safetensors file");
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos)
    detail::refuse_header(file + ": header", "text", "a NUL at byte " + std::to_string(nul + 1));
  safetensors_header header;
  detail::safetensors_header_reader reader(file, header);
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  detail::check_tensors(header.tensors, data_bytes, file);
  return header;
}

/// The bytes of a header as the Python package writes them: metadata first, tensors in the order
/// given, no blanks, then spaces up to a multiple of 8 so that the data are aligned. The same
/// header always gives the same bytes.
/// @throws smelt::error where a name or a text is not UTF-8.
inline std::string safetensors_header_text(const safetensors_header& header,
                                           const std::string& file) {
  std::string text = "{";
  // A comma between two entries; nothing behind an opening brace.
  const auto separate = [&text] {
    if (text.back() != '{') text += ',';
  };
  if (!header.metadata.empty()) {
    text += std::string("\"") + detail::metadata_name + "\":{";
    for (const auto& [key, value] : header.metadata) {
      const std::string place = file + ": __metadata__ " + detail::quoted_name(key);
      separate();
      text += detail::json_text(key, place) + ":" + detail::json_text(value, place);
    }
    text += '}';
  }
  for (const tensor_info& tensor : header.tensors) {
    separate();
    text += detail::json_text(tensor.name, file + ": tensor " + detail::quoted_name(tensor.name)) +
            ":{\"dtype\":\"" + std::string(dtype_name(tensor.type)) +
            "\",\"shape\":" + shape_text(tensor.shape, ",") + ",\"data_offsets\":" +
            shape_text(std::array{tensor.begin_bytes, tensor.end_bytes}, ",") + "}";
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace smelt
