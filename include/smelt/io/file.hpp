// SPDX-License-Identifier: Apache-2.0
//
// Files: one that is read in place, and one that is there whole or not at all.
//
//   mapped_file   the bytes of a file as memory, read only
//   atomic_file   written as NAME.tmp-<process>, then: fsync, rename to NAME, fsync of the folder.
//                 Whatever fails before the rename (a full disk, a short write) removes the
//                 temporary and leaves what stood at NAME as it was; so does giving up.
//
// A program that is killed leaves its temporary. The temporary is locked while it is written: a
// later program with the same process number (in a container it is always the same) takes over
// what a dead one left, and two live writers of one name are told of each other.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "smelt/error.hpp"
#include "smelt/io/message.hpp"

namespace smelt {

namespace detail {

inline std::string reason_text(int code) {
  return std::generic_category().message(code);
}

// What stands at a path, where it is not the regular file that was expected.
inline std::string file_kind_text(::mode_t mode) {
  if (S_ISREG(mode)) return "a regular file";
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISLNK(mode)) return "a symbolic link";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

/// Owns a file descriptor.
class file_descriptor {
 public:
  // Negative: none, as the system's own calls report a failure.
  explicit file_descriptor(int number = -1) : number_(number) {}
  file_descriptor(file_descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  // What this one held is closed when `other` goes.
  file_descriptor& operator=(file_descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~file_descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int number() const { return number_; }
  bool is_open() const { return number_ >= 0; }

 private:
  int number_;
};

/// Writes all bytes at an offset, however short the single writes are. `place` is the file's name.
/// @throws smelt::error naming the file, the range and how much of it was written.
inline void write_fully(int descriptor, const std::string& place, std::int64_t offset_bytes,
                        std::span<const std::byte> bytes) {
  constexpr std::size_t most_bytes = std::size_t{1} << 30U;  // systems differ in what they take
  std::size_t written = 0;
  // A disk that fills up takes the first part and says why only when asked for the rest.
  while (written < bytes.size()) {
    const ::ssize_t count =
        ::pwrite(descriptor, bytes.data() + written, std::min(bytes.size() - written, most_bytes),
                 static_cast<::off_t>(offset_bytes) + static_cast<::off_t>(written));
    const int code = errno;
    if (count < 0 && code == EINTR) continue;
    if (count <= 0)
      throw io_error(
          place,
          "to write " + byte_text(bytes.size()) + " at offset " + std::to_string(offset_bytes),
          (count == 0 ? "no progress" : reason_text(code)) + " after " + std::to_string(written) +
              " of them",
          "make room on the disk or choose another folder");
    written += static_cast<std::size_t>(count);
  }
}

}  // namespace detail

/// A file as memory, read only. Who shrinks the file in place meanwhile kills the reader (SIGBUS);
/// who replaces it by rename, as atomic_file does, leaves the reader the old contents.
class mapped_file {
 public:
  /// No file, no bytes.
  mapped_file() = default;
  /// @throws smelt::error naming the file where it cannot be opened or is no regular file.
  explicit mapped_file(std::filesystem::path path) : path_(std::move(path)) {
    // Non-blocking: opening a pipe that nobody writes to would wait for ever.
    const detail::file_descriptor file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!file.is_open()) fail("a readable file", detail::reason_text(errno));
    struct ::stat status {};
    if (::fstat(file.number(), &status) != 0) fail("a readable file", detail::reason_text(errno));
    if (!S_ISREG(status.st_mode)) fail("a regular file", detail::file_kind_text(status.st_mode));
    if (status.st_size == 0) return;  // mmap refuses to map nothing
    const auto bytes = static_cast<std::size_t>(status.st_size);
    // The mapping outlives the descriptor.
    void* const memory = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.number(), 0);
    if (memory == MAP_FAILED)
      fail(detail::byte_text(bytes) + " mapped into memory", detail::reason_text(errno));
    bytes_ = {static_cast<const std::byte*>(memory), bytes};
  }
  mapped_file(mapped_file&& other) noexcept
      : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}
  mapped_file& operator=(mapped_file&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~mapped_file() {
    if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }

  /// As it was named.
  const std::filesystem::path& path() const { return path_; }
  /// The whole file; starts at the beginning of a page.
  std::span<const std::byte> bytes() const { return bytes_; }
  std::int64_t size_bytes() const { return static_cast<std::int64_t>(bytes_.size()); }

 private:
  [[noreturn]] void fail(const std::string& expected, const std::string& found) const {
    throw detail::io_error(path_.string(), expected, found, "check the path and its permissions");
  }

  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

/// A file that is there whole or not at all. After an error it is given up: the temporary is gone
/// and only the destructor is left to call. A symbolic link at the path is replaced, not followed.
class atomic_file {
 public:
  /// Creates the temporary beside the path.
  /// @throws smelt::error where the folder cannot be written to, where something that is no file
  ///         stands at the path, or where another atomic_file writes to the same path now.
  explicit atomic_file(std::filesystem::path path)
      : path_(std::move(path)),
        process_(::getpid()),
        temporary_(path_.string() + ".tmp-" + std::to_string(process_)) {
    struct ::stat status {};
    // A rename onto a device would remove the device.
    if (::lstat(path_.c_str(), &status) == 0 && !S_ISREG(status.st_mode) &&
        !S_ISLNK(status.st_mode))
      throw detail::io_error(path_.string(), "a file or nothing",
                             detail::file_kind_text(status.st_mode), "choose another name");
    open_temporary();
  }
  atomic_file(const atomic_file&) = delete;
  atomic_file& operator=(const atomic_file&) = delete;
  ~atomic_file() { give_up(); }

  /// Where it stands once it is finished.
  const std::filesystem::path& path() const { return path_; }
  /// Where the bytes stand until then.
  const std::filesystem::path& temporary() const { return temporary_; }
  /// Bytes appended so far.
  std::int64_t size_bytes() const { return size_bytes_; }

  /// Appends. Unbuffered: hand over large pieces.
  /// @throws smelt::error naming file, reason and how much was written; the file is then given up.
  void write(std::span<const std::byte> bytes) {
    write_at(size_bytes_, bytes);
    size_bytes_ += static_cast<std::int64_t>(bytes.size());
  }

  /// Replaces bytes that were appended before, for a header that needs the final count.
  /// @throws smelt::error where that is not within what was written, or as `write`.
  void rewrite(std::int64_t offset_bytes, std::span<const std::byte> bytes) {
    const auto count = static_cast<std::int64_t>(bytes.size());
    if (offset_bytes < 0 || count > size_bytes_ || offset_bytes > size_bytes_ - count)
      throw detail::io_error(
          path_.string(), "to rewrite within the " + detail::byte_text(size_bytes_) + " written",
          detail::byte_text(count) + " at offset " + std::to_string(offset_bytes),
          "append them instead");
    write_at(offset_bytes, bytes);
  }

  /// Puts the file in its place, replacing what stood there. When this returns, the file outlives a
  /// crash of the machine.
  /// @throws smelt::error where the disk does not take it; what stood there then stays.
  void finish() {
    require_open();
    // Contents first, name second: a crash between the two leaves the old file, never half a new.
    if (::fsync(descriptor_.number()) != 0)
      fail(detail::byte_text(size_bytes_) + " on the disk (fsync)", errno,
           "make room on the disk or choose another folder");
    if (::rename(temporary_.c_str(), path_.c_str()) != 0)
      fail("to rename " + temporary_.filename().string() + " to its place", errno,
           "remove what stands there");
    // Closed, and with it the lock given back, only now that the name of the temporary is free.
    close();
    sync_folder();
  }

 private:
  void close() { const detail::file_descriptor closed(std::move(descriptor_)); }

  // Creates the temporary, or takes over a dead program's, and locks it.
  void open_temporary() {
    const std::string name = temporary_.filename().string();
    struct ::stat opened {};
    struct ::stat named {};
    for (int attempt = 0; attempt < 100; ++attempt) {
      close();
      // Never through a link that somebody laid there, nor waiting for the reader of a pipe.
      descriptor_ = detail::file_descriptor(::open(
          temporary_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
      if (!descriptor_.is_open() || ::fstat(descriptor_.number(), &opened) != 0)
        throw detail::io_error(path_.string(), "to create " + name, detail::reason_text(errno),
                               "choose a folder that may be written to");
      if (!S_ISREG(opened.st_mode))
        throw detail::io_error(path_.string(), "a file at " + name,
                               detail::file_kind_text(opened.st_mode), "remove it");
      // Some network file systems know no locks; there the number of the process must do.
      if (::flock(descriptor_.number(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) break;
      // Its last owner may have renamed it between our open and our lock: then it is not ours.
      if (::lstat(temporary_.c_str(), &named) != 0 || named.st_ino != opened.st_ino ||
          named.st_dev != opened.st_dev)
        continue;
      // What a dead program had written.
      if (::ftruncate(descriptor_.number(), 0) != 0) fail("to empty " + name, errno, "remove it");
      return;
    }
    throw detail::io_error(path_.string(), "one writer at a time", "another one at work on " + name,
                           "wait for it or choose another name");
  }

  void require_open() const {
    if (!descriptor_.is_open())
      throw detail::io_error(path_.string(), "a file that is being written",
                             "one that is finished or given up", "write it anew");
  }

  void write_at(std::int64_t offset_bytes, std::span<const std::byte> bytes) {
    require_open();
    // A file with a gap must never be finished.
    try {
      detail::write_fully(descriptor_.number(), path_.string(), offset_bytes, bytes);
    } catch (...) {
      give_up();
      throw;
    }
  }

  [[noreturn]] void fail(const std::string& expected, int code, const std::string& remedy) {
    give_up();
    throw detail::io_error(path_.string(), expected, detail::reason_text(code), remedy);
  }

  // Removes the temporary. A forked child has a copy of this object, but the file is its parent's.
  void give_up() noexcept {
    if (!descriptor_.is_open()) return;
    if (::getpid() == process_) ::unlink(temporary_.c_str());
    close();
  }

  // Without it a crash may forget the new name, though not the bytes.
  void sync_folder() const {
    const std::filesystem::path parent = path_.parent_path();
    const detail::file_descriptor folder(
        ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder.is_open() && ::fsync(folder.number()) == 0) return;
    // EINVAL: a file system whose folders cannot be synced; nothing better is to be had there.
    if (folder.is_open() && errno == EINVAL) return;
    throw detail::io_error(path_.string(), "its folder on the disk (fsync)",
                           detail::reason_text(errno),
                           "the file is in its place and whole, but may be lost in a crash");
  }

  std::filesystem::path path_;
  ::pid_t process_;  // that made it
  std::filesystem::path temporary_;
  detail::file_descriptor descriptor_;
  std::int64_t size_bytes_ = 0;
};

}  // namespace smelt
