// SPDX-License-Identifier: Apache-2.0
//
// The training itself, compiled apart from the command line: train_host.cpp holds all models, in
// both element types.
#pragma once

#include "request.hpp"
#include "smelt/train/stop_signal.hpp"

namespace smelt_tool {

/// Trains; every rank of the job calls it with the same words.
/// @param count, words  of main, for MPI.
/// @returns the exit code.
int train(int count, char** words, request& wanted, smelt::stop_signal& stop);

}  // namespace smelt_tool
