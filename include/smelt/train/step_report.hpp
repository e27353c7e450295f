// SPDX-License-Identifier: Apache-2.0
//
// What a trainer is told and what it tells: the options of a run, the report of a step, the loss of
// a batch. Free of any backend, so that a program can hold trainers of several behind one
// interface.
#pragma once

#include <cstdint>
#include <string>

#include "smelt/error.hpp"
#include "smelt/model/batch.hpp"
#include "smelt/train/schedule.hpp"

namespace smelt {

/// How to train. The defaults are usual choices; the paper names AdamW and no constants.
struct training_options {
  std::int64_t batch_tokens = 4096;  // room for the largest micro-batch
  warmup_stable_decay schedule{};
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;              // of matrices; gains do not decay
  double clip_norm = 1.0;                 // of the whole gradient; 0 for no clipping
  double balance_coefficient = 0.01;      // of the load-balancing loss
  double z_coefficient = 0.001;           // of the router z-loss
  std::int64_t balance_group_tokens = 0;  // consecutive tokens that balance; 0: a micro-batch
  double router_bias_rate = 0.0;          // balancing by a bias on the choice; 0: none

  void check() const {
    schedule.check();
    if (batch_tokens < 1)
      throw error("training_options.batch_tokens: expected at least 1, found " +
                  std::to_string(batch_tokens));
    if (clip_norm < 0.0 || balance_coefficient < 0.0 || z_coefficient < 0.0 || weight_decay < 0.0 ||
        balance_group_tokens < 0 || router_bias_rate < 0.0)
      throw error(
          "training_options: clip_norm, weight_decay, the coefficients, balance_group_tokens and "
          "router_bias_rate must not be negative; 0 switches each off");
  }
};

/// What one step did.
struct step_report {
  std::int64_t step = 0;      // counted from 0
  std::int64_t tokens = 0;    // of the step, targets or not
  double loss = 0.0;          // mean cross-entropy of the counted tokens, nats
  double load_balance = 0.0;  // 1 at balance
  double router_z = 0.0;
  double gradient_norm = 0.0;  // before clipping
  double learning_rate = 0.0;
};

/// A step that changed no weight and no moment: its loss or gradient was no number, or beyond what
/// trainer::limit allows. All ranks of a job throw it alike.
class rejected_step : public agreed_error {
 public:
  rejected_step(std::int64_t step_, double loss_, double gradient_norm_, const std::string& what)
      : agreed_error(what), step(step_), loss(loss_), gradient_norm(gradient_norm_) {}
  std::int64_t step;
  double loss;
  double gradient_norm;
};

/// Loss of a batch without training on it.
struct evaluation {
  double loss_sum = 0.0;    // nats
  std::int64_t tokens = 0;  // that counted
};

}  // namespace smelt
