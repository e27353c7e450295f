// SPDX-License-Identifier: Apache-2.0
//
// The same few ops on the host and on CUDA, called from several translation units and from two
// shared objects of one program: kernels of our own, of CUB and of Thrust, and host code that the
// units share.
#pragma once

#include <cstdint>
#include <vector>

namespace smelt::test {

// What an object found: a norm and a sort on both backends.
struct findings {
  std::vector<float> host_norm, cuda_norm;
  std::vector<std::int64_t> host_slots, cuda_slots;
};

findings in_main_unit();
findings in_other_unit();
findings in_host_unit();  // host alone, compiled by the C++ compiler

}  // namespace smelt::test

// Exported by each shared object.
extern "C" const smelt::test::findings* smelt_test_findings_one();
extern "C" const smelt::test::findings* smelt_test_findings_two();
