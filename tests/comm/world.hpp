// SPDX-License-Identifier: Apache-2.0
//
// The engine that the suite of several ranks runs with; ranks_main.cpp makes it. Every rank runs
// every case, so a case may call collectives as long as no rank leaves it early.
#pragma once

#include "smelt/mpi.hpp"

namespace smelt::test {

mpi& world();

}  // namespace smelt::test
