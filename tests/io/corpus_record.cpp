// SPDX-License-Identifier: Apache-2.0
//
// The fuzz target of a checkpoint's texts over inputs made by code.
#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "io/bytes.hpp"
#include "io/corpus.hpp"
#include "smelt/smelt.hpp"
#include "smelt/train/checkpoint_architecture.hpp"
#include "smelt/train/checkpoint_state.hpp"
#include "support/folder.hpp"

namespace {
using namespace smelt_test;
using namespace smelt;

// A record with something in every part of it.
std::string state_text() {
  const folder where;
  checkpoint_state state{12, "F32", {.seed = 5, .sequences = 4, .context = 8}};
  state.record.notes["losses"] = "2.5 \xc3\xa4";
  detail::write_state(where / "state.json", state,
                      {{"weights.safetensors", 5, "0123456789abcdef"}});
  std::ifstream file(where / "state.json", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
using model = language_model<
    transformer<hidden<12>, gqa<4, 2, 4>, moe<5, 2, 6>, stack<plain<1>, looped<2, 2>>>,
    vocabulary<11>>;

TEST_CASE("every prefix of a record is refused, the whole is not") {
  // Its last byte is the end of a line.
  CHECK(run_prefixes(state_text()).accepted == 2);
  CHECK(run_prefixes(architecture_text(architecture_fields<model>())).accepted == 1);
}

TEST_CASE("every byte of a record changed") {
  // Blanks may be others; all else is noticed by the checksum.
  const corpus_result state = run_changes(state_text(), 1 << 12);
  CHECK(state.refused > 1000);
  CHECK(state.accepted < state.refused / 4);
  const corpus_result fields =
      run_changes(architecture_text(architecture_fields<model>()), 1 << 12);
  CHECK(fields.refused > 100);
  CHECK(fields.accepted < fields.refused / 4);
}
}  // namespace
