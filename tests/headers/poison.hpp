// SPDX-License-Identifier: Apache-2.0
//
// Names that other people's headers define as macros (complex.h, windows.h, termios.h, Arduino,
// sys/sysmacros.h): a header of ours that uses one as an identifier stops compiling after this.
//
// Not among them: min and max, as windows.h without NOMINMAX breaks the standard library as well.
//
// The third-party headers below are included first, as their own use of these names is theirs.
#pragma once

#include <cmath>
#include <complex>
#if __has_include(<omp.h>) && defined(_OPENMP)
#include <omp.h>
#endif
#if defined(SMELT_MATMUL_ONEDNN)
#include <oneapi/dnnl/dnnl.h>
#elif defined(SMELT_MATMUL_OPENBLAS)
#include <cblas.h>
#endif
#if __has_include(<fmt/format.h>)
#include <fmt/chrono.h>
#include <fmt/color.h>
#include <fmt/format.h>
#endif

#undef I
#undef minor
#undef major

#define B0 smelt_poisoned_macro(!)
#define DELETE smelt_poisoned_macro(!)
#define DIFFERENCE smelt_poisoned_macro(!)
#define DOMAIN smelt_poisoned_macro(!)
#define ERROR smelt_poisoned_macro(!)
#define I smelt_poisoned_macro(!)
#define IN smelt_poisoned_macro(!)
#define OUT smelt_poisoned_macro(!)
#define OVERFLOW smelt_poisoned_macro(!)
#define PAR smelt_poisoned_macro(!)
#define PI smelt_poisoned_macro(!)
#define THRUST smelt_poisoned_macro(!)
#define UNDERFLOW smelt_poisoned_macro(!)
#define VOID smelt_poisoned_macro(!)
#define far smelt_poisoned_macro(!)
#define interface smelt_poisoned_macro(!)
#define major smelt_poisoned_macro(!)
#define minor smelt_poisoned_macro(!)
#define near smelt_poisoned_macro(!)
#define small smelt_poisoned_macro(!)
