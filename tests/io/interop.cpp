// SPDX-License-Identifier: Apache-2.0
//
// The library as a program, for the tests that Python drives:
//
//   copy_safetensors FROM TO    reads a file and writes what was read, metadata and all
//   list_safetensors FILE       a line per tensor: dtype, shape, checksum of its bytes, name in hex
//   copy_tokens FROM TO KIND    reads a shard of the kind (uint16, uint32, headerless), writes it
//   list_tokens FILE...         the ids of all shards behind one another, one a line
//   checksum FILE
#include <cstdio>
#include <exception>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "smelt/error.hpp"
#include "smelt/io/safetensors.hpp"
#include "smelt/io/token_set.hpp"

namespace {
using namespace smelt;

void copy_safetensors(const std::string& from, const std::string& to) {
  const safetensors_file file(from);
  std::vector<tensor_view> tensors;
  for (const tensor_info& tensor : file.tensors())
    tensors.push_back({tensor.name, tensor.type, tensor.shape, file.bytes(tensor.name)});
  write_safetensors(to, tensors, file.metadata());
}

void list_safetensors(const std::string& path) {
  const safetensors_file file(path);
  for (const tensor_info& tensor : file.tensors()) {
    std::string shape = shape_text(tensor.shape);
    std::erase(shape, ' ');
    std::printf("%s %s %s ", std::string(dtype_name(tensor.type)).c_str(), shape.c_str(),
                checksum_of(file.bytes(tensor.name)).text().c_str());
    for (const char c : tensor.name) std::printf("%02x", static_cast<unsigned char>(c));
    std::printf("\n");
  }
}

void copy_tokens(const std::string& from, const std::string& to, const std::string& kind) {
  const std::map<std::string, token_format> kinds{{"uint16", token_format::llmc_uint16},
                                                  {"uint32", token_format::llmc_uint32},
                                                  {"headerless", token_format::headerless_uint16}};
  const token_format format = kinds.at(kind);
  const token_shard shard(from, format);
  token_writer writer(to, format, token_limit(format));
  shard.visit([&](auto tokens) { writer.append(tokens); });
  writer.finish();
}

void list_tokens(const std::vector<std::string>& paths) {
  const token_set set({paths.begin(), paths.end()}, std::int64_t{1} << 32);
  for (std::int64_t i = 0; i < set.size(); ++i) std::printf("%u\n", set.token(i));
}

int run(const std::vector<std::string>& words) {
  const std::string& command = words.at(0);
  const std::vector<std::string> paths(words.begin() + 1, words.end());
  if (command == "copy_safetensors")
    copy_safetensors(paths.at(0), paths.at(1));
  else if (command == "list_safetensors")
    list_safetensors(paths.at(0));
  else if (command == "copy_tokens")
    copy_tokens(paths.at(0), paths.at(1), paths.at(2));
  else if (command == "list_tokens")
    list_tokens(paths);
  else if (command == "checksum")
    std::printf("%s\n", checksum_of(mapped_file(paths.at(0)).bytes()).text().c_str());
  else
    throw error(command + ": unknown command; see the first lines of interop.cpp");
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
