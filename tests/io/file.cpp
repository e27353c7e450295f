// SPDX-License-Identifier: Apache-2.0
//
// Files: read in place, and written whole or not at all, whatever goes wrong on the way.
#include "smelt/io/file.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <string>

#include "io/bytes.hpp"
#include "support/folder.hpp"

namespace {
using namespace smelt;
using namespace smelt_test;

std::string mapped_text(const mapped_file& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

std::string temporary_of(const std::filesystem::path& path) {
  return path.filename().string() + ".tmp-" + std::to_string(::getpid());
}

// Runs in a child, whose death is no matter of ours; returns how it ended, as waitpid says.
template <class Call>
int in_child(const Call& call) {
  const ::pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    call();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

TEST_CASE("a mapped file is the file, also when it is empty, long or moved") {
  const folder folder;
  CHECK(mapped_text(mapped_file(folder.write("short", "abc"))) == "abc");
  const mapped_file empty(folder.write("empty", ""));
  CHECK(empty.size_bytes() == 0);
  CHECK(empty.path() == folder / "empty");
  std::string text(100'000, 'x');
  text.back() = 'y';
  mapped_file first(folder.write("long", text));
  mapped_file second(std::move(first));
  CHECK(mapped_text(second) == text);
  first = std::move(second);
  CHECK(first.size_bytes() == 100'000);
  CHECK(first.path() == folder / "long");
  first = mapped_file();
  CHECK(first.bytes().empty());
}

TEST_CASE("what is no readable file is refused by name, and at once") {
  const folder folder;
  const auto message = [](const std::filesystem::path& path) {
    return message_of([&] { mapped_file file(path); });
  };
  const std::string remedy = "; check the path and its permissions";
  CHECK(message(folder / "missing") == (folder / "missing").string() +
                                           ": expected a readable file, found No such file or "
                                           "directory" +
                                           remedy);
  CHECK(message(folder.path()) ==
        folder.path().string() + ": expected a regular file, found a folder" + remedy);
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(message(folder / "pipe") ==
        (folder / "pipe").string() + ": expected a regular file, found a pipe" + remedy);
  CHECK(message("/dev/null") == "/dev/null: expected a regular file, found a device" + remedy);
}

TEST_CASE("written beside, then renamed; the old file stays until the new one is whole") {
  const folder folder;
  const auto path = folder.write("weights", "old");
  const mapped_file before(path);
  {
    atomic_file file(path);
    CHECK(file.temporary().filename() == temporary_of(path));
    CHECK(file.temporary().parent_path() == folder.path());
    file.write(span_of("??: one, "));
    file.write(span_of("two"));
    file.write({});
    CHECK(file.size_bytes() == 12);
    file.rewrite(0, span_of("12"));
    CHECK(text_of(path) == "old");
    CHECK(text_of(file.temporary()) == "12: one, two");
    file.finish();
    CHECK(text_of(path) == "12: one, two");
    CHECK(message_of([&] { file.write(span_of("x")); }) ==
          path.string() +
              ": expected a file that is being written, found one that is finished or given up; "
              "write it anew");
    CHECK(message_of([&] { file.finish(); }) != "");
  }
  CHECK(text_of(path) == "12: one, two");
  CHECK(entries_of(folder.path()) == 1);
  // A reader of the old file still has it.
  CHECK(mapped_text(before) == "old");
}

TEST_CASE("given up: nothing new is left, and what stood there stays") {
  const folder folder;
  const auto path = folder.write("weights", "old");
  { atomic_file(path).write(span_of("half")); }
  { atomic_file(folder / "other").write(span_of("half")); }
  CHECK(text_of(path) == "old");
  CHECK(entries_of(folder.path()) == 1);
}

TEST_CASE("a name without a folder is one of the current folder") {
  const folder folder;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  const std::string message = message_of([] {
    atomic_file file("plain");
    file.write(span_of("text"));
    file.finish();
  });
  std::filesystem::current_path(before);
  CHECK(message == "");
  CHECK(text_of(folder / "plain") == "text");
}

TEST_CASE("a short write, then a disk that takes no more: the old file is untouched") {
  const folder folder;
  const auto path = folder.write("weights", "old");
  const std::string text(10'000, 'x');
  // A limit on the size of files: the system writes up to it and then refuses, as a full disk does.
  ::rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &limit) == 0);
  const ::rlimit low{4096, limit.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &low) == 0);
  std::string message;
  std::string afterwards;
  {
    atomic_file file(path);
    message = message_of([&] {
      file.write(span_of(text).first(1000));
      file.write(span_of(text));
    });
    // Given up there and then: it can no longer take the old file's place.
    afterwards = message_of([&] { file.finish(); });
  }
  ::setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, handler);
  CHECK(message == path.string() +
                       ": expected to write 10000 bytes at offset 1000, found File too large after "
                       "3096 of them; make room on the disk or choose another folder");
  CHECK(afterwards.find("finished or given up") != std::string::npos);
  CHECK(text_of(path) == "old");
  CHECK(entries_of(folder.path()) == 1);
}

TEST_CASE("a device that is always full") {
  if (!std::filesystem::exists("/dev/full")) {
    MESSAGE("skipped: there is no /dev/full");
    return;
  }
  const detail::file_descriptor full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  REQUIRE(full.is_open());
  CHECK(message_of([&] { detail::write_fully(full.number(), "name", 5, span_of("abc")); }) ==
        "name: expected to write 3 bytes at offset 5, found No space left on device after 0 of "
        "them; make room on the disk or choose another folder");
}

TEST_CASE("a writer that is killed leaves the old file, and the next one succeeds") {
  const folder folder;
  const auto path = folder.write("weights", "old");
  const int status = in_child([&] {
    atomic_file file(path);
    file.write(span_of("half of the new"));
    ::raise(SIGKILL);
  });
  REQUIRE(WIFSIGNALED(status));
  CHECK(text_of(path) == "old");
  CHECK(entries_of(folder.path()) == 2);  // the killed one could not remove its own
  // As a program sees it that comes to life with the number of the dead one.
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    if (entry.path() != path) std::filesystem::rename(entry.path(), folder / temporary_of(path));
  atomic_file file(path);
  file.write(span_of("new"));
  file.finish();
  CHECK(text_of(path) == "new");
  CHECK(entries_of(folder.path()) == 1);
}

TEST_CASE("two writers of one name are told of each other") {
  const folder folder;
  const auto path = folder / "weights";
  atomic_file first(path);
  first.write(span_of("first"));
  CHECK(message_of([&] { atomic_file second(path); }) ==
        path.string() + ": expected one writer at a time, found another one at work on " +
            temporary_of(path) + "; wait for it or choose another name");
  first.finish();
  CHECK(text_of(path) == "first");
  atomic_file second(path);
  second.write(span_of("second"));
  second.finish();
  CHECK(text_of(path) == "second");
}

TEST_CASE("a forked child's copy of a writer does not take the file away") {
  const folder folder;
  const auto path = folder / "weights";
  auto file = std::make_unique<atomic_file>(path);
  file->write(span_of("text"));
  CHECK(in_child([&] { file.reset(); }) == 0);
  file->finish();
  CHECK(text_of(path) == "text");
}

TEST_CASE("neither a link nor a pipe laid at the temporary's name is written through") {
  const folder folder;
  const auto path = folder / "weights";
  const auto victim = folder.write("victim", "precious");
  std::filesystem::create_symlink(victim, folder / temporary_of(path));
  CHECK(message_of([&] { atomic_file file(path); }) ==
        path.string() + ": expected to create " + temporary_of(path) +
            ", found Too many levels of symbolic links; choose a folder that may be written to");
  CHECK(text_of(victim) == "precious");
  std::filesystem::remove(folder / temporary_of(path));
  REQUIRE(::mkfifo((folder / temporary_of(path)).c_str(), 0600) == 0);
  CHECK(message_of([&] { atomic_file file(path); }) != "");
  CHECK(std::filesystem::is_fifo(folder / temporary_of(path)));
}

TEST_CASE("what cannot be replaced is refused before anything is written") {
  const folder folder;
  const auto message = [](const std::filesystem::path& path) {
    return message_of([&] { atomic_file file(path); });
  };
  CHECK(message(folder.path()) ==
        folder.path().string() +
            ": expected a file or nothing, found a folder; choose another name");
  CHECK(message("/dev/null") ==
        "/dev/null: expected a file or nothing, found a device; choose another name");
  const auto deep = folder / "missing/weights";
  CHECK(message(deep) == deep.string() + ": expected to create " + temporary_of(deep) +
                             ", found No such file or directory; choose a folder that may be "
                             "written to");
  // A folder that appears meanwhile.
  const auto path = folder / "weights";
  atomic_file file(path);
  std::filesystem::create_directory(path);
  CHECK(message_of([&] { file.finish(); }) ==
        path.string() + ": expected to rename " + temporary_of(path) +
            " to its place, found Is a directory; remove what stands there");
  CHECK(entries_of(folder.path()) == 1);
}

TEST_CASE("a link at the path is replaced, and what it points to stays") {
  const folder folder;
  const auto target = folder.write("step_100", "old");
  std::filesystem::create_symlink(target, folder / "latest");
  atomic_file file(folder / "latest");
  file.write(span_of("new"));
  file.finish();
  CHECK(text_of(target) == "old");
  CHECK(text_of(folder / "latest") == "new");
  CHECK_FALSE(std::filesystem::is_symlink(folder / "latest"));
}

TEST_CASE("only what was written can be rewritten") {
  const folder folder;
  atomic_file file(folder / "f");
  file.write(span_of("abcd"));
  file.rewrite(3, span_of("D"));
  CHECK(message_of([&] { file.rewrite(3, span_of("DE")); }) ==
        (folder / "f").string() +
            ": expected to rewrite within the 4 bytes written, found 2 bytes at offset 3; append "
            "them instead");
  CHECK(message_of([&] { file.rewrite(-1, span_of("x")); }) != "");
  CHECK(message_of([&] { file.rewrite(0, span_of("abcde")); }) != "");
  file.finish();
  CHECK(text_of(folder / "f") == "abcD");
}

}  // namespace
