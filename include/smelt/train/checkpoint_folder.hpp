// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints as folders: each is there whole or not at all, and the latest is the highest of them.
//
//   root/step-00001234                 a checkpoint: complete from the moment it has this name
//   root/step-00001234.tmp-<process>   one that is being written, or that a dead program left
//
// Written under the second name, each file and the folder fsynced, renamed, the root fsynced. No
// file points at the latest one: it could be stale where a name cannot. One program at a time
// writes below a root, which it locks meanwhile; whatever is temporary there belongs to the dead
// and is removed, before a write (a full disk must not stay full) and after one.
#pragma once

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "smelt/io/file.hpp"
#include "smelt/io/message.hpp"

namespace smelt {

/// The files of a checkpoint. A folder that lacks one is no checkpoint.
inline constexpr const char* checkpoint_weights = "weights.safetensors";
inline constexpr const char* checkpoint_optimizer = "optimizer.safetensors";
inline constexpr const char* checkpoint_record = "state.json";

/// Which checkpoints stay when a new one is there.
struct retention {
  std::int64_t last = 3;                      ///< the newest so many, at least 1
  std::vector<std::int64_t> branch_points{};  ///< and those of these steps, for ever
};

/// A checkpoint of a root.
struct checkpoint_entry {
  std::int64_t step = 0;
  std::filesystem::path path{};
};

/// "step-00001234": as many digits as it takes, at least 8, so that names sort like numbers.
inline std::string checkpoint_name(std::int64_t step) {
  const std::string digits = std::to_string(step);
  return "step-" + std::string(digits.size() < 8 ? 8 - digits.size() : 0, '0') + digits;
}

/// The step of a checkpoint's name, or nothing where it is not exactly one.
inline std::optional<std::int64_t> checkpoint_step(std::string_view name) {
  constexpr std::string_view prefix = "step-";
  if (!name.starts_with(prefix)) return std::nullopt;
  const std::string_view digits = name.substr(prefix.size());
  std::int64_t step = -1;
  std::from_chars(digits.data(), digits.data() + digits.size(), step);
  // Written back it must be the same name: no sign, no temporary's ending, the right zeros.
  if (step < 0 || checkpoint_name(step) != name) return std::nullopt;
  return step;
}

/// All complete checkpoints below a root, by step; none where there is no root.
/// @throws smelt::error where the root cannot be read.
inline std::vector<checkpoint_entry> checkpoints_in(const std::filesystem::path& root) {
  namespace fs = std::filesystem;
  std::vector<checkpoint_entry> found;
  std::error_code code;
  fs::directory_iterator walk(root, code);
  if (code == std::errc::no_such_file_or_directory) return found;
  for (; !code && walk != fs::directory_iterator(); walk.increment(code)) {
    const std::optional<std::int64_t> step = checkpoint_step(walk->path().filename().string());
    // Its name says that it was complete; a copy of it that broke off has the name as well.
    const auto has = [&](const char* file) {
      std::error_code ignored;
      return fs::is_regular_file(walk->path() / file, ignored);
    };
    if (step && has(checkpoint_weights) && has(checkpoint_optimizer) && has(checkpoint_record))
      found.push_back({*step, walk->path()});
  }
  if (code)
    throw detail::io_error(root.string(), "a folder of checkpoints", code.message(),
                           "check the path and its permissions");
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.step < b.step; });
  return found;
}

/// The checkpoint to go on from, or nothing. It is not opened: what is broken in it says so when it
/// is loaded, rather than being passed over for an older one in silence.
inline std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& root) {
  const std::vector<checkpoint_entry> found = checkpoints_in(root);
  if (found.empty()) return std::nullopt;
  return found.back().path;
}

/// A checkpoint that is being written. Unless it is finished, nothing of it remains.
class checkpoint_writer {
 public:
  /// Locks the root, making it where there is none, removes what dead programs left, and makes the
  /// temporary folder.
  /// @throws smelt::error where that fails, or where another program writes below this root.
  checkpoint_writer(std::filesystem::path root, std::int64_t step)
      : root_(std::move(root)),
        name_(checkpoint_name(step)),
        temporary_(root_ / (name_ + ".tmp-" + std::to_string(::getpid()))) {
    std::error_code code;
    std::filesystem::create_directories(root_, code);
    lock_ = open_folder(root_);
    if (!lock_.is_open()) fail(root_, "a folder to write checkpoints to", errno);
    // Some network file systems know no locks; there nobody else must write.
    if (::flock(lock_.number(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
      throw detail::io_error(root_.string(), "one writer of checkpoints at a time",
                             "another one at work", "wait for it or choose another folder");
    remove_temporaries();
    if (::mkdir(temporary_.c_str(), 0777) != 0) fail(temporary_, "to make this folder", errno);
  }
  checkpoint_writer(const checkpoint_writer&) = delete;
  checkpoint_writer& operator=(const checkpoint_writer&) = delete;
  ~checkpoint_writer() {
    std::error_code ignored;
    std::filesystem::remove_all(temporary_, ignored);
  }

  /// Where the files go until it is finished, each of them fsynced by who writes it.
  const std::filesystem::path& folder() const { return temporary_; }

  /// Puts the checkpoint in its place. One of the same step that stood there (left by a run that
  /// went back) is exchanged for it in one stroke and removed.
  /// @return where it stands, there even after a crash of the machine.
  std::filesystem::path finish() {
    const std::filesystem::path place = root_ / name_;
    sync(temporary_);
    if (::rename(temporary_.c_str(), place.c_str()) != 0) {
      const int code = errno;
      const bool taken = code == ENOTEMPTY || code == EEXIST;
      if (!taken || !exchange(temporary_, place))
        fail(place, "to rename the checkpoint to it", code);
    }
    sync(root_);
    // What was exchanged stands under the temporary name now.
    remove_temporaries();
    return place;
  }

  /// Removes the checkpoints that `keep` does not keep; the one just written stays anyway.
  void prune(const retention& keep) const {
    std::vector<checkpoint_entry> found = checkpoints_in(root_);
    const auto all = static_cast<std::int64_t>(found.size());
    for (std::int64_t i = 0; i < all - keep.last; ++i) {
      const checkpoint_entry& entry = found[static_cast<std::size_t>(i)];
      const bool is_branch_point = std::find(keep.branch_points.begin(), keep.branch_points.end(),
                                             entry.step) != keep.branch_points.end();
      const std::string name = entry.path.filename().string();
      if (is_branch_point || name == name_) continue;
      // Renamed first: a kill during the removal must not leave half a checkpoint under its name.
      if (::rename(entry.path.c_str(), (root_ / (name + ".tmp-old")).c_str()) != 0)
        fail(entry.path, "to remove this old checkpoint", errno);
    }
    remove_temporaries();
  }

 private:
  // To lock it or to sync it.
  static detail::file_descriptor open_folder(const std::filesystem::path& path) {
    return detail::file_descriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }

  // What the system said, as the sentence of this library.
  [[noreturn]] static void fail(const std::filesystem::path& place, const std::string& expected,
                                int code) {
    throw detail::io_error(place.string(), expected, detail::reason_text(code),
                           "make room, or choose a folder that may be written to");
  }

  static void sync(const std::filesystem::path& path) {
    const detail::file_descriptor folder = open_folder(path);
    // EINVAL: a file system whose folders cannot be synced; nothing better is to be had there.
    if (folder.is_open() && (::fsync(folder.number()) == 0 || errno == EINVAL)) return;
    fail(path, "this folder on the disk (fsync)", errno);
  }

  // Two folders swap names; false where the system or its file system cannot.
  static bool exchange([[maybe_unused]] const std::filesystem::path& a,
                       [[maybe_unused]] const std::filesystem::path& b) {
#if defined(RENAME_EXCHANGE)
    return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
#else
    return false;
#endif
  }

  // Only what has the name of a checkpoint's temporary; a user's other files are his.
  void remove_temporaries() const {
    namespace fs = std::filesystem;
    std::vector<fs::path> left;
    std::error_code code;
    for (fs::directory_iterator walk(root_, code); !code && walk != fs::directory_iterator();
         walk.increment(code)) {
      const std::string name = walk->path().filename().string();
      const std::size_t ending = name.find(".tmp-");
      if (ending != std::string::npos && checkpoint_step(name.substr(0, ending)))
        left.push_back(walk->path());
    }
    // Not while walking: whether a walk sees what it removes is left open.
    for (const fs::path& path : left) {
      if (!code) fs::remove_all(path, code);
      if (code)
        throw detail::io_error(path.string(), "to remove what an ended program left",
                               code.message(), "remove it by hand");
    }
  }

  std::filesystem::path root_;
  std::string name_;
  std::filesystem::path temporary_;
  detail::file_descriptor lock_;
};

}  // namespace smelt
