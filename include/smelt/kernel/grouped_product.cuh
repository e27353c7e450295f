// SPDX-License-Identifier: Apache-2.0
//
// Grouped products: one persistent kernel multiplies for all experts, whatever their row counts.
//
//   ragged::rows    C[s, :] = sum_k A[s, k] B_e[k, :]       s in slots of e, k in [0, inner)
//   ragged::inner   C_e[m, :] = sum_s A[s, m] B[s, :]       s in slots of e, m in [0, rows)
//
// Slots of expert e are [offsets[e], offsets[e + 1]), in device memory: the host does not know
// them, neither the grid nor an argument depends on them, and a captured graph may be replayed with
// others. Four parts, each a type of its own: the scheduler says which tile comes next, loaders
// (grouped_load.cuh) bring its operands, a multiplier (grouped_multiply.cuh) makes its sums, an
// epilogue (grouped_epilogue.cuh) what becomes of them.
//
// Scheduler: as many blocks as are resident at once; block b takes tiles b, b + blocks, ... of a
// list that nobody writes down: a scan over the experts' tile counts stands in shared memory, and a
// binary search finds a tile's expert. An expert's result [rows, columns] is walked in bands of
// `band` row tiles, and in a band down its columns: blocks that run together share the B panel (128
// columns of a weight, 1 MiB at 4096 bf16) in the second-level cache and, over a band, 16 tiles of
// A rows (16 MiB), so that each comes from memory about once. Experts without slots have no tiles.
//
// Pipeline: `stages` pairs of panels, 16 KiB each, all but one of them on their way by cp.async
// while a block multiplies the oldest: one barrier per panel. A tile belongs to one block and sums
// in ascending order, so results repeat bit for bit. Limits: grouped_tuning::most_groups experts.
#pragma once

#include <cub/block/block_scan.cuh>

#include <algorithm>
#include <cstdint>
#include <string>

#include "smelt/exec/cuda/launch.cuh"
#include "smelt/kernel/grouped_epilogue.cuh"
#include "smelt/kernel/grouped_load.cuh"
#include "smelt/kernel/grouped_multiply.cuh"

namespace smelt {
inline namespace cuda_backend {

namespace cuda_detail {

struct grouped_tuning {
  static constexpr int stages = 4;          // pairs of panels in shared memory
  static constexpr int most_groups = 1024;  // entries of the scheduler's scan
  static constexpr std::int64_t band = 16;  // row tiles walked together
};

/// Which size of the products differs from group to group.
enum class ragged : std::uint8_t { rows, inner };

template <class Element>
struct grouped_problem {
  const std::int64_t* offsets;  // [groups + 1], device
  std::int64_t groups;
  std::int64_t slots;    // offsets[groups], known to the host
  std::int64_t rows;     // of a result, where inner is ragged
  std::int64_t columns;  // of a result; of h where B rows come in pairs
  std::int64_t inner;    // of the sum, where rows are ragged
  grouped_operand<Element> a, b;
};

/// Tiles of all groups in one order; every thread of the block asks together.
template <ragged Ragged, int Threads, int TileRows, int TileColumns>
class grouped_scheduler {
  static constexpr int each = grouped_tuning::most_groups / Threads;
  static_assert(each * Threads == grouped_tuning::most_groups);
  using scan = cub::BlockScan<std::int64_t, Threads>;

 public:
  struct storage {
    typename scan::TempStorage of_scan;
    std::int64_t first_tile[grouped_tuning::most_groups + 1];  // the last one: all tiles
    grouped_tile tiles[2];  // this one and the next, out of the registers while sums are made
  };

  template <class Element>
  __device__ grouped_scheduler(storage& shared, const grouped_problem<Element>& problem)
      : first_tile_(shared.first_tile),
        offsets_(problem.offsets),
        groups_(problem.groups),
        rows_(problem.rows),
        columns_(problem.columns),
        inner_(problem.inner) {
    std::int64_t tiles[each];
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const std::int64_t group = static_cast<std::int64_t>(threadIdx.x) * each + i;
      tiles[i] = group < groups_ ? row_tiles(group) * column_tiles() : 0;
    }
    std::int64_t all = 0;
    scan(shared.of_scan).ExclusiveSum(tiles, tiles, all);
#pragma unroll
    for (int i = 0; i < each; ++i) shared.first_tile[threadIdx.x * each + i] = tiles[i];
    if (threadIdx.x == 0) shared.first_tile[grouped_tuning::most_groups] = all;
    __syncthreads();
  }

  __device__ std::int64_t tiles() const {
    return first_tile_[grouped_tuning::most_groups];
  }

  __device__ grouped_tile tile(std::int64_t index) const {
    // The last group that begins at or before the tile; groups without tiles begin where the next
    // one does and are passed over.
    std::int64_t group = 0, end = groups_;
    while (group + 1 < end) {
      const std::int64_t middle = (group + end) / 2;
      (first_tile_[middle] <= index ? group : end) = middle;
    }
    const std::int64_t band_tiles = grouped_tuning::band * column_tiles();
    const std::int64_t local = index - first_tile_[group];
    const std::int64_t band_row = local / band_tiles * grouped_tuning::band;
    const std::int64_t left = row_tiles(group) - band_row;
    const std::int64_t band_rows = left < grouped_tuning::band ? left : grouped_tuning::band;
    const std::int64_t column_tile = local % band_tiles / band_rows;
    const std::int64_t row = (band_row + local % band_tiles % band_rows) * TileRows;
    const index_range slots{offsets_[group], offsets_[group + 1]};
    const index_range columns{column_tile * TileColumns, columns_};
    if constexpr (Ragged == ragged::rows)
      return {group, {slots.first + row, slots.end}, columns, {0, inner_}, column_tile};
    else
      return {group, {row, rows_}, columns, slots, column_tile};
  }

 private:
  __device__ std::int64_t row_tiles(std::int64_t group) const {
    const std::int64_t slots = offsets_[group + 1] - offsets_[group];
    const std::int64_t rows = Ragged == ragged::rows ? slots : slots > 0 ? rows_ : 0;
    return (rows + TileRows - 1) / TileRows;
  }
  __device__ std::int64_t column_tiles() const {
    return (columns_ + TileColumns - 1) / TileColumns;
  }

  const std::int64_t* first_tile_;
  const std::int64_t* offsets_;
  std::int64_t groups_, rows_, columns_, inner_;
};

/// Columns of a result that a tile covers: half as many where gate and up share it.
template <class Multiplier, class Epilogue>
inline constexpr int grouped_columns = Multiplier::tile_columns / (Epilogue::pairs ? 2 : 1);

/// All of a block's shared memory, dynamic since it is more than a launch has for free.
template <ragged Ragged, class Multiplier, class Epilogue>
struct grouped_shared {
  using element = typename Multiplier::element;
  using scheduler = grouped_scheduler<Ragged, Multiplier::threads, Multiplier::tile_rows,
                                      grouped_columns<Multiplier, Epilogue>>;
  struct stage {
    alignas(128) element a[Multiplier::panel_a::elements];
    alignas(128) element b[Multiplier::panel_b::elements];
  };
  stage stages[grouped_tuning::stages];
  typename scheduler::storage schedule;
};

template <ragged Ragged, class Multiplier, class Epilogue>
__global__ void __launch_bounds__(Multiplier::threads, Multiplier::resident_blocks)
    grouped_product_kernel(const grouped_problem<typename Multiplier::element> problem,
                           const Epilogue epilogue) {
  using element = typename Multiplier::element;
  using panel_a = typename Multiplier::panel_a;
  using panel_b = typename Multiplier::panel_b;
  using shared_memory = grouped_shared<Ragged, Multiplier, Epilogue>;
  static_assert(!Epilogue::pairs ||
                    (Ragged == ragged::rows && Multiplier::panel_b::order == panel_order::inner),
                "smelt: pairs of columns are pairs of rows of weights, in inner order");
  constexpr int stages = grouped_tuning::stages;
  constexpr int pair_distance = Epilogue::pairs ? Multiplier::pair_distance : 0;

  extern __shared__ __align__(128) unsigned char grouped_memory[];
  auto& shared = *reinterpret_cast<shared_memory*>(grouped_memory);

  const typename shared_memory::scheduler order(shared.schedule, problem);
  // Slots' rows may be looked up, weights never are.
  panel_loader<panel_a, element, Multiplier::threads, 0, true> a;
  panel_loader<panel_b, element, Multiplier::threads, pair_distance, Ragged == ragged::inner> b;
  Multiplier sums;
  int parity = 0;
  for (std::int64_t index = blockIdx.x; index < order.tiles(); index += gridDim.x, parity ^= 1) {
    const grouped_tile tile = order.tile(index);
    if (threadIdx.x == 0) shared.schedule.tiles[parity] = tile;
    a.start(problem.a, tile.group, tile.rows, tile.inner, 0);
    b.start(problem.b, tile.group, tile.columns, tile.inner, problem.columns);
    sums.clear();

    // 2^31 panels are more rows than a device holds.
    const int steps =
        static_cast<int>((tile.inner.end - tile.inner.first + panel_a::inner - 1) / panel_a::inner);
    const auto load = [&](int step, int stage) {
      if (step < steps) {
        a.load(shared.stages[stage].a);
        b.load(shared.stages[stage].b);
      }
      copy_async_commit();  // an empty group at the end, so that the count of groups stays right
    };
    for (int ahead = 0; ahead + 1 < stages; ++ahead) load(ahead, ahead);
    for (int step = 0; step < steps; ++step) {
      copy_async_wait<stages - 2>();
      // Everybody's copies of these panels have arrived, and everybody is done with the last
      // ones, whose place the next copies take.
      __syncthreads();
      load(step + stages - 1, (step + stages - 1) % stages);
      sums.add(shared.stages[step % stages].a, shared.stages[step % stages].b);
    }
    __syncthreads();  // the next tile's first copies go where slower warps still read
    epilogue(shared.schedule.tiles[parity], sums);
  }
}

// Blocks of a kernel that a multiprocessor holds at once. Asked once and kept: a program's devices
// are taken to be of one kind, and where they are not, only the grid's size suffers.
template <ragged Ragged, class Multiplier, class Epilogue>
int grouped_resident_blocks(int shared_bytes) {
  static const int blocks = [&] {
    const auto kernel =
        reinterpret_cast<const void*>(grouped_product_kernel<Ragged, Multiplier, Epilogue>);
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
          "cudaFuncSetAttribute of a grouped product");
    int found = 0;
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&found, kernel, Multiplier::threads,
                                                        static_cast<std::size_t>(shared_bytes)),
          "cudaOccupancyMaxActiveBlocksPerMultiprocessor of a grouped product");
    return std::max(found, 1);  // a device too small says so at the launch
  }();
  return blocks;
}

/// Starts the products of all groups. Orders: how the operands lie (grouped_load.cuh).
template <ragged Ragged, panel_order OrderA, panel_order OrderB, class Compute, class Epilogue>
void grouped_product(const cuda<Compute>& run, const char* name,
                     const grouped_problem<Compute>& problem, const Epilogue& epilogue) {
  using multiplier = grouped_multiplier<Compute, OrderA, OrderB>;
  if (problem.groups > grouped_tuning::most_groups)
    throw error(std::string(name) + ": expected at most " +
                std::to_string(grouped_tuning::most_groups) + " experts, found " +
                std::to_string(problem.groups) + "; raise grouped_tuning::most_groups");
  constexpr int shared_bytes =
      static_cast<int>(sizeof(grouped_shared<Ragged, multiplier, Epilogue>));
  // No more blocks than tiles there can be: every group that has slots may end inside a tile.
  const std::int64_t ending = std::min(problem.groups, problem.slots);
  const std::int64_t row_tiles = Ragged == ragged::rows
                                     ? problem.slots / multiplier::tile_rows + ending
                                     : ending * blocks_for(problem.rows, multiplier::tile_rows);
  const std::int64_t most =
      row_tiles * blocks_for(problem.columns, grouped_columns<multiplier, Epilogue>);
  if (most == 0) return;
  const std::int64_t resident = std::int64_t{run.context().multiprocessors()} *
                                grouped_resident_blocks<Ragged, multiplier, Epilogue>(shared_bytes);
  launch(run,
         {name, {problem.slots, problem.columns, problem.rows + problem.inner, problem.groups}},
         {std::min(resident, most), multiplier::threads, shared_bytes},
         grouped_product_kernel<Ragged, multiplier, Epilogue>, problem, epilogue);
}

}  // namespace cuda_detail

}  // namespace cuda_backend
}  // namespace smelt
