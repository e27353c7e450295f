// SPDX-License-Identifier: Apache-2.0
//
// The PTX of one registered fat binary: an index of its functions and variables, the text of single
// kernels to translate, and the memory of its __device__ and __constant__ variables.
#pragma once
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>
#include "device.h"

typedef void (*KernelFunction)(Thread*, char* params);

struct Module;

struct Kernel {
  Module* module = nullptr;
  std::string name;
  bool known = false;  // its PTX exists
  u32 static_shared = 0, dynamic_offset = 0, param_bytes = 0;
  std::vector<u32> param_offsets, param_sizes;
  u32 max_threads = 1024;  // .maxntid
  u32 local_bytes = 0;
  u32 max_dynamic_shared = 48 * 1024;  // cudaFuncSetAttribute raises it
  std::string unit;                    // what the translator gets
  // After compilation:
  KernelFunction run = nullptr;
  u32 flags = 0;          // 1 fibers, 2 spins, 4 async copies
  std::string unit_path;  // cached PTX, for reports
  bool failed = false;
};
enum KernelFlags : u32 { NEEDS_FIBERS = 1, MAY_SPIN = 2, USES_ASYNC = 4 };

struct Module {
  std::string_view text;  // PTX, in the program's fat binary
  int target = 0;         // 80 of sm_80
  std::string problem;    // why there is no usable PTX

  Kernel* kernel(const std::string& name);
  u64 symbol_address(const std::string& name,
                     u64* bytes = nullptr);  // 0 when there is no such variable
  const u64* symbols() const { return addresses.data(); }
  std::vector<std::string> kernel_names();
  void prepare_symbols(
      const std::string& unit);  // gives the variables a unit mentions their memory

 private:
  struct Item {
    enum Type { VARIABLE, FUNCTION, ENTRY, PROTOTYPE } type;
    std::string_view text, body;
    std::string space;
    u64 size = 0;
    u32 element = 1, align = 1;
    bool external = false;
    std::string_view initializer;
    int index = -1;  // in addresses
  };
  bool indexed = false;
  std::map<std::string, Item, std::less<>> items;
  std::vector<std::string> order;  // of declaration
  std::string file_table;          // .file lines, for source positions in reports
  std::vector<u64> addresses;
  std::map<std::string, Kernel> kernels;
  std::map<std::string, u64> function_addresses;
  std::recursive_mutex lock;

  void index();
  void add_variable(std::string_view declaration);
  void add_function(std::string_view whole, std::string_view header, std::string_view body,
                    bool entry, bool prototype);
  std::string build_unit(const std::string& root, Kernel* kernel);
  u64 allocate_symbol(const std::string& name, Item& item);
  u64 resolve(std::string_view expression);
  u64 function_address(const std::string& name);
};
