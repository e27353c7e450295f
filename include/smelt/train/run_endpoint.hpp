// SPDX-License-Identifier: Apache-2.0
//
// What a finished branch is to a scaling law: one line, and FOLDER/runs.jsonl with all of them.
//
//   FOLDER/branch-00000123/endpoint.json   {"architecture", "cell", "flops_per_token", "sparsity",
//                                           "tokens", "validation_loss", ...}; it is the mark that
//                                           the branch is finished
//   FOLDER/runs.jsonl                      the endpoints of all finished branches, by their points
//
// F and S by the paper's accounting: of the body, training, router in, head out, one document per
// sequence. runs.jsonl is made anew from the endpoints, under a lock, so that several processes may
// share the branches of a run.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "smelt/budget/flops.hpp"
#include "smelt/budget/parameters.hpp"
#include "smelt/io/file.hpp"
#include "smelt/io/message.hpp"
#include "smelt/train/checkpoint_folder.hpp"
#include "smelt/train/run_setting.hpp"

namespace smelt {

/// A lock that the system takes back from a program that dies.
class file_lock {
 public:
  /// Tries once, or waits where `wait` says so.
  explicit file_lock(const std::filesystem::path& path, bool wait = false) {
    file_ = detail::file_descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (!file_.is_open())
      throw detail::io_error(path.string(), "a file to lock", detail::reason_text(errno),
                             "choose a folder that may be written to");
    int result = 0;
    do result = ::flock(file_.number(), wait ? LOCK_EX : LOCK_EX | LOCK_NB);
    while (result != 0 && errno == EINTR);
    // Some network file systems know no locks; there nobody else must work.
    taken_ = result == 0 || errno != EWOULDBLOCK;
  }
  bool is_taken() const { return taken_; }

 private:
  detail::file_descriptor file_;
  bool taken_ = false;
};

/// "branch-00000123".
inline std::string branch_name(std::int64_t first_step) {
  return "branch-" + checkpoint_name(first_step).substr(std::string("step-").size());
}

/// F of a run: training FLOPs per token of the body, the head out, in sequences of one document.
template <has_head Model>
double law_flops_per_token(std::int64_t context) {
  using body = body_of<Model>;
  const std::int64_t pairs = context * (context + 1) / 2;
  return static_cast<double>(flops_per_step<body>(context, pairs).total()) /
         static_cast<double>(context);
}

/// S of a run: against the model with as many experts as a token visits, all of them active.
template <has_head Model>
double law_sparsity(std::int64_t context) {
  using body = body_of<Model>;
  const auto hidden = static_cast<double>(body::hidden_size);
  const double flops = law_flops_per_token<Model>(context);
  auto stored = static_cast<double>(parameters<body>);
  double control_flops = flops;
  double control_stored = stored;
  for (const span_shape& span : body::spans) {
    if (span.ffn.is_dense()) continue;
    // What is left away: experts, and their columns of the router, which a token pays for.
    const auto layers_here = static_cast<double>(span.layers);
    const auto idle = static_cast<double>(span.ffn.experts - span.ffn.top_k);
    control_stored -=
        layers_here * idle * hidden * (1.0 + 3.0 * static_cast<double>(span.ffn.width));
    control_flops -= 3.0 * layers_here * static_cast<double>(span.visits) * idle * 2.0 * hidden;
  }
  return 1.0 - flops / control_flops * control_stored / stored;
}

namespace detail {
inline void write_whole(const std::filesystem::path& path, const std::string& text) {
  atomic_file file(path);
  file.write(std::as_bytes(std::span(text)));
  file.finish();
}
}  // namespace detail

/// Whether a branch is finished.
inline bool has_endpoint(const std::filesystem::path& folder, const training_branch& branch) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(folder / branch_name(branch.first_step) / "endpoint.json",
                                          ignored);
}

/// Marks a branch as finished.
inline void write_endpoint(const std::filesystem::path& folder, const training_branch& branch,
                           const std::string& line) {
  detail::write_whole(folder / branch_name(branch.first_step) / "endpoint.json", line);
}

/// Brings runs.jsonl up to date, where it is not: a program may have been killed between the two.
/// @return the branches that are finished.
inline std::int64_t collect_endpoints(const std::filesystem::path& folder,
                                      const run_setting& setting) {
  const file_lock lock(folder / "runs.lock", true);
  const auto text_of = [](const std::filesystem::path& path) {
    const mapped_file file(path);
    return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  };
  std::string all;
  std::int64_t finished = 0;
  for (const training_branch& branch : setting.branches) {
    if (!has_endpoint(folder, branch)) continue;
    all += text_of(folder / branch_name(branch.first_step) / "endpoint.json");
    ++finished;
  }
  std::error_code ignored;
  const std::filesystem::path runs = folder / "runs.jsonl";
  const bool stands = std::filesystem::exists(runs, ignored);
  if (stands ? text_of(runs) != all : finished > 0) detail::write_whole(runs, all);
  return finished;
}

}  // namespace smelt
