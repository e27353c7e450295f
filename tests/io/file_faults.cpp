// SPDX-License-Identifier: Apache-2.0
//
// In which order a finished file reaches the disk, and what becomes of it when each single call to
// the system fails. The calls are replaced by ones of this program that note what was asked, fail
// on demand, and otherwise ask the kernel.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "io/bytes.hpp"
#include "smelt/io/file.hpp"
#include "support/folder.hpp"

namespace {

// What happened, and what is to go wrong.
struct system_calls {
  std::vector<std::string> noted{};
  int fail_file_fsync = 0;  // an errno, or 0
  int fail_folder_fsync = 0;
  int fail_rename = 0;
  std::size_t most_bytes = 0;   // that a write takes; 0: all
  int interruptions = 0;        // writes that end with EINTR before one goes through
  bool takes_nothing = false;   // writes of no byte and no reason
  int renames_before_lock = 0;  // how often another writer finishes between open and lock
};
system_calls calls;

int fails(int code) {
  errno = code;
  return -1;
}

}  // namespace

extern "C" int fsync(int descriptor) {
  struct ::stat status {};
  ::fstat(descriptor, &status);
  const bool is_folder = S_ISDIR(status.st_mode);
  calls.noted.emplace_back(is_folder ? "fsync folder" : "fsync file");
  if (const int code = is_folder ? calls.fail_folder_fsync : calls.fail_file_fsync; code != 0)
    return fails(code);
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}

extern "C" int flock(int descriptor, int operation) {
  if (calls.renames_before_lock > 0) {
    --calls.renames_before_lock;
    char name[4096];
    const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
    const ::ssize_t length = ::readlink(link.c_str(), name, sizeof name);
    const std::string path(name, length > 0 ? static_cast<std::size_t>(length) : 0);
    calls.noted.emplace_back("renamed by another");
    ::syscall(SYS_renameat2, AT_FDCWD, path.c_str(), AT_FDCWD, (path + "-finished").c_str(), 0);
  }
  return static_cast<int>(::syscall(SYS_flock, descriptor, operation));
}

extern "C" int rename(const char* from, const char* to) noexcept {
  calls.noted.emplace_back("rename");
  if (calls.fail_rename != 0) return fails(calls.fail_rename);
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

extern "C" ::ssize_t pwrite(int descriptor, const void* bytes, std::size_t count, ::off_t offset) {
  calls.noted.emplace_back("write " + std::to_string(count) + " at " + std::to_string(offset));
  if (calls.interruptions > 0) {
    --calls.interruptions;
    return fails(EINTR);
  }
  if (calls.takes_nothing) return 0;
  if (calls.most_bytes > 0 && count > calls.most_bytes) count = calls.most_bytes;
  return ::syscall(SYS_pwrite64, descriptor, bytes, count, offset);
}

namespace {
using namespace smelt;
using namespace smelt_test;
using list = std::vector<std::string>;

// Writes "new contents" over "old" with these faults; returns the error's text.
std::string written(const std::filesystem::path& path, const system_calls& faults) {
  calls = faults;
  const std::string message = message_of([&] {
    atomic_file file(path);
    file.write(span_of("new "));
    file.write(span_of("contents"));
    file.finish();
  });
  const list noted = calls.noted;
  calls = {};
  calls.noted = noted;
  return message;
}

TEST_CASE("contents, then the name, then the folder") {
  const folder folder;
  const auto path = folder.write("f", "old");
  CHECK(written(path, {}) == "");
  CHECK(calls.noted ==
        list{"write 4 at 0", "write 8 at 4", "fsync file", "rename", "fsync folder"});
  CHECK(text_of(path) == "new contents");
}

TEST_CASE("writes that are short or interrupted go on where they stopped") {
  const folder folder;
  const auto path = folder.write("f", "old");
  system_calls faults;
  faults.most_bytes = 3;
  faults.interruptions = 2;
  CHECK(written(path, faults) == "");
  CHECK(calls.noted == list{"write 4 at 0", "write 4 at 0", "write 4 at 0", "write 1 at 3",
                            "write 8 at 4", "write 5 at 7", "write 2 at 10", "fsync file", "rename",
                            "fsync folder"});
  CHECK(text_of(path) == "new contents");
}

TEST_CASE("a write that takes nothing and gives no reason ends, instead of being tried for ever") {
  const folder folder;
  const auto path = folder.write("f", "old");
  system_calls faults;
  faults.takes_nothing = true;
  CHECK(written(path, faults) ==
        path.string() +
            ": expected to write 4 bytes at offset 0, found no progress after 0 of "
            "them; make room on the disk or choose another folder");
  CHECK(calls.noted == list{"write 4 at 0"});
  CHECK(text_of(path) == "old");
  CHECK(entries_of(folder.path()) == 1);
}

TEST_CASE("contents that do not reach the disk never take the old file's place") {
  const folder folder;
  const auto path = folder.write("f", "old");
  system_calls faults;
  faults.fail_file_fsync = ENOSPC;
  CHECK(written(path, faults) ==
        path.string() +
            ": expected 12 bytes on the disk (fsync), found No space left on device; "
            "make room on the disk or choose another folder");
  CHECK(calls.noted == list{"write 4 at 0", "write 8 at 4", "fsync file"});
  CHECK(text_of(path) == "old");
  CHECK(entries_of(folder.path()) == 1);
}

TEST_CASE("a name that cannot be changed leaves the old file") {
  const folder folder;
  const auto path = folder.write("f", "old");
  system_calls faults;
  faults.fail_rename = EACCES;
  CHECK(written(path, faults).find("to its place, found Permission denied; ") != std::string::npos);
  CHECK(text_of(path) == "old");
  CHECK(entries_of(folder.path()) == 1);
}

TEST_CASE("a folder that cannot be synced: an error that says so, unless it never can") {
  const folder folder;
  const auto path = folder.write("f", "old");
  system_calls faults;
  faults.fail_folder_fsync = EIO;
  CHECK(written(path, faults) ==
        path.string() +
            ": expected its folder on the disk (fsync), found Input/output error; the "
            "file is in its place and whole, but may be lost in a crash");
  CHECK(text_of(path) == "new contents");
  faults.fail_folder_fsync = EINVAL;
  CHECK(written(path, faults) == "");
  CHECK(entries_of(folder.path()) == 1);
}

TEST_CASE("a temporary that its owner renames before we lock it is his, finished, and left alone") {
  const folder folder;
  const auto path = folder.write("f", "old");
  const std::string temporary = "f.tmp-" + std::to_string(::getpid());
  folder.write(temporary, "the other one's contents");
  system_calls faults;
  faults.renames_before_lock = 2;
  CHECK(written(path, faults) == "");
  CHECK(calls.noted.at(1) == "renamed by another");
  CHECK(text_of(path) == "new contents");
  CHECK(text_of(folder / (temporary + "-finished")) == "");  // the second, which was empty
  // And the first alone:
  folder.write(temporary, "the other one's contents");
  faults.renames_before_lock = 1;
  CHECK(written(path, faults) == "");
  CHECK(text_of(folder / (temporary + "-finished")) == "the other one's contents");
  // Not for ever.
  faults.renames_before_lock = 1000;
  CHECK(written(path, faults) ==
        path.string() + ": expected one writer at a time, found another one at work on " +
            temporary + "; wait for it or choose another name");
  CHECK(calls.noted.size() == 100);
  CHECK(text_of(path) == "new contents");
}

}  // namespace
