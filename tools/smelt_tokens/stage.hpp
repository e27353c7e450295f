// SPDX-License-Identifier: Apache-2.0
//
// stage: a folder that is there whole or not at all. It is built as NAME.part beside its place,
// locked, and renamed when all of it is on the disk. A program that is killed leaves NAME.part; the
// next one of the same name empties and takes it.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "smelt/io/file.hpp"

namespace smelt_tokens {

class stage {
 public:
  /// @throws smelt::error where something that is no empty folder stands at `folder`, where it
  ///         cannot be made, or where another program makes it now.
  explicit stage(const std::filesystem::path& folder) : folder_(folder.lexically_normal()) {
    namespace fs = std::filesystem;
    if (folder_.filename().empty()) folder_ = folder_.parent_path();
    part_ = folder_.string() + ".part";
    std::error_code code;
    const fs::file_status status = fs::symlink_status(folder_, code);
    if (fs::exists(status) && !(fs::is_directory(status) && fs::is_empty(folder_, code)))
      fail("nothing or an empty folder",
           fs::is_directory(status) ? "a folder with files in it" : "something else",
           "remove it or choose another folder with --out");
    if (::mkdir(part_.c_str(), 0777) != 0 && errno != EEXIST)
      fail("to create " + part_.filename().string(), smelt::detail::reason_text(errno),
           "choose another folder with --out");
    lock_ = smelt::detail::file_descriptor(
        ::open(part_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    if (!lock_.is_open())
      fail("a folder at " + part_.filename().string(), smelt::detail::reason_text(errno),
           "remove it or choose another folder with --out");
    if (::flock(lock_.number(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
      fail("one smelt-tokens at a time", "another one at work on it", "wait for it");
    // Between opening and locking its last owner may have renamed it: then it is not ours.
    struct ::stat opened {};
    struct ::stat named {};
    if (::fstat(lock_.number(), &opened) != 0 || ::lstat(part_.c_str(), &named) != 0 ||
        opened.st_ino != named.st_ino)
      fail("one smelt-tokens at a time", "another one that has just finished", "look at its work");
    empty_part();
    is_ours_ = true;
  }
  stage(const stage&) = delete;
  stage& operator=(const stage&) = delete;
  ~stage() {
    if (!is_ours_) return;
    std::error_code ignored;
    std::filesystem::remove_all(part_, ignored);
  }

  /// Where the files are written until then.
  const std::filesystem::path& part() const { return part_; }

  /// Puts the folder in its place. Its files must be on the disk, as atomic_file leaves them.
  void finish() {
    ::fsync(lock_.number());
    // Onto an empty folder this works too; onto any other it fails and leaves both.
    if (::rename(part_.c_str(), folder_.c_str()) != 0)
      fail("to rename " + part_.filename().string() + " to its place",
           smelt::detail::reason_text(errno), "remove what stands there");
    is_ours_ = false;
    const std::filesystem::path parent = folder_.parent_path();
    const smelt::detail::file_descriptor above(
        ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (above.is_open()) ::fsync(above.number());
  }

 private:
  [[noreturn]] void fail(const std::string& expected, const std::string& found,
                         const std::string& remedy) const {
    throw smelt::detail::io_error(folder_.string(), expected, found, remedy);
  }

  // What a killed program left, and nothing that it cannot have written.
  void empty_part() const {
    namespace fs = std::filesystem;
    std::error_code code;
    std::vector<fs::path> old;
    for (const fs::directory_entry& entry : fs::directory_iterator(part_, code)) {
      const std::string name = entry.path().filename().string();
      if (!entry.is_regular_file(code) ||
          !(name.starts_with("train.") || name.starts_with("held_out.") ||
            name.starts_with("manifest.json") || name.starts_with("smelt-tokens.spool-")))
        fail("nothing but its own files in " + part_.filename().string(),
             smelt::detail::quoted_name(name), "remove it or choose another folder with --out");
      old.push_back(entry.path());
    }
    for (const fs::path& path : old) fs::remove(path, code);
  }

  std::filesystem::path folder_;
  std::filesystem::path part_;
  smelt::detail::file_descriptor lock_;
  bool is_ours_ = false;
};

}  // namespace smelt_tokens
