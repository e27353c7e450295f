// SPDX-License-Identifier: Apache-2.0
//
// Runs the program smelt, whose path is in the environment, on shards that a test writes.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "smelt/io/tokens.hpp"
#include "support/folder.hpp"

namespace smelt_test {

inline std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Sentences of numbers as bytes, 256 behind each: what the tiny models read.
inline std::filesystem::path write_shard(const std::filesystem::path& path, int documents,
                                         int first = 0) {
  smelt::token_writer shard(path, smelt::token_format::llmc_uint16, 257);
  for (int i = first; i < first + documents; ++i) {
    const std::string text =
        "line " + std::to_string(i * 7919 % 307) + " follows " + std::to_string(i) + ".\n";
    std::vector<int> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    ids.push_back(256);
    shard.append(ids);
  }
  shard.finish();
  return path;
}

/// How a program ended: its code, or minus the signal that killed it.
struct ending {
  int code = 0;
  std::string output;
  std::string errors;
};

/// A program under way; its output goes to files of `where`.
class process {
 public:
  process(const std::filesystem::path& where, std::vector<std::string> words)
      : output_(where / "stdout"), errors_(where / "stderr") {
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    number_ = ::fork();
    if (number_ < 0) throw std::runtime_error("fork");
    if (number_ > 0) return;
    const int out = ::open(output_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int err = ::open(errors_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (::dup2(out, 1) < 0 || ::dup2(err, 2) < 0) ::_exit(98);
    ::execvp(pointers.front(), pointers.data());
    ::_exit(99);
  }
  process(const process&) = delete;
  process& operator=(const process&) = delete;
  ~process() {
    send(SIGKILL);
    if (number_ > 0) static_cast<void>(wait());
  }

  void send(int signal) const {
    if (number_ > 0) ::kill(number_, signal);
  }
  ending wait() {
    int status = 0;
    ::waitpid(number_, &status, 0);
    number_ = -1;
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), text_of(output_),
            text_of(errors_)};
  }
  /// Waits until a file has grown to `bytes`, or the program is over; at most 20 seconds.
  void until(const std::filesystem::path& file, std::uintmax_t bytes) const {
    for (int i = 0; i < 20'000; ++i) {
      std::error_code none;
      const std::uintmax_t size = std::filesystem::file_size(file, none);
      ::siginfo_t over{};
      if ((!none && size >= bytes) ||
          (::waitid(P_PID, static_cast<::id_t>(number_), &over, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           over.si_pid != 0))
        return;
      ::usleep(1000);
    }
  }

 private:
  std::filesystem::path output_;
  std::filesystem::path errors_;
  ::pid_t number_ = -1;
};

/// A folder with shards, and runs of the program in it.
struct workshop {
  folder where;
  std::filesystem::path tokens = write_shard(where / "train.0.bin", 400);
  std::filesystem::path held_out = write_shard(where / "held_out.0.bin", 40, 1000);

  static std::string program() {
    const char* const path = std::getenv("SMELT_PROGRAM");
    if (path == nullptr) throw std::runtime_error("SMELT_PROGRAM must name the program");
    return path;
  }
  /// A run of a tiny model below `name`: 24 steps, branches at 8 and 24; words may add and repeat.
  std::vector<std::string> words(const std::string& name,
                                 const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all{program(),
                                 "train",
                                 "smelt-tiny",
                                 "--tokens",
                                 tokens.string(),
                                 "--held-out",
                                 held_out.string(),
                                 "--out",
                                 (where / name).string(),
                                 "--steps",
                                 "24",
                                 "--branch-at",
                                 "8,24",
                                 "--branch-steps",
                                 "6",
                                 "--sequences",
                                 "4",
                                 "--context",
                                 "32",
                                 "--micro-batches",
                                 "2",
                                 "--checkpoint-every",
                                 "5",
                                 "--evaluate-every",
                                 "10",
                                 "--threads",
                                 "1"};
    for (std::size_t i = 0; i < more.size(); ++i) {
      // An option that is there already is replaced, as CLI11 takes each once.
      const auto there = std::find(all.begin() + 3, all.end(), more[i]);
      if (there != all.end() && more[i].starts_with("--"))
        *(there + 1) = more[++i];
      else
        all.push_back(more[i]);
    }
    return all;
  }
  ending run(const std::string& name, const std::vector<std::string>& more = {}) const {
    return process(where.path(), words(name, more)).wait();
  }
};

}  // namespace smelt_test
