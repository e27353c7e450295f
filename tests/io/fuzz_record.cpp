// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as the two texts of a checkpoint that are read back: state.json, and the architecture
// in the metadata of its weights. Either refused with a smelt::error of one line, or accepted.
//
// The entry point of libFuzzer (SMELT_FUZZ with clang), run in the normal suite over a corpus.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "io/fuzz.hpp"
#include "smelt/smelt.hpp"
#include "smelt/train/checkpoint_architecture.hpp"
#include "smelt/train/checkpoint_state.hpp"

namespace {
using namespace smelt;
using model = language_model<
    transformer<hidden<12>, gqa<4, 2, 4>, moe<5, 2, 6>, stack<plain<1>, looped<2, 2>>>,
    vocabulary<11>>;
}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  bool accepted = false;
  try {
    const auto [state, files] = detail::parse_state(text, "input");
    smelt_test::demand(state.step >= 0);
    accepted = true;
  } catch (const error& e) {
    smelt_test::demand_one_line(e.what());
  }
  try {
    expect_architecture(architecture_fields<model>(), text, "input");
    accepted = true;
  } catch (const error& e) {
    smelt_test::demand_one_line(e.what());
  }
  smelt_test::accepted_inputs += accepted ? 1 : 0;
  return 0;
}
