// SPDX-License-Identifier: Apache-2.0
//
// How ranks meet without MPI: by file and by TCP, with what an earlier run left behind, strangers
// at the port, and a rank that does not come. Ranks are threads here; the bytes know no difference.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "smelt/comm/nccl_rendezvous.hpp"
#include "support/folder.hpp"

using namespace smelt;

namespace {
constexpr std::size_t id_bytes = 128;
using id = std::vector<std::byte>;

id id_of(int run) {
  id bytes(id_bytes);
  for (std::size_t i = 0; i < id_bytes; ++i)
    bytes[i] = static_cast<std::byte>(i * 7 + static_cast<std::size_t>(run) * 31);
  return bytes;
}

// What a rank ended with: the bytes, or an error.
struct outcome {
  id bytes = id(id_bytes);
  std::string error;
};

// Starts `coming` of `ranks` at once; rank 0 offers id_of(run).
std::vector<outcome> meet(const std::string& address, std::int64_t ranks,
                          const std::vector<std::int64_t>& coming, int run,
                          double timeout_seconds = 20.0) {
  std::vector<outcome> found(static_cast<std::size_t>(ranks));
  found[0].bytes = id_of(run);
  std::vector<std::thread> threads;
  for (const std::int64_t rank : coming)
    threads.emplace_back([&, rank] {
      outcome& own = found[static_cast<std::size_t>(rank)];
      try {
        nccl_rendezvous{{rank, ranks, rank, "job " + std::to_string(run)}, address}.share(
            own.bytes, timeout_seconds);
      } catch (const error& e) {
        own.error = e.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return found;
}

void check_met(const std::vector<outcome>& found, int run) {
  for (const outcome& rank : found) {
    CHECK(rank.error == "");
    CHECK(rank.bytes == id_of(run));
  }
}

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// A port that was free a moment ago: bound by the system, and read back.
std::string free_address() {
  const detail::tcp_socket probe(::socket(AF_INET, SOCK_STREAM, 0));
  ::sockaddr_storage name{};
  name.ss_family = AF_INET;
  ::socklen_t length = sizeof name;
  REQUIRE(::bind(probe.number(), reinterpret_cast<::sockaddr*>(&name), 16) == 0);
  REQUIRE(::getsockname(probe.number(), reinterpret_cast<::sockaddr*>(&name), &length) == 0);
  char port[16] = {};
  REQUIRE(::getnameinfo(reinterpret_cast<::sockaddr*>(&name), length, nullptr, 0, port, sizeof port,
                        NI_NUMERICSERV) == 0);
  return std::string("tcp:127.0.0.1:") + port;
}
}  // namespace

TEST_CASE("by file: every rank gets the bytes of rank 0, and nothing stays behind") {
  const smelt_test::folder folder;
  const std::string address = "file:" + (folder.path() / "id").string();
  for (int run = 0; run < 3; ++run) check_met(meet(address, 4, {0, 1, 2, 3}, run), run);
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("by file: what a dead run left is not taken") {
  const smelt_test::folder folder;
  const std::string path = (folder.path() / "id").string();
  // Rank 0 was killed when rank 1 had taken its bytes and rank 2 had not.
  const auto leave_behind = [&] {
    const auto note = detail::rendezvous_note::of("bytes", id_bytes);
    const std::uint64_t numbers[] = {0, 41, 42};
    id file(sizeof note + sizeof numbers + id_bytes);
    std::memcpy(file.data(), &note, sizeof note);
    std::memcpy(file.data() + sizeof note, numbers, sizeof numbers);
    std::memcpy(file.data() + sizeof note + sizeof numbers, id_of(1).data(), id_bytes);
    detail::write_rendezvous(path, file);
    detail::write_note(path + ".rank1", detail::rendezvous_note::of("taken", 41));
    detail::write_note(path + ".rank2", detail::rendezvous_note::of("here", 42));
  };
  leave_behind();
  check_met(meet("file:" + path, 3, {0, 1, 2}, 2), 2);
  CHECK(std::filesystem::is_empty(folder.path()));
  // Nobody but rank 1 comes, and then nobody but rank 0.
  leave_behind();
  auto found = meet("file:" + path, 3, {1}, 3, 0.1);
  CHECK(contains(found[1].error, "waited 0.1 s for rank 0 of 3 ranks"));
  CHECK(found[1].bytes == id(id_bytes));
  leave_behind();
  found = meet("file:" + path, 3, {0}, 3, 0.1);
  CHECK(contains(found[0].error, "waited 0.1 s for rank 1, which did not come"));
}

TEST_CASE("by file: a rank that does not come is named") {
  const smelt_test::folder folder;
  const auto found = meet("file:" + (folder.path() / "id").string(), 3, {0, 1}, 1, 0.3);
  CHECK(
      contains(found[0].error, "id: waited 0.3 s for rank 2, which did not come; start all ranks"));
  CHECK(contains(found[1].error, "for rank 0 of 3 ranks"));
  CHECK(std::filesystem::is_empty(folder.path()));
  const auto nowhere = meet("file:" + (folder.path() / "no/id").string(), 2, {1}, 1, 0.3);
  CHECK(contains(nowhere[1].error, "No such file or directory"));
}

TEST_CASE("by TCP: every rank gets the bytes of rank 0, whoever else knocks") {
  const std::string address = free_address();
  // Ranks of an earlier run that still look for their rank 0, and a program of another kind.
  std::vector<outcome> theirs;
  std::thread others([&] { theirs = meet(address, 4, {1, 2}, 77, 0.5); });
  std::atomic<bool> met = false;
  std::thread stranger([&] {
    const detail::tcp_address at = detail::tcp_address::of(address.substr(4));
    const auto knock = [](const detail::tcp_socket& made, const auto& to) {
      return ::connect(made.number(), to.ai_addr, to.ai_addrlen) == 0 &&
             made.send(std::as_bytes(std::span("GET / HTTP/1.1 from nowhere to nowhere")));
    };
    std::string why;
    while (!met && !at.first(why, knock).is_open()) std::this_thread::yield();
  });
  // Rank 3 comes late, so that the others find rank 0 waiting.
  std::vector<outcome> ours, last;
  std::thread most([&] { ours = meet(address, 4, {0, 1, 2}, 1); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  last = meet(address, 4, {3}, 1);
  most.join();
  ours[3] = last[3];
  check_met(ours, 1);
  met = true;
  others.join();
  stranger.join();
  CHECK(theirs[1].bytes == id(id_bytes));
  CHECK(contains(theirs[1].error, "waited 0.5 s for rank 0, where it found"));
}

TEST_CASE("by TCP: who is missing, a port that is taken, an address that is none") {
  const std::string address = free_address();
  CHECK(contains(meet(address, 3, {0, 2}, 1, 0.3)[0].error,
                 "waited 0.3 s for rank 1, which did not come"));
  CHECK(contains(meet(address, 3, {2}, 1, 0.3)[2].error,
                 "for rank 0, where it found Connection refused"));
  const std::string taken = free_address();
  std::string why;
  const auto other = detail::tcp_address::of(taken.substr(4))
                         .first_to_listen(why, [](const detail::tcp_socket& made, const auto& at) {
                           return ::bind(made.number(), at.ai_addr, at.ai_addrlen) == 0 &&
                                  ::listen(made.number(), 1) == 0;
                         });
  REQUIRE(other.is_open());
  CHECK(contains(meet(taken, 2, {0}, 2)[0].error,
                 "rank 0 cannot listen: expected a free port, found Address already in use"));
  CHECK(contains(meet("tcp:nowhere", 2, {0}, 1)[0].error, "expected tcp:HOST:PORT"));
  CHECK(
      contains(meet("udp:x:1", 2, {0}, 1)[0].error, "expected file:PATH or tcp:HOST:PORT, found"));
  check_met(meet("", 1, {0}, 5), 5);  // one rank meets nobody
}

TEST_CASE("who a process is, by the variables of its launcher") {
  const auto of = [](const std::map<std::string, std::string>& variables) {
    return detail::read_launched_process([&](const char* name) {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
  };
  const launched_process none = of({});
  CHECK(none.ranks == 1);
  CHECK(none.job == "");
  // An mpirun inside of a Slurm job: the step of Slurm is one task that started all others.
  const launched_process inner = of({{"OMPI_COMM_WORLD_RANK", "5"},
                                     {"OMPI_COMM_WORLD_SIZE", "8"},
                                     {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                     {"SLURM_PROCID", "0"},
                                     {"SLURM_STEP_NUM_TASKS", "2"},
                                     {"SLURM_JOB_ID", "9"}});
  CHECK(inner.rank == 5);
  CHECK(inner.ranks == 8);
  CHECK(inner.local_rank == 1);
  CHECK(inner.job == "9/");
  const launched_process slurm = of({{"SLURM_PROCID", "3"},
                                     {"SLURM_STEP_NUM_TASKS", "4"},
                                     {"SLURM_LOCALID", "1"},
                                     {"RANK", "7"}});
  CHECK(slurm.rank == 3);
  CHECK(slurm.local_rank == 1);
  const launched_process torchrun = of({{"RANK", "2"}, {"WORLD_SIZE", "4"}});
  CHECK(torchrun.rank == 2);
  CHECK(torchrun.local_rank == 2);  // where nobody says, as if on one machine
  CHECK(of({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}).rank == 1);
  // The script of a Slurm job has a number of tasks and is none of them.
  CHECK(of({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}).ranks == 1);
  CHECK_THROWS_WITH_AS(of({{"RANK", "4"}, {"WORLD_SIZE", "4"}}),
                       "RANK: expected a whole number from 0 to 3, found '4'", error);
  CHECK_THROWS_AS(of({{"RANK", "0"}, {"WORLD_SIZE", "four"}}), error);
}
