// SPDX-License-Identifier: Apache-2.0
//
// The converted documents behind one another in a file without a name, which is gone whatever
// becomes of this program; in memory there are 24 bytes per document.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "smelt/io/checksum.hpp"
#include "smelt/io/file.hpp"

namespace smelt_tokens {

/// Bytes [begin, end) of the spool.
struct spooled_document {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::uint64_t hash = 0;  // of the contents
  std::int64_t size() const { return end - begin; }
};

inline std::uint64_t content_hash(std::string_view text) {
  return smelt::checksum_of(std::as_bytes(std::span(text))).value();
}

class spool {
 public:
  /// @param folder  where there is room for the corpus.
  explicit spool(const std::filesystem::path& folder)
      : name_((folder / ("smelt-tokens.spool-" + std::to_string(::getpid()))).string()),
        file_(::open(name_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) {
    if (!file_.is_open())
      throw smelt::detail::io_error(name_, "to create it", smelt::detail::reason_text(errno),
                                    "choose a folder that may be written to");
    ::unlink(name_.c_str());
  }
  spool(const spool&) = delete;
  spool& operator=(const spool&) = delete;
  ~spool() {
    if (memory_ != nullptr) ::munmap(memory_, static_cast<std::size_t>(written_));
  }

  /// Appends bytes; returns where they begin.
  std::int64_t append(std::string_view text) {
    const std::int64_t begin = size();
    pending_ += text;
    if (pending_.size() >= (std::size_t{1} << 22U)) flush();
    return begin;
  }
  std::int64_t size() const { return written_ + static_cast<std::int64_t>(pending_.size()); }

  /// Makes all of it readable; nothing more can be appended.
  void finish() {
    flush();
    if (written_ == 0) return;
    void* const memory = ::mmap(nullptr, static_cast<std::size_t>(written_), PROT_READ, MAP_SHARED,
                                file_.number(), 0);
    if (memory == MAP_FAILED)
      throw smelt::detail::io_error(name_, smelt::detail::byte_text(written_) + " mapped",
                                    smelt::detail::reason_text(errno), "free some memory");
    memory_ = memory;
  }

  std::string_view text(const spooled_document& document) const {
    return {static_cast<const char*>(memory_) + document.begin,
            static_cast<std::size_t>(document.size())};
  }

 private:
  void flush() {
    smelt::detail::write_fully(file_.number(), name_, written_,
                               std::as_bytes(std::span<const char>(pending_)));
    written_ += static_cast<std::int64_t>(pending_.size());
    pending_.clear();
  }

  std::string name_;  // for messages
  smelt::detail::file_descriptor file_;
  std::string pending_;
  std::int64_t written_ = 0;
  void* memory_ = nullptr;
};

}  // namespace smelt_tokens
