// SPDX-License-Identifier: Apache-2.0
//
// NCCL subset over MPI: one process per rank, started by mpirun. Operations complete before they
// return (at ncclGroupEnd inside a group), so nothing here overlaps; what they compute is what NCCL
// computes.
#include <nccl.h>
#include <cuda_runtime_api.h>
#include <limits.h>
#include <random>
#include <stdlib.h>
#include <string.h>
#include "mpi_link.h"
#include "nogpu.h"
#include "reduction.h"

struct ncclComm {
  MPI_Comm mpi = MPI_COMM_NULL;  // null for a communicator of one
  int rank = 0, size = 1;
};

namespace {
thread_local std::string last_error;
ncclResult_t fail(ncclResult_t r, const std::string& text) {
  last_error = text;
  fprintf(stderr, "nogpu: NCCL: %s\n", text.c_str());
  return r;
}

enum Kind { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SEND, RECV };
const char* const names[] = {"ncclAllReduce",     "ncclReduce", "ncclBroadcast", "ncclAllGather",
                             "ncclReduceScatter", "ncclSend",   "ncclRecv"};
struct Operation {
  Kind kind;
  const void* in;
  void* out;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int peer;  // or root
  ncclComm_t comm;
  cudaStream_t stream;
  size_t bytes() const { return count * element_bytes(type); }
};
thread_local int group_depth;
thread_local std::vector<Operation> group;

// ---------------------------------------------------------------- execution
// Every rank must call the same collective with the same arguments; NCCL would hang or compute
// nonsense.
void agree(const Operation& o) {
  struct Call {
    int64_t kind, count, type, op, root;
  } mine = {o.kind, (int64_t)o.count, o.type, o.op, o.peer};
  std::vector<Call> all(o.comm->size);
  std::vector<MPI_Request> r(1);
  MPI_Iallgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, o.comm->mpi,
                 &r[0]);
  wire::wait(r, names[o.kind]);
  for (int i = 0; i < o.comm->size; i++) {
    const Call& c = all[i];
    if (memcmp(&c, &mine, sizeof c) == 0) continue;
    auto show = [](const Call& c) {
      return std::string(names[c.kind]) + "(count " + std::to_string(c.count) + ", type " +
             std::to_string(c.type) + ", op " + std::to_string(c.op) + ", root " +
             std::to_string(c.root) + ")";
    };
    wire::die("collective mismatch: rank " + std::to_string(o.comm->rank) + " calls " + show(mine) +
              ", rank " + std::to_string(i) + " calls " + show(c));
  }
}

void collective(const Operation& o) {
  const int n = o.comm->size, rank = o.comm->rank;
  const size_t bytes = o.bytes();
  if (n == 1) {
    if (o.in != o.out) memmove(o.out, o.in, bytes);
    return;
  }
  agree(o);
  if (!bytes) return;
  if (bytes > INT_MAX / 2)
    wire::die(std::string(names[o.kind]) + ": more than 1 GiB per rank is not emulated");
  const int b = (int)bytes;
  std::vector<MPI_Request> r(1);
  std::vector<char> send(
      (const char*)o.in,
      (const char*)o.in +
          (o.kind == BROADCAST && rank != o.peer ? 0 : bytes * (o.kind == REDUCE_SCATTER ? n : 1))),
      all;
  switch (o.kind) {
    case ALL_REDUCE:
      all.resize(bytes * n);
      MPI_Iallgather(send.data(), b, MPI_BYTE, all.data(), b, MPI_BYTE, o.comm->mpi, &r[0]);
      wire::wait(r, names[o.kind]);
      reduce_ranks(o.out, all.data(), o.count, bytes, n, o.type, o.op);
      break;
    case REDUCE:
      if (rank == o.peer) all.resize(bytes * n);
      MPI_Igather(send.data(), b, MPI_BYTE, all.data(), b, MPI_BYTE, o.peer, o.comm->mpi, &r[0]);
      wire::wait(r, names[o.kind]);
      if (rank == o.peer) reduce_ranks(o.out, all.data(), o.count, bytes, n, o.type, o.op);
      break;
    case BROADCAST:
      if (rank == o.peer && o.in != o.out) memmove(o.out, o.in, bytes);
      MPI_Ibcast(o.out, b, MPI_BYTE, o.peer, o.comm->mpi, &r[0]);
      wire::wait(r, names[o.kind]);
      break;
    case ALL_GATHER:
      MPI_Iallgather(send.data(), b, MPI_BYTE, o.out, b, MPI_BYTE, o.comm->mpi, &r[0]);
      wire::wait(r, names[o.kind]);
      break;
    default:  // REDUCE_SCATTER
      all.resize(bytes * n);
      MPI_Ialltoall(send.data(), b, MPI_BYTE, all.data(), b, MPI_BYTE, o.comm->mpi, &r[0]);
      wire::wait(r, names[o.kind]);
      reduce_ranks(o.out, all.data(), o.count, bytes, n, o.type, o.op);
  }
}

// Bytes that this rank reads and writes.
size_t bytes_in(const Operation& o) {
  const bool root = o.comm->rank == o.peer;
  return o.kind == RECV || (o.kind == BROADCAST && !root) ? 0
         : o.kind == REDUCE_SCATTER                       ? o.bytes() * o.comm->size
                                                          : o.bytes();
}
size_t bytes_out(const Operation& o) {
  const bool root = o.comm->rank == o.peer;
  return o.kind == SEND || (o.kind == REDUCE && !root) ? 0
         : o.kind == ALL_GATHER                        ? o.bytes() * o.comm->size
                                                       : o.bytes();
}
bool buffers_valid(const Operation& o) {
  return nogpu::check_range(names[o.kind], "sendbuff", o.in, bytes_in(o)) &&
         nogpu::check_range(names[o.kind], "recvbuff", o.out, bytes_out(o));
}

const int TAG = 7;
cudaError_t execute(const std::vector<Operation>& operations) {
  for (const Operation& o : operations)
    if (!buffers_valid(o)) return cudaErrorIllegalAddress;
  // Sends and receives of a group progress together; collectives follow in order.
  std::vector<MPI_Request> sending;
  std::vector<std::pair<MPI_Request, const Operation*>> receiving;
  std::vector<const Operation*> self_sends, self_receives;
  for (const Operation& o : operations) {
    if (o.kind != SEND && o.kind != RECV) continue;
    if (o.bytes() > INT_MAX) wire::die("ncclSend/ncclRecv of more than 2 GiB is not emulated");
    if (o.peer == o.comm->rank) {
      (o.kind == SEND ? self_sends : self_receives).push_back(&o);
      continue;
    }
    MPI_Request request;
    if (o.kind == SEND) {
      MPI_Isend(o.in, (int)o.bytes(), MPI_BYTE, o.peer, TAG, o.comm->mpi, &request);
      sending.push_back(request);
    } else {
      MPI_Irecv(o.out, (int)o.bytes(), MPI_BYTE, o.peer, TAG, o.comm->mpi, &request);
      receiving.emplace_back(request, &o);
    }
  }
  // A rank's messages to itself pair up in order.
  if (self_sends.size() != self_receives.size())
    wire::die("a rank sends to itself without receiving in the same group (or the reverse)");
  for (size_t i = 0; i < self_sends.size(); i++) {
    const size_t sent = self_sends[i]->bytes(), expected = self_receives[i]->bytes();
    if (sent != expected)
      wire::die("a rank's message to itself has " + std::to_string(sent) + " bytes, " +
                std::to_string(expected) + " are expected");
    if (sent) memmove(self_receives[i]->out, self_sends[i]->in, sent);
  }
  for (const Operation& o : operations)
    if (o.kind != SEND && o.kind != RECV) collective(o);
  // Sizes must agree on both sides: MPI reports longer messages as errors, shorter ones only by
  // their length.
  for (auto& [request, o] : receiving) {
    const std::string what =
        "ncclRecv of " + std::to_string(o->bytes()) + " bytes from rank " + std::to_string(o->peer);
    const size_t arrived = wire::wait_bytes(request, what.c_str());
    if (arrived != o->bytes()) wire::die(what + ": " + std::to_string(arrived) + " were sent");
  }
  wire::wait(sending, "ncclSend");
  return cudaSuccess;
}

ncclResult_t run(std::vector<Operation> operations) {
  if (operations.empty()) return ncclSuccess;
  const cudaStream_t stream = operations[0].stream;
  cudaError_t e = nogpu::submit(stream, [operations] { return execute(operations); });
  if (e == cudaSuccess)
    for (const Operation& o : operations) {
      nogpu_stream_access(stream, o.in, bytes_in(o), 0, names[o.kind]);
      nogpu_stream_access(stream, o.out, bytes_out(o), 1, names[o.kind]);
    }
  return e == cudaSuccess
             ? ncclSuccess
             : fail(ncclUnhandledCudaError, std::string("CUDA error ") + cudaGetErrorName(e));
}

ncclResult_t enqueue(const Operation& o) {
  const std::string f = names[o.kind];
  if (!o.comm) return fail(ncclInvalidArgument, f + ": null communicator");
  if (!element_bytes(o.type))
    return fail(ncclInvalidArgument, f + ": unknown data type " + std::to_string(o.type));
  if (o.op < 0 || o.op > ncclAvg)
    return fail(ncclInvalidArgument, f + ": unknown reduction " + std::to_string(o.op));
  if (o.peer < 0 || o.peer >= o.comm->size)
    return fail(ncclInvalidArgument,
                f + ": rank " + std::to_string(o.peer) + " of " + std::to_string(o.comm->size));
  group.push_back(o);
  if (group_depth) return ncclSuccess;
  std::vector<Operation> now;
  now.swap(group);
  return run(now);
}

// ---------------------------------------------------------------- communicators
struct Id {
  char magic[8];
  int32_t creator;
  uint32_t nonce;
};  // creator: world rank that collects the members
const char MAGIC[8] = "nogpuid";

// The members find each other through the id's creator, then form an MPI communicator among
// themselves only.
ncclResult_t connect(ncclComm* c, const Id& id) {
  std::string error;
  if (!wire::start(&error)) return fail(ncclInvalidUsage, error);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (c->size > wire::world_size())
    return fail(ncclInvalidArgument, std::to_string(c->size) + " ranks, but mpirun started " +
                                         std::to_string(wire::world_size()) + " processes");
  const int tag = 1000 + (int)(id.nonce % 30000);
  struct Member {
    int32_t rank, world;
  };
  std::vector<int> world_of(c->size, -1);
  std::vector<MPI_Request> r(1);
  if (wire::world_rank() == id.creator) {
    world_of[c->rank] = id.creator;
    for (int i = 1; i < c->size; i++) {
      Member m;
      MPI_Irecv(&m, sizeof m, MPI_BYTE, MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &r[0]);
      wire::wait(r, "ncclCommInitRank");
      if (m.rank < 0 || m.rank >= c->size || world_of[m.rank] != -1)
        wire::die("ncclCommInitRank: two processes claim rank " + std::to_string(m.rank));
      world_of[m.rank] = m.world;
    }
    for (int w : world_of)
      if (w != id.creator) {
        MPI_Isend(world_of.data(), c->size, MPI_INT, w, tag + 1, MPI_COMM_WORLD, &r[0]);
        wire::wait(r, "ncclCommInitRank");
      }
  } else {
    Member m = {c->rank, wire::world_rank()};
    MPI_Isend(&m, sizeof m, MPI_BYTE, id.creator, tag, MPI_COMM_WORLD, &r[0]);
    wire::wait(r, "ncclCommInitRank");
    MPI_Irecv(world_of.data(), c->size, MPI_INT, id.creator, tag + 1, MPI_COMM_WORLD, &r[0]);
    wire::wait(r, "ncclCommInitRank");
  }
  MPI_Group world, members;
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  MPI_Group_incl(world, c->size, world_of.data(), &members);
  const int status = MPI_Comm_create_group(MPI_COMM_WORLD, members, tag, &c->mpi);
  MPI_Group_free(&members);
  MPI_Group_free(&world);
  if (status != MPI_SUCCESS) return fail(ncclSystemError, "MPI_Comm_create_group failed");
  MPI_Comm_set_errhandler(c->mpi, MPI_ERRORS_RETURN);
  return ncclSuccess;
}
}  // namespace

extern "C" {
ncclResult_t ncclGetVersion(int* v) {
  if (!v) return ncclInvalidArgument;
  *v = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t r) {
  switch (r) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}
const char* ncclGetLastError(ncclComm_t) {
  return last_error.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* out) {
  if (!out) return ncclInvalidArgument;
  Id id = {};
  memcpy(id.magic, MAGIC, 8);
  id.creator = wire::world_rank();  // MPI_Init must wait for ncclCommInitRank: it blocks until all
                                    // ranks call it
  id.nonce = std::random_device()();
  memset(out, 0, sizeof *out);
  memcpy(out->internal, &id, sizeof id);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId unique, int rank) {
  if (!comm || size < 1 || rank < 0 || rank >= size)
    return fail(ncclInvalidArgument,
                "ncclCommInitRank: rank " + std::to_string(rank) + " of " + std::to_string(size));
  *comm = nullptr;
  Id id;
  memcpy(&id, unique.internal, sizeof id);
  if (memcmp(id.magic, MAGIC, 8))
    return fail(ncclInvalidArgument, "ncclCommInitRank: the id does not come from ncclGetUniqueId");
  ncclComm* c = new ncclComm;
  c->rank = rank;
  c->size = size;
  if (size > 1)
    if (ncclResult_t r = connect(c, id)) {
      delete c;
      return r;
    }
  *comm = c;
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t*) {
  return ncclCommInitRank(comm, size, id, rank);
}
ncclResult_t ncclCommInitAll(ncclComm_t* comm, int n, const int*) {
  if (n == 1 && comm) {
    *comm = new ncclComm;
    return ncclSuccess;
  }
  return fail(
      ncclInvalidUsage,
      "ncclCommInitAll: several devices in one process are not emulated; use one process per rank");
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* out, ncclConfig_t*) {
  if (!comm || !out) return ncclInvalidArgument;
  *out = nullptr;
  if (comm->size == 1) {
    if (color != NCCL_SPLIT_NOCOLOR) *out = new ncclComm;
    return ncclSuccess;
  }
  MPI_Comm part;
  MPI_Comm_split(comm->mpi, color == NCCL_SPLIT_NOCOLOR ? MPI_UNDEFINED : color, key, &part);
  if (part == MPI_COMM_NULL) return ncclSuccess;
  ncclComm* c = new ncclComm;
  c->mpi = part;
  MPI_Comm_rank(part, &c->rank);
  MPI_Comm_size(part, &c->size);
  MPI_Comm_set_errhandler(part, MPI_ERRORS_RETURN);
  *out = c;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t c) {
  return c ? ncclSuccess : ncclInvalidArgument;
}
ncclResult_t ncclCommDestroy(ncclComm_t c) {
  if (!c) return ncclSuccess;
  int ended = 0;
  if (c->mpi != MPI_COMM_NULL) MPI_Finalized(&ended);
  if (c->mpi != MPI_COMM_NULL && !ended) MPI_Comm_free(&c->mpi);
  delete c;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t c) {
  delete c;
  return ncclSuccess;
}  // local only: the others may be gone
ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t* e) {
  if (!c || !e) return ncclInvalidArgument;
  // Nothing goes wrong here by itself: a test asks for it by number.
  static const char* const planted = getenv("NOGPU_NCCL_ASYNC_ERROR");
  *e = planted ? (ncclResult_t)atoi(planted) : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t c, int* n) {
  if (!c || !n) return ncclInvalidArgument;
  *n = c->size;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t c, int* r) {
  if (!c || !r) return ncclInvalidArgument;
  *r = c->rank;
  return ncclSuccess;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t c, int* d) {
  if (!c || !d) return ncclInvalidArgument;
  *d = 0;
  return ncclSuccess;
}
ncclResult_t ncclCommRegister(const ncclComm_t, void*, size_t, void** handle) {
  *handle = nullptr;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t, void*) {
  return ncclSuccess;
}
ncclResult_t ncclMemAlloc(void** p, size_t n) {
  return cudaMalloc(p, n) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclMemFree(void* p) {
  return cudaFree(p) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t n, ncclDataType_t t, ncclRedOp_t op,
                           ncclComm_t c, cudaStream_t s) {
  return enqueue({ALL_REDUCE, in, out, n, t, op, 0, c, s});
}
ncclResult_t ncclReduce(const void* in, void* out, size_t n, ncclDataType_t t, ncclRedOp_t op,
                        int root, ncclComm_t c, cudaStream_t s) {
  return enqueue({REDUCE, in, out, n, t, op, root, c, s});
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t n, ncclDataType_t t, int root,
                           ncclComm_t c, cudaStream_t s) {
  return enqueue({BROADCAST, in, out, n, t, ncclSum, root, c, s});
}
ncclResult_t ncclBcast(void* buffer, size_t n, ncclDataType_t t, int root, ncclComm_t c,
                       cudaStream_t s) {
  return ncclBroadcast(buffer, buffer, n, t, root, c, s);
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t n, ncclDataType_t t, ncclComm_t c,
                           cudaStream_t s) {
  return enqueue({ALL_GATHER, in, out, n, t, ncclSum, 0, c, s});
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t n, ncclDataType_t t,
                               ncclRedOp_t op, ncclComm_t c, cudaStream_t s) {
  return enqueue({REDUCE_SCATTER, in, out, n, t, op, 0, c, s});
}
ncclResult_t ncclSend(const void* in, size_t n, ncclDataType_t t, int peer, ncclComm_t c,
                      cudaStream_t s) {
  return enqueue({SEND, in, nullptr, n, t, ncclSum, peer, c, s});
}
ncclResult_t ncclRecv(void* out, size_t n, ncclDataType_t t, int peer, ncclComm_t c,
                      cudaStream_t s) {
  return enqueue({RECV, nullptr, out, n, t, ncclSum, peer, c, s});
}

ncclResult_t ncclGroupStart() {
  group_depth++;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (!group_depth) return fail(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--group_depth) return ncclSuccess;
  std::vector<Operation> now;
  now.swap(group);
  return run(now);
}
}
