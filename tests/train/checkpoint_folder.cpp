// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints as folders: there whole or not at all, which of them stay, one writer at a time, a
// write that fails, and the signals that ask for one.
#include "smelt/train/checkpoint.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "../model/small_models.hpp"
#include "checkpoint.hpp"
#include "support/folder.hpp"

using namespace smelt;
using namespace smelt::test;
namespace fs = std::filesystem;

// The calls that decide what a crash of the machine leaves: noted, and failing on demand.
namespace {
std::vector<std::string> calls;
int failing_call = -1;  // which one of them
std::string name_of(int descriptor) {
  std::error_code ignored;
  return fs::read_symlink("/proc/self/fd/" + std::to_string(descriptor), ignored).filename();
}
bool fails(const std::string& call) {
  calls.push_back(call);
  if (static_cast<int>(calls.size()) - 1 != failing_call) return false;
  errno = EIO;
  return true;
}
}  // namespace

extern "C" int fsync(int descriptor) {
  if (fails("fsync " + name_of(descriptor))) return -1;
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}
extern "C" int rename(const char* from, const char* to) noexcept {
  if (fails("rename to " + fs::path(to).filename().string())) return -1;
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

TEST_CASE("names are those of steps and nothing else") {
  CHECK(checkpoint_name(0) == "step-00000000");
  CHECK(checkpoint_name(1234) == "step-00001234");
  CHECK(checkpoint_name(123456789012) == "step-123456789012");
  CHECK(checkpoint_step("step-00001234") == 1234);
  CHECK(checkpoint_step("step-123456789012") == 123456789012);
  for (const char* name :
       {"step-1234", "step-000001234", "step-00001234.tmp-7", "step--0000001", "step-00001234 ",
        "step-", "", "Step-00001234", "step-0000123x", "step-99999999999999999999"})
    CHECK_MESSAGE(!checkpoint_step(name), name);
}

TEST_CASE("the last ones and the branch points stay") {
  const smelt_test::folder root;
  trainer<one_layer, host<float>> t(host<>(1), test_options(20), 1);
  root.write("notes.txt", "the user's own");
  root.write("step-00000002.tmp-1/weights.safetensors", "half");  // of a killed program
  root.write("step-x.tmp-1/file", "not ours");
  const retention keep{.last = 2, .branch_points = {3, 10, 40}};
  for (std::int64_t step = 1; step <= 12; ++step) {
    t.resume_at(step);
    save(t, root.path(), {}, keep);
  }
  CHECK(names_in(root.path()) == std::vector<std::string>{"notes.txt", "step-00000003",
                                                          "step-00000010", "step-00000011",
                                                          "step-00000012", "step-x.tmp-1"});
  CHECK(latest_checkpoint(root.path()) == root.path() / "step-00000012");
  // A copy that broke off is no checkpoint; a folder of a later step that is none is passed over.
  fs::remove(root.path() / "step-00000012" / checkpoint_record);
  fs::create_directory(root.path() / "step-00000099");
  CHECK(latest_checkpoint(root.path()) == root.path() / "step-00000011");
  CHECK(!latest_checkpoint(root.path() / "nowhere"));
  CHECK(message_of([&] {
          latest_checkpoint(root.path() / "notes.txt");
        }).find("notes.txt: expected a folder of checkpoints, found ") != std::string::npos);
  CHECK_THROWS_AS(save(t, root.path(), {}, {.last = 0}), error);
  // Going back: the one just written stays, though others are higher.
  t.resume_at(5);
  save(t, root.path(), {}, {.last = 1, .branch_points = {}});
  CHECK(fs::exists(root.path() / "step-00000005" / checkpoint_record));
}

TEST_CASE("contents reach the disk before names, and each of these calls may fail") {
  const smelt_test::folder root;
  trainer<one_layer, host<float>> t(host<>(1), test_options(20), 1);
  const fs::path before = save(t, root.path(), {});
  t.resume_at(1);
  calls.clear();
  save(t, root.path(), {});
  const std::string process = ".tmp-" + std::to_string(::getpid());
  const std::string folder = "step-00000001" + process;
  std::vector<std::string> expected;
  for (const std::string file : {checkpoint_weights, checkpoint_optimizer, checkpoint_record})
    for (const std::string& call :
         {"fsync " + file + process, "rename to " + file, "fsync " + folder})
      expected.push_back(call);
  for (const std::string& call : {"fsync " + folder, std::string("rename to step-00000001"),
                                  "fsync " + root.path().filename().string()})
    expected.push_back(call);
  CHECK(calls == expected);

  fs::remove_all(root / "step-00000001");
  const int last = static_cast<int>(expected.size()) - 1;
  for (int i = 0; i <= last; ++i) {
    CAPTURE(expected[static_cast<std::size_t>(i)]);
    calls.clear();
    failing_call = i;
    const std::string message = message_of([&] { save(t, root.path(), {}); });
    failing_call = -1;
    CHECK(message.find("found Input/output error; ") != std::string::npos);
    // After the last one the checkpoint is in its place and whole; before, nothing is left of it.
    std::vector<std::string> names{"step-00000000"};
    if (i == last) names.push_back("step-00000001");
    CHECK(names_in(root.path()) == names);
    CHECK(load(t, before).step == 0);
    t.resume_at(1);
  }
}

TEST_CASE("a checkpoint of the same step is replaced whole") {
  const smelt_test::folder root;
  trainer<one_layer, host<float>> t(host<>(1), test_options(20), 1);
  save(t, root.path(), {.seed = 1});
  root.write("step-00000000/more.txt", "left over");
  t.state().weights.data()[0] = 42.0F;
  const fs::path place = save(t, root.path(), {.seed = 2});
  CHECK(names_in(root.path()) == std::vector<std::string>{"step-00000000"});
  CHECK(names_in(place).size() == 3);
  trainer<one_layer, host<float>> u(host<>(1), test_options(20), 1);
  CHECK(load(u, place).record.seed == 2);
  CHECK(u.state().weights.data()[0] == 42.0F);
  // The same trainer and record give the same bytes.
  const smelt_test::folder again;
  const fs::path other = save(u, again.path(), {.seed = 2});
  for (const char* file : {checkpoint_weights, checkpoint_optimizer, checkpoint_record})
    CHECK(text_of(place / file) == text_of(other / file));
}

TEST_CASE("two writers of one root are told of each other") {
  const smelt_test::folder root;
  trainer<one_layer, host<float>> t(host<>(1), test_options(20), 1);
  root.write("step-00000099.tmp-1/weights.safetensors", "half");
  {
    const checkpoint_writer other(root.path(), 7);
    // What the dead left makes room before anything is written.
    CHECK(names_in(root.path()) == std::vector<std::string>{other.folder().filename().string()});
    CHECK(message_of([&] { save(t, root.path(), {}); }) ==
          root.path().string() +
              ": expected one writer of checkpoints at a time, found another one at work; wait for "
              "it or choose another folder");
    CHECK(fs::exists(other.folder()));
  }
  save(t, root.path(), {});
  CHECK(names_in(root.path()) == std::vector<std::string>{"step-00000000"});
  root.write("file", "");
  CHECK(message_of([&] {
          save(t, root.path() / "file", {});
        }).find("file: expected a folder to write checkpoints to, found Not a directory") !=
        std::string::npos);
}

TEST_CASE("a write that fails says why and leaves the checkpoint before it as it was") {
  const smelt_test::folder root;
  trainer<looped_moe, host<float>> t(host<>(1), test_options(20), 1);
  const fs::path place = save(t, root.path(), {});
  t.step(documents_of({20}, 5).view());
  // Files of this program may not grow beyond a limit that the weights fit into and moments do not.
  ::rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const ::rlimit tight{fs::file_size(place / checkpoint_weights), before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &tight);
  const std::string found = message_of([&] { save(t, root.path(), {}); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  CHECK(found.find("optimizer.safetensors: expected to write ") != std::string::npos);
  CHECK(found.find("found File too large after ") != std::string::npos);
  CHECK(names_in(root.path()) == std::vector<std::string>{"step-00000000"});
  trainer<looped_moe, host<float>> u(host<>(1), test_options(20), 2);
  CHECK(load(u, place).step == 0);
  save(t, root.path(), {});
  CHECK(resume(u, root.path(), {})->step == 1);
  CHECK(everything(u) == everything(t));
}
