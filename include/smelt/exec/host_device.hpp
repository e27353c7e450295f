// SPDX-License-Identifier: Apache-2.0
//
// SMELT_HD, the library's one public macro: marks the arithmetic of an element or a row that host
// and device share. Under a plain C++ compiler it is empty.
#pragma once

#if defined(__CUDACC__)
#define SMELT_HD __host__ __device__
#else
#define SMELT_HD
#endif
