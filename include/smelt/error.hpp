// SPDX-License-Identifier: Apache-2.0
//
// The exceptions of the library: what only the run can know. What a type can rule out is a
// static_assert instead and never reaches this class.
//
// A message is one line and says, in this order, where (file, tensor, rank), what was expected,
// what was found, and the remedy, so that a program can print what() and exit with 1.
#pragma once

#include <stdexcept>
#include <string>

namespace smelt {

/// A failure with one clear line as its text; derives from std::runtime_error so that code that
/// knows nothing of smelt still catches it.
class error : public std::runtime_error {
 public:
  explicit error(const std::string& message) : std::runtime_error(message) {}
};

/// Memory that a machine or a device does not have; a caller may retry with less.
class out_of_memory : public error {
 public:
  using error::error;
};

/// An error that every rank throws alike, in the same words: a program may end in peace, and one of
/// the ranks prints it for all. Any other error is the rank's own, and the others know nothing.
class agreed_error : public error {
 public:
  using error::error;
};

}  // namespace smelt
