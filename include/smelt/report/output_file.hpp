// SPDX-License-Identifier: Apache-2.0
//
// output_file: a file that is there whole or not at all.
//
// It is written beside its place, as NAME.part, and renamed when it is finished; an error before
// that removes the part. A program that is killed leaves NAME.part with every line written so far,
// because a line goes to the system as one write.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "smelt/error.hpp"

namespace smelt {

/// Throws smelt::error, naming file, reason and remedy, from every member that can fail.
class output_file {
 public:
  /// Creates NAME.part, or empties the one that an earlier run left.
  explicit output_file(std::filesystem::path path)
      : path_(std::move(path)), part_(path_.string() + ".part") {
    descriptor_ = ::open(part_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (descriptor_ < 0) fail("cannot create", "choose a folder that may be written to");
  }
  output_file(const output_file&) = delete;
  output_file& operator=(const output_file&) = delete;
  ~output_file() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!finished_) ::unlink(part_.c_str());
  }

  /// Where it stands once it is finished.
  const std::filesystem::path& path() const { return path_; }
  /// Where the text stands until the file is finished.
  const std::filesystem::path& part() const { return part_; }

  /// Appends. Unbuffered on purpose: what was written outlives the program.
  void write(std::string_view text) {
    while (!text.empty()) {
      const ::ssize_t count = ::write(descriptor_, text.data(), text.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail("cannot write", "make room on the disk or choose another folder");
      text.remove_prefix(static_cast<std::size_t>(count));
    }
  }

  /// Puts the file in its place, replacing what stood there.
  void finish() {
    const int descriptor = std::exchange(descriptor_, -1);
    // Contents first, name second: a crash between the two leaves the old file, never half a new.
    const bool written = ::fsync(descriptor) == 0;
    const int code = errno;
    if (::close(descriptor) != 0 || !written) {
      if (!written) errno = code;
      fail("cannot write", "make room on the disk or choose another folder");
    }
    if (::rename(part_.c_str(), path_.c_str()) != 0)
      fail("cannot rename to its place", "remove what stands there");
    finished_ = true;
  }

 private:
  [[noreturn]] void fail(const std::string& what, const std::string& remedy) const {
    throw error(path_.string() + ": " + what + ": " + std::strerror(errno) + "; " + remedy);
  }

  std::filesystem::path path_;
  std::filesystem::path part_;
  int descriptor_ = -1;
  bool finished_ = false;
};

}  // namespace smelt
