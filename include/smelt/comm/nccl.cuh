// SPDX-License-Identifier: Apache-2.0
//
// nccl: the engine of several processes with a CUDA device each. Meaning of the collectives and
// their bytes: comm/collectives.hpp. The NCCL calls: comm/nccl_exchange.cuh.
//
//   policy cuda   device memory, in the order of the policy's stream; the host goes on
//   policy host   control data (counts, steps, texts), in pieces; there when the call returns
//
// Sums add up in an order of NCCL's own, which depends on the number of ranks, the count and the
// machine: every rank holds the same bits, and a run that is repeated has them again, but they are
// not those of mpi, nor of other buckets. Sums of int64 are exact in any order.
//
// All calls of a process run on one stream of the engine (comm/nccl_channel.cuh), so a sum begun
// overlaps with what the policy's stream does until finish(). A rank that hangs or is lost ends the
// process within the timeout (comm/nccl_watch.cuh). Calls that differ from rank to rank are not
// told apart as by mpi: they end that way, or in wrong data. Find them with mpi.
//
// Recording: a step of these calls with a cuda policy can be recorded as a CUDA graph, on all ranks
// alike. No sum is under way when the recording begins or ends; the counts of an all_to_all are
// those of the recording; sent() counts it once. Graphs are destroyed before the engine, which
// waits for them. The engine is called from one thread, the one that made it, as that has its
// device.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "smelt/comm/collectives.hpp"
#include "smelt/comm/nccl_channel.cuh"
#include "smelt/comm/nccl_exchange.cuh"
#include "smelt/comm/nccl_rendezvous.hpp"
#include "smelt/exec/cuda/policy.cuh"
#include "smelt/exec/policy.hpp"

namespace smelt {

class nccl;

/// An engine that passes NCCL's id on: it reaches memory of the host.
template <class Engine>
concept nccl_launcher = !std::same_as<Engine, nccl> && collectives<Engine, host<float>>;

namespace detail {

/// A sum under way; see pending<T> in comm/collectives.hpp. Nobody waits on the host: finish()
/// makes the policy's stream wait.
template <summed_element T>
class nccl_sum {
 public:
  nccl_sum() = default;
  nccl_sum(const nccl_sum&) = delete;
  nccl_sum& operator=(const nccl_sum&) = delete;
  /// Memory of the data may go away behind work of the policy's stream, so that waits.
  ~nccl_sum() {
    if (!under_way_ || std::uncaught_exceptions() != 0) return;
    try {
      finish();
    } catch (const error&) {  // a recording that was given up
    }
  }

  /// True when the sum is there. While a graph is recorded no event may be asked, so only finish()
  /// ends a sum then.
  bool advance() {
    if (under_way_ && !recorded_ && !is_recording(stream_) && ended_.passed()) finish();
    return !under_way_;
  }
  /// What is asked of the policy's stream from now on comes behind the sum.
  void finish() {
    if (!under_way_) return;
    under_way_ = false;
    ended_.hold(stream_);
  }

 private:
  friend class smelt::nccl;
  void begun(cudaStream_t policy, cudaStream_t engine) {
    ended_.record(engine);
    stream_ = policy;
    recorded_ = is_recording(policy);
    under_way_ = true;
  }

  cudaStream_t stream_ = nullptr;
  cuda_event ended_;
  bool under_way_ = false;
  bool recorded_ = false;
};

}  // namespace detail

class nccl {
 public:
  template <summed_element T>
  using pending = detail::nccl_sum<T>;

  /// Whole training steps with these collectives may be recorded as a CUDA graph.
  static constexpr bool can_be_captured = true;

  /// The ranks of a launcher: mpi, or alone.
  template <nccl_launcher Launcher>
  explicit nccl(Launcher& launcher, const nccl_options& options = {})
      : nccl(meet(launcher), options) {}

  /// The ranks that meet at a place; see comm/nccl_rendezvous.hpp.
  explicit nccl(const nccl_rendezvous& where, const nccl_options& options = {})
      : nccl(meet(where, options), options) {}

  std::int64_t rank() const { return channel_.rank(); }
  std::int64_t size() const { return channel_.size(); }
  const char* name() const { return "nccl"; }
  /// The CUDA device of this process; policies made from now on are on it.
  int device() const { return channel_.line().device(); }
  /// Since the engine was made; engines made by split count for themselves. Data of the host count
  /// in whole pieces.
  const sent_bytes& sent() const { return channel_.sent(); }

  /// The ranks that give the same color, in the order of key. Every rank of this engine must call.
  nccl split(std::int64_t color, std::int64_t key) { return nccl(channel_, color, key); }

  /// Returns when every rank has called it.
  void barrier() { detail::nccl_exchange(channel_).barrier(); }

  /// data [count] = sum over ranks, on every rank.
  template <class Compute, summed_element T>
  void all_reduce_sum(const cuda<Compute>& run, T* data, std::int64_t count) {
    detail::expect_count(collective::all_reduce_sum, count);
    in_order(run, [&](auto exchange) { exchange.all_reduce(data, count); });
  }
  template <class Compute, summed_element T>
  void all_reduce_sum(const host<Compute>&, T* data, std::int64_t count) {
    detail::expect_count(collective::all_reduce_sum, count);
    detail::nccl_staged(channel_).all_reduce(data, count);
  }

  /// Begins a sum; with a host policy it is finished on return. `part` is not compared.
  template <class Compute, summed_element T>
  void begin_all_reduce_sum(const cuda<Compute>& run, T* data, std::int64_t count,
                            pending<T>& under_way, std::int64_t = 0) {
    detail::expect_count(collective::all_reduce_sum, count);
    channel_.expect_device(run.context().device());
    under_way.finish();
    if (size() == 1) return;
    channel_.line().enter_from(run.stream());
    detail::nccl_exchange(channel_).all_reduce(data, count);
    under_way.begun(run.stream(), channel_.line().stream());
  }
  template <class Compute, summed_element T>
  void begin_all_reduce_sum(const host<Compute>& run, T* data, std::int64_t count,
                            pending<T>& under_way, std::int64_t = 0) {
    under_way.finish();
    all_reduce_sum(run, data, count);
  }

  /// The same in this rank's shard of data [count]; the other shards are left as they were.
  template <class Compute, summed_element T>
  void reduce_scatter_sum(const cuda<Compute>& run, T* data, std::int64_t count) {
    detail::expect_count(collective::reduce_scatter_sum, count);
    in_order(run, [&](auto exchange) { exchange.reduce_scatter(data, count); });
  }
  template <class Compute, summed_element T>
  void reduce_scatter_sum(const host<Compute>&, T* data, std::int64_t count) {
    detail::expect_count(collective::reduce_scatter_sum, count);
    detail::nccl_staged(channel_).reduce_scatter(data, count);
  }

  /// data [count]: every rank's own shard, on every rank.
  template <class Compute, sent_element T>
  void all_gather(const cuda<Compute>& run, T* data, std::int64_t count) {
    detail::expect_count(collective::all_gather, count);
    in_order(run, [&](auto exchange) { exchange.all_gather(data, count); });
  }
  template <class Compute, sent_element T>
  void all_gather(const host<Compute>&, T* data, std::int64_t count) {
    detail::expect_count(collective::all_gather, count);
    detail::nccl_staged(channel_).all_gather(data, count);
  }

  /// data [count] of the root, on every rank.
  template <class Compute, sent_element T>
  void broadcast(const cuda<Compute>& run, T* data, std::int64_t count, std::int64_t root) {
    detail::expect_count(collective::broadcast, count);
    detail::expect_root(root, size());
    in_order(run, [&](auto exchange) { exchange.broadcast(data, count, root); });
  }
  template <class Compute, sent_element T>
  void broadcast(const host<Compute>&, T* data, std::int64_t count, std::int64_t root) {
    detail::expect_count(collective::broadcast, count);
    detail::expect_root(root, size());
    detail::nccl_staged(channel_).broadcast(data, count, root);
  }

  /// Parts of send, one per rank and one behind the other, to the same place in order of receive;
  /// the two must not overlap. The counts are the host's in either case.
  template <class Compute, sent_element T>
  void all_to_all(const cuda<Compute>& run, const T* send,
                  std::span<const std::int64_t> send_counts, T* receive,
                  std::span<const std::int64_t> receive_counts) {
    detail::expect_counts(send_counts, receive_counts, rank(), size());
    channel_.expect_device(run.context().device());
    find_begins(send_counts, receive_counts);
    const T* kept = send + send_begins_[at(rank())];
    const auto count = send_counts[at(rank())];
    if (size() > 1) channel_.line().enter_from(run.stream());
    // On the policy's stream, beside what travels.
    if (count > 0)
      detail::expect_cuda(
          cudaMemcpyAsync(receive + receive_begins_[at(rank())], kept, at(count) * sizeof(T),
                          cudaMemcpyDeviceToDevice, run.stream()),
          "all_to_all: copy of a rank's own part");
    if (size() == 1) return;
    detail::nccl_exchange(channel_).exchange<T>(
        [&](std::int64_t peer) {
          return std::span<const T>(send + send_begins_[at(peer)], at(send_counts[at(peer)]));
        },
        [&](std::int64_t peer) {
          return std::span<T>(receive + receive_begins_[at(peer)], at(receive_counts[at(peer)]));
        });
    channel_.line().leave_to(run.stream());
  }
  template <class Compute, sent_element T>
  void all_to_all(const host<Compute>&, const T* send, std::span<const std::int64_t> send_counts,
                  T* receive, std::span<const std::int64_t> receive_counts) {
    detail::expect_counts(send_counts, receive_counts, rank(), size());
    find_begins(send_counts, receive_counts);
    std::copy_n(send + send_begins_[at(rank())], send_counts[at(rank())],
                receive + receive_begins_[at(rank())]);
    detail::nccl_staged(channel_).all_to_all(send, send_counts, receive, receive_counts);
  }

 private:
  static constexpr std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }
  // Where the parts of the ranks begin.
  void find_begins(std::span<const std::int64_t> send_counts,
                   std::span<const std::int64_t> receive_counts) {
    std::exclusive_scan(send_counts.begin(), send_counts.end(), send_begins_.begin(),
                        std::int64_t{0});
    std::exclusive_scan(receive_counts.begin(), receive_counts.end(), receive_begins_.begin(),
                        std::int64_t{0});
  }

  // call(exchange) behind the work of the policy's stream, and before what comes next on it.
  template <class Compute, class Call>
  void in_order(const cuda<Compute>& run, Call&& call) {
    channel_.expect_device(run.context().device());
    if (size() == 1) return;
    channel_.line().enter_from(run.stream());
    call(detail::nccl_exchange(channel_));
    channel_.line().leave_to(run.stream());
  }

  // What the ranks know of one another before there is a communicator.
  struct meeting {
    launched_process process;
    ncclUniqueId id{};
  };
  static void draw_id(meeting& found) {
    if (found.process.rank == 0)
      detail::expect_nccl(ncclGetUniqueId(&found.id), "ncclGetUniqueId", 0, nullptr);
  }
  static std::span<std::byte> bytes_of(ncclUniqueId& id) {
    return std::as_writable_bytes(std::span(&id, 1));
  }
  template <class Launcher>
  static meeting meet(Launcher& launcher) {
    const host<float> run(1);
    meeting found{{launcher.rank(), launcher.size(), 0, {}}};
    // Which ranks are on this machine, their names say; not every launcher does.
    constexpr std::int64_t width = 256;
    std::vector<std::byte> names(at(launcher.size() * width));
    std::byte* own = names.data() + launcher.rank() * width;
    static_cast<void>(gethostname(reinterpret_cast<char*>(own), at(width - 1)));
    launcher.all_gather(run, names.data(), static_cast<std::int64_t>(names.size()));
    for (std::int64_t rank = 0; rank < launcher.rank(); ++rank)
      if (std::equal(own, own + width, names.data() + rank * width)) ++found.process.local_rank;
    draw_id(found);
    const std::span<std::byte> id = bytes_of(found.id);
    launcher.broadcast(run, id.data(), static_cast<std::int64_t>(id.size()), 0);
    return found;
  }
  static meeting meet(const nccl_rendezvous& where, const nccl_options& options) {
    meeting found{where.process};
    draw_id(found);
    where.share(bytes_of(found.id), options.timeout_seconds);
    return found;
  }

  // A scheduler that shows each process one device shows it as number 0.
  static int choose_device(const launched_process& process, const nccl_options& options) {
    const int devices = cuda_device_count();
    if (devices == 0)
      throw error(
          "nccl: expected a CUDA device, found none (no driver, no GPU, or none visible to this "
          "process); run on CPUs with mpi");
    const int device =
        options.device >= 0 ? options.device : static_cast<int>(process.local_rank % devices);
    cuda_detail::check(cudaSetDevice(device), "cudaSetDevice(" + std::to_string(device) + ")");
    return device;
  }

  nccl(const meeting& found, const nccl_options& options)
      : channel_(found.process, choose_device(found.process, options), found.id, options),
        send_begins_(at(size())),
        receive_begins_(at(size())) {}
  nccl(detail::nccl_channel& whole, std::int64_t color, std::int64_t key)
      : channel_(whole, color, key), send_begins_(at(size())), receive_begins_(at(size())) {}

  detail::nccl_channel channel_;
  // Of an all_to_all; kept so that a step allocates nothing.
  std::vector<std::int64_t> send_begins_, receive_begins_;
};

static_assert(collectives<nccl, cuda<float>> && collectives<nccl, host<float>>);

}  // namespace smelt
