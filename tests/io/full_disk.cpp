// SPDX-License-Identifier: Apache-2.0
//
// A disk that is really full: a file system of 64 KiB in memory, mounted for this process alone.
// Where the system grants no mount the test skips itself (exit code 77).
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "io/bytes.hpp"
#include "smelt/io/file.hpp"
#include "smelt/io/tokens.hpp"
#include "support/folder.hpp"

namespace {
using namespace smelt;
using namespace smelt_test;

void write_text(const char* path, const std::string& text) {
  const detail::file_descriptor file(::open(path, O_WRONLY | O_CLOEXEC));
  if (file.is_open() && ::write(file.number(), text.data(), text.size()) < 0) return;
}

// Into a view of mounts of our own; if need be as the root of users of our own.
bool leave_the_mounts_of_others() {
  if (::unshare(CLONE_NEWNS) == 0) return true;
  const std::string user = std::to_string(::getuid());
  const std::string group = std::to_string(::getgid());
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  write_text("/proc/self/setgroups", "deny");
  write_text("/proc/self/uid_map", "0 " + user + " 1");
  write_text("/proc/self/gid_map", "0 " + group + " 1");
  return true;
}

TEST_CASE("on a full disk the old file stays, and the temporary goes") {
  const folder folder;
  if (!leave_the_mounts_of_others() ||
      ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=64k") != 0) {
    std::printf("skipped: the system grants no mount of a small file system\n");
    std::fflush(stdout);
    std::filesystem::remove_all(folder.path());
    std::_Exit(77);
  }
  const auto path = folder.write("weights", std::string(20'000, 'o'));
  const std::string text(60'000, 'x');

  SUBCASE("by bytes") {
    const std::string message = message_of([&] {
      atomic_file file(path);
      file.write(span_of(text));
      file.finish();
    });
    CHECK(message.find("found No space left on device after ") != std::string::npos);
    CHECK(message.find(path.string() + ": expected to write 60000 bytes at offset 0") == 0);
    CHECK(message.find("; make room on the disk") != std::string::npos);
  }
  SUBCASE("by tokens") {
    const std::string message = message_of([&] {
      token_writer writer(path, token_format::llmc_uint16, 50257);
      writer.append(std::vector<int>(30'000, 7));
      writer.finish();
    });
    CHECK(message.find("found No space left on device after ") != std::string::npos);
  }
  CHECK(text_of(path) == std::string(20'000, 'o'));
  CHECK(entries_of(folder.path()) == 1);

  // With room again the same write goes through.
  std::filesystem::remove(path);
  atomic_file file(path);
  file.write(span_of(text));
  file.finish();
  CHECK(text_of(path) == text);
  ::umount(folder.path().c_str());
}

}  // namespace
