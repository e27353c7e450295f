// SPDX-License-Identifier: Apache-2.0
//
// step_memory on CUDA: one copy to the device before a step, one copy back after it, both from
// pinned memory and in stream order, so that neither side waits.
//
//   device   [rates, scale | micro-batch 0 | micro-batch 1 | ...]   inputs, written by one copy
//            [sums | expert counts]                                 results, read by one copy
//   host     two pinned images of each: one is filled while the device works from the other
//
//   a micro-batch is offsets [N + 1] of 8 bytes, inputs, targets, positions [N] of 4, N the
//   capacity. Its segments are padded to N with empty ones, so that no count of a batch is part of
//   a captured graph.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "smelt/exec/cuda/buffer.cuh"
#include "smelt/train/step_memory.hpp"

namespace smelt {

template <class Compute>
class step_memory<cuda<Compute>> {
 public:
  using real = float;
  using sums_type = step_sums<float>;

  step_memory(const cuda<Compute>& run, std::int64_t capacity, std::int64_t counts)
      : capacity_(capacity), counts_(counts) {
    layout results;
    sums_place_ = results.place<sums_type>(1);
    counts_place_ = results.place<std::int64_t>(counts);
    result_bytes_ = results.bytes();
    results_ = allocate(run, result_bytes_, "results of a step");
    for (image& one : images_) {
      one.results = pinned_buffer(result_bytes_);
      cuda_detail::check(cudaEventCreateWithFlags(&one.done, cudaEventDisableTiming),
                         "cudaEventCreate");
    }
    outcome_.expert_counts.resize(static_cast<std::size_t>(counts));
    make_room(run, 1);
  }
  step_memory(const step_memory&) = delete;
  step_memory& operator=(const step_memory&) = delete;
  ~step_memory() {
    for (image& one : images_)
      if (one.done != nullptr) static_cast<void>(cudaEventDestroy(one.done));
  }

  /// Sends the inputs of the next step on their way; the batches are copied before it returns.
  void stage(const cuda<Compute>& run, std::span<const batch_view> batches, double scale,
             const adamw_rates<float>& rates) {
    make_room(run, static_cast<std::int64_t>(batches.size()));
    // The image is free: whoever collected it last was waited for.
    std::byte* filled = images_[collected_ % most_unfinished_steps].inputs.data();
    const header values{rates, static_cast<float>(scale)};
    std::memcpy(filled, &values, sizeof(values));
    views_.clear();
    for (std::size_t i = 0; i < batches.size(); ++i) {
      const batch_view& batch = batches[i];
      const std::int64_t begin = header_bytes + static_cast<std::int64_t>(i) * batch_bytes();
      auto* offsets = reinterpret_cast<std::int64_t*>(filled + begin);
      std::copy_n(batch.documents.offsets, batch.documents.count + 1, offsets);
      std::fill(offsets + batch.documents.count + 1, offsets + capacity_ + 1, batch.tokens);
      std::copy_n(batch.inputs, batch.tokens, integers(filled, begin, 0));
      std::copy_n(batch.targets, batch.tokens, integers(filled, begin, 1));
      std::copy_n(batch.positions, batch.tokens, integers(filled, begin, 2));
      std::byte* device = inputs_.data();
      views_.push_back({batch.tokens, integers(device, begin, 0), integers(device, begin, 1),
                        integers(device, begin, 2),
                        segments{reinterpret_cast<const std::int64_t*>(device + begin), capacity_,
                                 batch.tokens, batch.documents.pairs()}});
    }
    upload(run, filled, header_bytes + static_cast<std::int64_t>(batches.size()) * batch_bytes(),
           inputs_.data());
  }
  /// A batch of the staged step, in device memory.
  batch_view batch(std::size_t index) const { return views_[index]; }
  const float* scale() const {
    return reinterpret_cast<const float*>(inputs_.data() + offsetof(header, scale));
  }
  const adamw_rates<float>* rates() const {
    return reinterpret_cast<const adamw_rates<float>*>(inputs_.data() + offsetof(header, rates));
  }

  sums_type* sums() { return at<sums_type>(results_, sums_place_); }
  std::int64_t* expert_counts() { return at<std::int64_t>(results_, counts_place_); }
  void clear_sums(const cuda<Compute>& run) { clear(run, results_.data(), result_bytes_); }

  /// Sends the results of the step on their way to the host.
  void collect(const cuda<Compute>& run) {
    image& here = images_[collected_++ % most_unfinished_steps];
    cuda_detail::check(cudaMemcpyAsync(here.results.data(), results_.data(),
                                       static_cast<std::size_t>(result_bytes_),
                                       cudaMemcpyDeviceToHost, run.stream()),
                       "results of a step");
    cuda_detail::check(cudaEventRecord(here.done, run.stream()), "cudaEventRecord");
  }
  /// Waits for the oldest step that was collected and not waited for; valid until the next wait.
  const step_outcome& wait(const cuda<Compute>&) {
    const image& here = images_[waited_++ % most_unfinished_steps];
    cuda_detail::check(cudaEventSynchronize(here.done), "a training step");
    const sums_type& sums = *at<const sums_type>(here.results, sums_place_);
    outcome_.sums.loss_sum = static_cast<double>(sums.loss_sum);
    outcome_.sums.squares = static_cast<double>(sums.squares);
    outcome_.sums.router.load_balance = static_cast<double>(sums.router.load_balance);
    outcome_.sums.router.router_z = static_cast<double>(sums.router.router_z);
    outcome_.sums.verdict = static_cast<double>(sums.verdict);
    std::copy_n(at<const std::int64_t>(here.results, counts_place_), counts_,
                outcome_.expert_counts.begin());
    return outcome_;
  }

 private:
  struct header {
    adamw_rates<float> rates;
    float scale;
  };
  struct image {
    pinned_buffer inputs;
    pinned_buffer results;
    cudaEvent_t done = nullptr;
  };
  static constexpr std::int64_t header_bytes = aligned_bytes(sizeof(header));

  std::int64_t offsets_bytes() const { return aligned_bytes((capacity_ + 1) * 8); }
  std::int64_t batch_bytes() const { return offsets_bytes() + 3 * aligned_bytes(capacity_ * 4); }
  std::int32_t* integers(std::byte* memory, std::int64_t begin, std::int64_t index) const {
    return reinterpret_cast<std::int32_t*>(memory + begin + offsets_bytes() +
                                           index * aligned_bytes(capacity_ * 4));
  }

  // Room for that many micro-batches; grows when a step has more than any before it.
  void make_room(const cuda<Compute>& run, std::int64_t batches) {
    const std::int64_t bytes = header_bytes + batches * batch_bytes();
    if (bytes <= inputs_.bytes()) return;
    run.synchronize();  // nobody may still read what is given back
    inputs_ = allocate(run, bytes, "inputs of a step");
    for (image& one : images_) one.inputs = pinned_buffer(bytes);
    views_.reserve(static_cast<std::size_t>(batches));
  }

  std::int64_t capacity_;
  std::int64_t counts_;
  placement sums_place_{}, counts_place_{};
  std::int64_t result_bytes_ = 0;
  cuda_buffer inputs_, results_;
  std::array<image, most_unfinished_steps> images_{};
  std::vector<batch_view> views_;
  step_outcome outcome_;
  std::size_t collected_ = 0;
  std::size_t waited_ = 0;
};

}  // namespace smelt
