// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a token shard of each format: either refused with a smelt::error of one line, or
// accepted, and then the tokens end exactly where the file does.
//
// The entry point of libFuzzer (SMELT_FUZZ with clang), run in the normal suite over a corpus.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "io/fuzz.hpp"
#include "smelt/io/tokens.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using smelt::token_format;
  const std::span<const std::byte> file = std::as_bytes(std::span(data, size));
  bool accepted = false;
  for (const std::optional<token_format> wanted :
       {std::optional<token_format>(), std::optional(token_format::llmc_uint16),
        std::optional(token_format::llmc_uint32), std::optional(token_format::headerless_uint16)}) {
    try {
      const smelt::token_layout layout = smelt::parse_token_shard(file, "input", wanted);
      smelt_test::demand(!wanted || layout.format == *wanted);
      smelt_test::demand(layout.tokens > 0 && layout.offset_bytes >= 0);
      smelt_test::demand(layout.offset_bytes + layout.tokens * smelt::token_bytes(layout.format) ==
                         static_cast<std::int64_t>(size));
      accepted = true;
    } catch (const smelt::error& e) {
      smelt_test::demand_one_line(e.what());
    }
  }
  smelt_test::accepted_inputs += accepted ? 1 : 0;
  return 0;
}
