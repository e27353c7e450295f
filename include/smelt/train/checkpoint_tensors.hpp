// SPDX-License-Identifier: Apache-2.0
//
// The tensors of a checkpoint, and where their elements lie on the ranks that train.
//
//   weights     master weights by name, [rows, columns]; "router_bias" [MoE visits, experts] where
//               experts are balanced by one
//   moments     first_moment.<name>, second_moment.<name>, of the same shapes
//
// The files know nothing of ranks: whatever the grid, a tensor is whole in them, so any number of
// ranks may read what any other wrote. To write, each part travels from the lowest rank that has it
// to rank 0, a piece at a time. To read, each rank takes what it holds from the mapped file.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "smelt/comm/collectives.hpp"
#include "smelt/exec/buffer.hpp"
#include "smelt/train/rank_layout.hpp"
#include "smelt/train/step.hpp"

namespace smelt::detail {

/// Elements [first, first + count) of a tensor and the rank that has them; null on other ranks.
template <class Real>
struct stored_part {
  std::int64_t rank = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
  Real* data = nullptr;
};

/// A tensor of a file; its parts ascend.
template <class Real>
struct stored_tensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<stored_part<Real>> parts;
};

/// Which parts: those to write, which cover a tensor once, or those that this rank holds.
enum class part_choice { to_write, held_here };

// One array of all tensors, at(offset) being its element in this rank's arena. Padding is left out:
// it is zero and stays so.
template <class Real, class Trainer, class At>
void add_tensors(Trainer& from, kept_array what, part_choice choice, const std::string& prefix,
                 At&& at, std::vector<stored_tensor<Real>>& all) {
  const rank_layout& layout = from.team().layout();
  const std::int64_t own = from.team().world().rank();
  const auto add = [&](const std::string& name, const tensor_place& place,
                       const std::vector<tensor_part>& parts) {
    stored_tensor<Real> tensor{prefix + name, {place.rows, place.columns}, {}};
    for (const tensor_part& part : parts)
      tensor.parts.push_back(
          {part.rank, part.first, part.count, part.rank == own ? at(part.offset) : nullptr});
    all.push_back(std::move(tensor));
  };
  if (choice == part_choice::to_write)
    layout.for_each_tensor_part(what, add);
  else
    layout.for_each_part_of(own, what, add);
}

// What weights.safetensors holds: master weights, which the copy for products is rounded from.
template <class Real, class Trainer>
std::vector<stored_tensor<Real>> weight_tensors(Trainer& from, part_choice choice) {
  std::vector<stored_tensor<Real>> all;
  auto& state = from.state();
  add_tensors(
      from, kept_array::weights, choice, "",
      [&](std::int64_t offset) { return state.weights.data() + offset; }, all);
  if (state.router_bias() == nullptr) return all;
  // Every rank has it, in the policy's real type: rounded to bf16 it would no longer move.
  const std::int64_t own = from.team().world().rank();
  const std::int64_t rank = choice == part_choice::to_write ? 0 : own;
  all.push_back(
      {"router_bias",
       {state.plan.moe_visits(), state.plan.most_experts()},
       {{rank, 0, state.router_bias_count(), rank == own ? state.router_bias() : nullptr}}});
  return all;
}

// What optimizer.safetensors holds. Its steps, for the bias corrections, are the trainer's.
template <class Real, class Trainer>
std::vector<stored_tensor<Real>> moment_tensors(Trainer& from, part_choice choice) {
  std::vector<stored_tensor<Real>> all;
  auto& team = from.team();
  add_tensors(
      from, kept_array::moments, choice, "first_moment.",
      [&](std::int64_t offset) { return team.first_moment(offset); }, all);
  add_tensors(
      from, kept_array::moments, choice, "second_moment.",
      [&](std::int64_t offset) { return team.second_moment(offset); }, all);
  return all;
}

/// Brings tensors to the host of rank 0 a piece at a time, so that neither a device's model nor
/// that of all ranks is ever whole there: take(tensor, elements) is called on rank 0, in the order
/// given. Every rank calls with the same tensors.
template <class Engine, class Policy, class Real, class Take>
void gather_tensors(Engine& ranks, const Policy& run,
                    const std::vector<stored_tensor<Real>>& tensors, std::int64_t piece_elements,
                    Take&& take) {
  const bool is_writer = ranks.rank() == 0;
  const auto size = static_cast<std::size_t>(ranks.size());
  std::vector<std::int64_t> leaving(size), coming(size);
  std::vector<Real> piece;
  buffer_of<Policy> arrived;
  for (const stored_tensor<Real>& tensor : tensors)
    for (const stored_part<Real>& part : tensor.parts)
      for (std::int64_t done = 0; done < part.count; done += piece_elements) {
        const std::int64_t count = std::min(piece_elements, part.count - done);
        const Real* data = part.data == nullptr ? nullptr : part.data + done;
        if (part.rank != 0) {
          if (is_writer && arrived.bytes() == 0)
            arrived = allocate(run, piece_elements * static_cast<std::int64_t>(sizeof(Real)),
                               "a checkpoint under way");
          auto* here = reinterpret_cast<Real*>(arrived.data());
          leaving[0] = ranks.rank() == part.rank ? count : 0;
          coming[static_cast<std::size_t>(part.rank)] = is_writer ? count : 0;
          ranks.all_to_all(run, data, leaving, here, coming);
          leaving[0] = coming[static_cast<std::size_t>(part.rank)] = 0;
          data = here;
        }
        if (!is_writer) continue;
        piece.resize(static_cast<std::size_t>(count));
        download(run, data, count, piece.data());
        take(tensor, std::span<const Real>(piece));
      }
}

}  // namespace smelt::detail
