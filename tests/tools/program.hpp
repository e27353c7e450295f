// SPDX-License-Identifier: Apache-2.0
//
// Runs smelt-tokens, whose path is in the environment, and keeps what it says.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace smelt_test {

inline std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct outcome {
  int code = 0;  // of the exit; -1 if it was killed
  std::string output;
  std::string errors;
};

/// A run that can be stopped. Limits: the largest file that it may write, 0 for none.
class program {
 public:
  program(const std::filesystem::path& folder, const std::vector<std::string>& words,
          ::rlim_t largest_file_bytes = 0)
      : folder_(folder) {
    const char* const path = std::getenv("SMELT_TOKENS");
    if (path == nullptr) throw std::runtime_error("SMELT_TOKENS must name the program");
    std::vector<std::string> all{path};
    all.insert(all.end(), words.begin(), words.end());
    std::vector<char*> pointers;
    for (std::string& word : all) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    const std::string output = (folder_ / "stdout").string();
    const std::string errors = (folder_ / "stderr").string();
    process_ = ::fork();
    if (process_ < 0) throw std::runtime_error("fork");
    if (process_ > 0) return;
    const int out = ::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int err = ::open(errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (::dup2(out, 1) < 0 || ::dup2(err, 2) < 0) ::_exit(98);
    if (largest_file_bytes > 0) {
      // A write beyond it fails as on a full disk, once the signal is ignored.
      const ::rlimit limit{largest_file_bytes, largest_file_bytes};
      if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(98);
      std::signal(SIGXFSZ, SIG_IGN);
    }
    ::execv(path, pointers.data());
    ::_exit(99);
  }
  program(const program&) = delete;
  program& operator=(const program&) = delete;
  ~program() {
    if (process_ > 0) static_cast<void>(kill());
  }

  outcome kill() {
    ::kill(process_, SIGKILL);
    return wait();
  }
  outcome wait() {
    int status = 0;
    ::waitpid(process_, &status, 0);
    process_ = -1;
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, contents(folder_ / "stdout"),
            contents(folder_ / "stderr")};
  }

 private:
  std::filesystem::path folder_;
  ::pid_t process_ = -1;
};

inline outcome run(const std::filesystem::path& folder, const std::vector<std::string>& words,
                   ::rlim_t largest_file_bytes = 0) {
  return program(folder, words, largest_file_bytes).wait();
}

}  // namespace smelt_test
