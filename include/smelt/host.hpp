// SPDX-License-Identifier: Apache-2.0
//
// smelt on the CPU: the types of smelt.hpp, and what runs them with the policy host{threads}.
//
// Needs a matrix product library; the CMake target smelt::host brings one.
#pragma once

#include "smelt/exec/matmul.hpp"
#include "smelt/exec/policy.hpp"
#include "smelt/model/backward.hpp"
#include "smelt/model/forward.hpp"
#include "smelt/op/router_bias.hpp"
#include "smelt/smelt.hpp"
#include "smelt/train/batch.hpp"
#include "smelt/train/byte_counts.hpp"
#include "smelt/train/data.hpp"
#include "smelt/train/schedule.hpp"
#include "smelt/train/step.hpp"
#include "smelt/train/text.hpp"
