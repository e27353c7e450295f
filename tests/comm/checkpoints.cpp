// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints of several MPI ranks: the same files whatever the grid, and any grid goes on from
// those of any other.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "smelt/train/checkpoint.hpp"
#include "world.hpp"
// Behind the engine, whose types it uses.
#include "model/small_models.hpp"

using namespace smelt;
using namespace smelt::test;
namespace fs = std::filesystem;

namespace {
using uneven =
    tiny<transformer<hidden<12>, gqa<4, 1, 6>, moe<7, 3, 5, shared<4>>,
                     stack<plain<1, dense<9>>, looped<2, 2>, plain<1>>, qk_norm::full_width>,
         tied>;

// One folder for all ranks, gone at the end.
class common_folder {
 public:
  common_folder() {
    std::vector<std::byte> name(256);
    if (world().rank() == 0) {
      std::string pattern = (fs::temp_directory_path() / "smelt-ranks-XXXXXX").string();
      REQUIRE(::mkdtemp(pattern.data()) != nullptr);
      for (std::size_t i = 0; i < pattern.size(); ++i) name[i] = static_cast<std::byte>(pattern[i]);
    }
    world().broadcast(host<>(1), name.data(), 256, 0);
    for (const std::byte c : name)
      if (c != std::byte{}) path_ += static_cast<char>(c);
  }
  ~common_folder() {
    world().barrier();
    std::error_code ignored;
    if (world().rank() == 0) fs::remove_all(path_, ignored);
  }
  fs::path operator/(const std::string& name) const { return fs::path(path_) / name; }

 private:
  std::string path_;
};

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Options with which every part of a checkpoint is in use.
training_options options_of_run() {
  training_options options = test_options(16);
  options.router_bias_rate = 1e-3;
  return options;
}
std::vector<parallel_setting> settings() {
  std::vector<parallel_setting> all;
  for (std::int64_t expert_ranks = 1; expert_ranks <= world().size(); ++expert_ranks)
    if (world().size() % expert_ranks == 0)
      for (const bool sharded : {false, true}) all.push_back({expert_ranks, sharded, false});
  return all;
}
token_batch batch_of(int step) {
  return documents_of({7, 9}, static_cast<std::uint32_t>(10 * step + world().rank()));
}
}  // namespace

TEST_CASE("a checkpoint of any grid is the file of one rank, and any grid reads it") {
  const common_folder folder;
  const training_record record{.seed = 5, .options = options_of_run(), .context = 8};
  // What every way of dividing the work must come back to: the state of one rank, which all have.
  trainer<uneven, host<>> alone_one(host<>(1), options_of_run(), 5);
  for (int step = 0; step < 3; ++step) alone_one.step(documents_of({7, 9}, 77).view());
  if (world().rank() == 0) save(alone_one, folder / "alone", record);
  world().barrier();
  const fs::path place = folder / "alone" / checkpoint_name(3);

  for (const parallel_setting& how : settings()) {
    CAPTURE(how.expert_ranks);
    CAPTURE(how.sharded_optimizer);
    const std::string name =
        "grid-" + std::to_string(how.expert_ranks) + (how.sharded_optimizer ? "-sharded" : "");
    trainer<uneven, host<>, mpi> t(host<>(1), options_of_run(), 99, world(), how);
    // Another seed and no step: everything has to come from the files.
    CHECK(resume(t, folder / "alone", record)->step == 3);
    CHECK(save(t, folder / name, record) == folder / name / checkpoint_name(3));
    for (const char* file : {checkpoint_weights, checkpoint_optimizer, checkpoint_record}) {
      CAPTURE(file);
      CHECK(text_of(folder / name / checkpoint_name(3) / file) == text_of(place / file));
    }
  }
  CHECK(safetensors_file(place / checkpoint_weights).contains("router_bias"));
}

TEST_CASE("a grid that stops and goes on takes the same steps to the last bit") {
  const common_folder folder;
  const training_record record{.seed = 5, .options = options_of_run()};
  for (const parallel_setting& how : settings()) {
    CAPTURE(how.expert_ranks);
    CAPTURE(how.sharded_optimizer);
    const std::string name =
        "run-" + std::to_string(how.expert_ranks) + (how.sharded_optimizer ? "-sharded" : "");
    trainer<uneven, host<>, mpi> straight(host<>(1), options_of_run(), 5, world(), how);
    for (int step = 0; step < 5; ++step) {
      if (step == 2) save(straight, folder / name, record);
      straight.step(batch_of(step).view());
    }
    trainer<uneven, host<>, mpi> stopped(host<>(1), options_of_run(), 5, world(), how);
    REQUIRE(resume(stopped, folder / name, record)->step == 2);
    for (int step = 2; step < 5; ++step) stopped.step(batch_of(step).view());
    CHECK(std::equal(straight.state().weights.data(),
                     straight.state().weights.data() + straight.plan().elements,
                     stopped.state().weights.data()));
    CHECK(std::equal(straight.state().router_bias(),
                     straight.state().router_bias() + straight.state().router_bias_count(),
                     stopped.state().router_bias()));
    save(straight, folder / "a", record, {.last = 1});
    save(stopped, folder / "b", record, {.last = 1});
    CHECK(text_of(folder / "a" / checkpoint_name(5) / checkpoint_optimizer) ==
          text_of(folder / "b" / checkpoint_name(5) / checkpoint_optimizer));
  }
}
