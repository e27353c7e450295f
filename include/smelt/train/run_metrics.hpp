// SPDX-License-Identifier: Apache-2.0
//
// metrics.jsonl: one JSON object per line, appended while a phase runs, and cut back when it
// resumes.
//
//   {"step":17,...}   every line begins with the steps that were taken when it was written
//
// A line goes to the system as one write, so it outlives the program. Before a checkpoint is
// written the file is synced: the lines up to the checkpoint's step are then on the disk, and what
// stands behind them is what a resumed run writes again. Cutting is one ftruncate at the end of a
// line: no line is double and none is missing, whenever the program is killed.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "smelt/io/file.hpp"
#include "smelt/io/message.hpp"

namespace smelt {

/// A line that is built field by field. Used again and again; after the first lines it allocates
/// nothing.
class json_line {
 public:
  /// Begins with the field that every line begins with.
  json_line& begin(std::int64_t step) {
    text_.assign("{\"step\":");
    return append(step);
  }
  /// A whole number, or a number to its last bit; what is none is null, as JSON has no word for it.
  template <class Value>
  requires std::integral<Value> || std::floating_point<Value> json_line& field(
      std::string_view name, Value value) {
    key(name);
    return append(value);
  }
  /// Digits as they are, for numbers of more than 64 bits.
  json_line& digits(std::string_view name, std::string_view value) {
    key(name);
    text_ += value;
    return *this;
  }
  /// Plain ASCII; quotes and backslashes are escaped, everything below a blank becomes one.
  json_line& text(std::string_view name, std::string_view value) {
    key(name);
    text_ += '"';
    for (const char c : value) {
      if (c == '"' || c == '\\') text_ += '\\';
      text_ += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    text_ += '"';
    return *this;
  }
  /// A list: fill(add) calls add(number) for each of its numbers.
  template <class Fill>
  json_line& list(std::string_view name, Fill&& fill) {
    key(name);
    text_ += '[';
    bool first = true;
    fill([&](auto value) {
      if (!std::exchange(first, false)) text_ += ',';
      append(value);
    });
    text_ += ']';
    return *this;
  }
  /// The line with its end.
  std::string_view end() {
    text_ += "}\n";
    return text_;
  }

 private:
  void key(std::string_view name) {
    text_ += ",\"";
    text_ += name;
    text_ += "\":";
  }
  template <class Value>
  json_line& append(Value value) {
    if constexpr (std::floating_point<Value>) {
      if (!std::isfinite(value)) {
        text_ += "null";
        return *this;
      }
    }
    std::array<char, 32> digits{};
    text_.append(digits.data(), std::to_chars(digits.begin(), digits.end(), value).ptr);
    return *this;
  }

  std::string text_;
};

namespace detail {
// The step of a line, or nothing where it does not begin as every line does.
inline std::optional<std::int64_t> metrics_step(std::string_view line) {
  constexpr std::string_view beginning = "{\"step\":";
  if (!line.starts_with(beginning)) return std::nullopt;
  std::int64_t step = -1;
  std::from_chars(line.data() + beginning.size(), line.data() + line.size(), step);
  if (step < 0) return std::nullopt;
  return step;
}

// Bytes of the lines of at most this step.
inline std::int64_t metrics_bytes_up_to(const mapped_file& file, std::int64_t step) {
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  std::size_t begin = 0;
  for (std::int64_t row = 1; begin < text.size(); ++row) {
    const std::size_t end = text.find('\n', begin);
    // Half a line is the last thing that a dead program wrote.
    if (end == std::string_view::npos) break;
    const std::string_view line = text.substr(begin, end - begin);
    const std::optional<std::int64_t> found = metrics_step(line);
    if (!found)
      throw io_error(file.path().string() + ": row " + std::to_string(row),
                     "a line that begins with its step", quoted_name(line),
                     "remove that line, or name another folder");
    if (*found > step) break;
    begin = end + 1;
  }
  return static_cast<std::int64_t>(begin);
}
}  // namespace detail

/// The file of one phase, open for appending.
class metrics_file {
 public:
  /// Opens it, or makes it, and cuts off what was written after `step`.
  /// @throws smelt::error naming the file and the reason.
  metrics_file(std::filesystem::path path, std::int64_t step) : path_(std::move(path)) {
    file_ = detail::file_descriptor(
        ::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666));
    if (!file_.is_open()) fail("a file to write to");
    bytes_ = detail::metrics_bytes_up_to(mapped_file(path_), step);
    if (::ftruncate(file_.number(), static_cast<::off_t>(bytes_)) != 0) fail("to cut it");
  }

  const std::filesystem::path& path() const { return path_; }

  /// Appends one line.
  void write(std::string_view line) {
    detail::write_fully(file_.number(), path_.string(), bytes_, std::as_bytes(std::span(line)));
    bytes_ += static_cast<std::int64_t>(line.size());
  }

  /// All lines so far are on the disk when it returns.
  void sync() {
    if (::fsync(file_.number()) != 0 && errno != EINVAL) fail("it on the disk (fsync)");
  }

 private:
  [[noreturn]] void fail(const std::string& expected) const {
    throw detail::io_error(path_.string(), expected, detail::reason_text(errno),
                           "make room, or choose a folder that may be written to");
  }

  std::filesystem::path path_;
  detail::file_descriptor file_;
  std::int64_t bytes_ = 0;
};

}  // namespace smelt
