// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a safetensors file: either refused with a smelt::error of one line, or accepted, and
// then every tensor lies in the file and the header, written again, means the same.
//
// The entry point of libFuzzer (SMELT_FUZZ with clang), run in the normal suite over a corpus.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "io/fuzz.hpp"
#include "smelt/io/safetensors.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> file = std::as_bytes(std::span(data, size));
  smelt::safetensors_header header;
  try {
    header = smelt::parse_safetensors(file, "input");
  } catch (const smelt::error& e) {
    smelt_test::demand_one_line(e.what());
    return 0;
  }
  ++smelt_test::accepted_inputs;
  std::int64_t end_bytes = 0;
  for (const smelt::tensor_info& tensor : header.tensors) {
    smelt_test::demand(tensor.begin_bytes == end_bytes && tensor.end_bytes >= tensor.begin_bytes);
    smelt_test::demand(smelt::tensor_bytes(tensor.type, tensor.shape) == tensor.bytes());
    end_bytes = tensor.end_bytes;
  }
  smelt_test::demand(end_bytes <= static_cast<std::int64_t>(size));
  const std::string text = smelt::safetensors_header_text(header, "again");
  smelt_test::demand(text.size() % 8 == 0);
  const smelt::safetensors_header again = smelt::parse_safetensors_header(text, end_bytes, "again");
  smelt_test::demand(again.metadata == header.metadata);
  smelt_test::demand(again.tensors.size() == header.tensors.size());
  for (std::size_t i = 0; i < again.tensors.size(); ++i)
    smelt_test::demand(again.tensors[i].name == header.tensors[i].name &&
                       again.tensors[i].shape == header.tensors[i].shape &&
                       again.tensors[i].type == header.tensors[i].type &&
                       again.tensors[i].begin_bytes == header.tensors[i].begin_bytes);
  return 0;
}
