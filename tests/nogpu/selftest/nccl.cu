// SPDX-License-Identifier: Apache-2.0
//
// The NCCL stand-in with one process per rank: mpirun -np N nogpu-run ./nccl_test
// The id travels through a file, so that the program itself does not use MPI.
#include "check.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <nccl.h>
#include <string>
#include <unistd.h>

#define NCCL(call) EXPECT((call) == ncclSuccess)
static int env(const char* n, int fallback) {
  const char* v = getenv(n);
  return v ? atoi(v) : fallback;
}
static const int rank = env("OMPI_COMM_WORLD_RANK", 0), ranks = env("OMPI_COMM_WORLD_SIZE", 1);

static ncclUniqueId exchange_id(const char* name, bool creator) {
  ncclUniqueId id;
  std::string path =
      std::string(getenv("NCCL_ID_DIR") ? getenv("NCCL_ID_DIR") : "/tmp") + "/" + name;
  if (creator) {
    NCCL(ncclGetUniqueId(&id));
    FILE* f = fopen((path + ".part").c_str(), "wb");
    fwrite(&id, sizeof id, 1, f);
    fclose(f);
    rename((path + ".part").c_str(), path.c_str());
  } else {
    FILE* f;
    while (!(f = fopen(path.c_str(), "rb"))) usleep(1000);
    EXPECT(fread(&id, sizeof id, 1, f) == 1);
    fclose(f);
  }
  return id;
}
static ncclComm_t world() {
  static ncclComm_t c = [] {
    ncclComm_t x = nullptr;
    NCCL(ncclCommInitRank(&x, ranks, exchange_id("world", rank == 0), rank));
    return x;
  }();
  return c;
}
static float up(float x) {
  return x;
}
static float up(double x) {
  return (float)x;
}
static float up(int x) {
  return (float)x;
}
static float up(int64_t x) {
  return (float)x;
}
static float up(uint8_t x) {
  return x;
}
static float up(__half x) {
  return __half2float(x);
}
static float up(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
template <class T>
T down(int x) {
  return (T)x;
}
template <>
__half down<__half>(int x) {
  return __float2half((float)x);
}
template <>
__nv_bfloat16 down<__nv_bfloat16>(int x) {
  return __float2bfloat16((float)x);
}

template <class T>
void reductions(ncclDataType_t type, bool average) {
  const int n = 37;
  std::vector<T> h(n);
  for (int i = 0; i < n; i++) h[i] = down<T>((i % 5 + 1) * (rank + 1));
  for (ncclRedOp_t op : {ncclSum, ncclProd, ncclMin, ncclMax, ncclAvg}) {
    if (op == ncclAvg && !average) continue;
    Device<T> in(h), out(n);
    NCCL(ncclAllReduce(in, out, n, type, op, world(), 0));
    CUDA(cudaDeviceSynchronize());
    auto got = out.get();
    for (int i = 0; i < n; i++) {
      float v = i % 5 + 1, want = op == ncclProd  ? 1
                                  : op == ncclMin ? v
                                  : op == ncclMax ? v * ranks
                                                  : 0;
      for (int r = 1; r <= ranks; r++) {
        if (op == ncclProd) want *= v * r;
        if (op == ncclSum || op == ncclAvg) want += v * r;
      }
      if (op == ncclAvg) want /= ranks;
      if (op == ncclProd && (sizeof(T) < 4)) continue;  // rounds or overflows
      EXPECT(near(up(got[i]), want, 1e-2));
    }
    NCCL(ncclAllReduce(in, in, n, type, op, world(), 0));  // in place
    EXPECT(!memcmp(in.get().data(), got.data(), n * sizeof(T)));
  }
}
TEST(queries) {
  int n, r, d, v;
  NCCL(ncclGetVersion(&v));
  NCCL(ncclCommCount(world(), &n));
  NCCL(ncclCommUserRank(world(), &r));
  NCCL(ncclCommCuDevice(world(), &d));
  ncclResult_t e;
  NCCL(ncclCommGetAsyncError(world(), &e));
  EXPECT(n == ranks && r == rank && d == 0 && v > 20000 && e == ncclSuccess &&
         !strcmp(ncclGetErrorString(ncclSuccess), "no error"));
  EXPECT(ncclAllReduce(nullptr, nullptr, 1, ncclFloat, ncclSum, nullptr, 0) == ncclInvalidArgument);
}
TEST(all_reduce) {
  reductions<float>(ncclFloat, true);
  reductions<double>(ncclDouble, true);
  reductions<int>(ncclInt32, false);
  reductions<int64_t>(ncclInt64, false);
  reductions<uint8_t>(ncclUint8, false);
  reductions<__half>(ncclHalf, true);
  reductions<__nv_bfloat16>(ncclBfloat16, true);
}
TEST(broadcast_and_reduce) {
  for (int root = 0; root < ranks; root++) {
    Device<int> a(std::vector<int>(5, rank + 10)), b(5, 0);
    NCCL(ncclBroadcast(a, b, 5, ncclInt32, root, world(), 0));
    EXPECT(b.get()[4] == root + 10);
    NCCL(ncclReduce(a, b, 5, ncclInt32, ncclSum, root, world(), 0));
    EXPECT(b.get()[0] == (rank == root ? 10 * ranks + ranks * (ranks - 1) / 2 : root + 10));
  }
}
TEST(gather_and_scatter) {
  Device<float> mine(std::vector<float>{rank + 0.5f, rank + 0.25f}), all(2 * ranks);
  NCCL(ncclAllGather(mine, all, 2, ncclFloat, world(), 0));
  auto g = all.get();
  for (int r = 0; r < ranks; r++) EXPECT(g[2 * r] == r + 0.5f && g[2 * r + 1] == r + 0.25f);
  NCCL(ncclReduceScatter(all, mine, 2, ncclFloat, ncclSum, world(), 0));
  EXPECT(mine.get()[0] == ranks * (rank + 0.5f));
  CUDA(cudaMemcpy(all + 2 * rank, mine, 8, cudaMemcpyDeviceToDevice));
  NCCL(ncclAllGather(all + 2 * rank, all, 2, ncclFloat, world(), 0));  // in place
  EXPECT(all.get()[2 * (ranks - 1)] == ranks * (ranks - 0.5f));
}
TEST(uneven_all_to_all) {  // expert dispatch: rank r sends (r + peer) % 3 values to each peer, some
                           // none
  auto count = [](int from, int to) { return (from + to) % 3; };
  std::vector<int> send_at(ranks + 1), recv_at(ranks + 1);
  for (int p = 0; p < ranks; p++) {
    send_at[p + 1] = send_at[p] + count(rank, p);
    recv_at[p + 1] = recv_at[p] + count(p, rank);
  }
  std::vector<__nv_bfloat16> h(send_at[ranks] + 1);
  for (int p = 0; p < ranks; p++)
    for (int i = 0; i < count(rank, p); i++)
      h[send_at[p] + i] = __float2bfloat16(rank * 16 + p * 4 + i);
  Device<__nv_bfloat16> in(h), out(recv_at[ranks] + 1);
  NCCL(ncclGroupStart());
  for (int p = 0; p < ranks; p++) {
    NCCL(ncclSend(in + send_at[p], count(rank, p), ncclBfloat16, p, world(), 0));
    NCCL(ncclRecv(out + recv_at[p], count(p, rank), ncclBfloat16, p, world(), 0));
  }
  NCCL(ncclGroupEnd());
  auto r = out.get();
  for (int p = 0; p < ranks; p++)
    for (int i = 0; i < count(p, rank); i++)
      EXPECT(__bfloat162float(r[recv_at[p] + i]) == p * 16 + rank * 4 + i);
}
TEST(ring_outside_a_group_and_grouped_collectives) {
  Device<int> a(std::vector<int>(3, rank)), b(3, 0), c(3, 0);
  if (ranks > 1) {
    if (rank == 0) {
      NCCL(ncclSend(a, 3, ncclInt32, 1, world(), 0));
    }
    if (rank == 1) {
      NCCL(ncclRecv(b, 3, ncclInt32, 0, world(), 0));
      EXPECT(b.get()[2] == 0);
    }
  }
  NCCL(ncclGroupStart());
  NCCL(ncclAllReduce(a, b, 3, ncclInt32, ncclSum, world(), 0));
  NCCL(ncclAllReduce(a, c, 3, ncclInt32, ncclMax, world(), 0));
  NCCL(ncclGroupEnd());
  EXPECT(b.get()[1] == ranks * (ranks - 1) / 2 && c.get()[1] == ranks - 1);
}
TEST(sub_communicators) {
  ncclComm_t half = nullptr, none = nullptr;
  NCCL(ncclCommSplit(world(), rank % 2, -rank, &half, nullptr));
  int n, r;
  NCCL(ncclCommCount(half, &n));
  NCCL(ncclCommUserRank(half, &r));
  EXPECT(n == (ranks + 1 - rank % 2) / 2 && r == n - 1 - rank / 2);
  Device<int> a(std::vector<int>{rank}), b(1);
  NCCL(ncclAllReduce(a, b, 1, ncclInt32, ncclSum, half, 0));
  int want = 0;
  for (int i = rank % 2; i < ranks; i += 2) want += i;
  EXPECT(b.get()[0] == want);
  NCCL(ncclCommSplit(world(), rank == 0 ? 0 : NCCL_SPLIT_NOCOLOR, 0, &none, nullptr));
  EXPECT((none != nullptr) == (rank == 0));
  if (none) NCCL(ncclCommDestroy(none));
  NCCL(ncclCommDestroy(half));
  // A second world communicator in reversed rank order, made by its own id.
  ncclComm_t reversed = nullptr;
  NCCL(ncclCommInitRank(&reversed, ranks, exchange_id("reversed", rank == 0), ranks - 1 - rank));
  NCCL(ncclBroadcast(a, b, 1, ncclInt32, 0, reversed, 0));
  EXPECT(b.get()[0] == ranks - 1);
  NCCL(ncclCommDestroy(reversed));
}
TEST(errors) {
  ncclComm_t c;
  EXPECT(ncclCommInitAll(&c, 2, nullptr) == ncclInvalidUsage);
  Device<float> d(4, 0);
  EXPECT(ncclBroadcast(d, d, 4, ncclFloat, ranks, world(), 0) == ncclInvalidArgument &&
         strlen(ncclGetLastError(world())) > 0);
  if (const char* bug = getenv("NCCL_PLANTED")) {
    if (!strcmp(bug, "count")) ncclAllReduce(d, d, rank ? 3 : 4, ncclFloat, ncclSum, world(), 0);
    if (!strcmp(bug, "bounds")) ncclAllReduce(d, d, 5, ncclFloat, ncclSum, world(), 0);
    if (!strcmp(bug, "absent") && rank) ncclAllReduce(d, d, 4, ncclFloat, ncclSum, world(), 0);
    if (!strcmp(bug, "length")) {
      ncclGroupStart();
      ncclSend(d, 2 + rank, ncclFloat, 1 - rank, world(), 0);
      ncclRecv(d, 2 + rank, ncclFloat, 1 - rank, world(), 0);
      ncclGroupEnd();
    }
  }
}
TEST(zz_destroy) {
  NCCL(ncclCommFinalize(world()));
  NCCL(ncclCommDestroy(world()));
}
