// SPDX-License-Identifier: Apache-2.0
#include "mpi_link.h"
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include "nogpu.h"

namespace wire {
static double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

// A process that failed must not wait in MPI_Finalize for others; mpirun then stops them.
static void finish(int status, void*) {
  int done = 0;
  MPI_Finalized(&done);
  if (!done && status == 0) MPI_Finalize();
}

bool start(std::string* error) {
  int running = 0;
  MPI_Initialized(&running);
  if (running) return true;
  if (!getenv("OMPI_COMM_WORLD_SIZE") && !getenv("PMI_SIZE") && !getenv("PMIX_RANK")) {
    *error = "several ranks need several processes: start the program with mpirun -np N";
    return false;
  }
  int provided;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS) {
    *error = "MPI_Init failed";
    return false;
  }
  on_exit(finish, nullptr);
  return true;
}
int world_rank() {
  int running = 0, r = 0;
  MPI_Initialized(&running);
  if (running) {
    MPI_Comm_rank(MPI_COMM_WORLD, &r);
    return r;
  }
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"})
    if (const char* v = getenv(name)) return atoi(v);
  return 0;
}
int world_size() {
  int n;
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  return n;
}

void die(const std::string& text) {
  nogpu_fail(text.c_str());
  fflush(nullptr);
  MPI_Abort(MPI_COMM_WORLD, 87);
  _exit(87);
}

// Tests until done() says yes.
template <class F>
static void poll(const char* what, F done) {
  static const double limit =
      getenv("NOGPU_NCCL_TIMEOUT") ? atof(getenv("NOGPU_NCCL_TIMEOUT")) : 120;
  const double begin = now();
  for (int spins = 0; !done(); spins++) {
    if (spins > 100) usleep(50);  // ranks may share cores
    if (now() - begin > limit)
      die("rank " + std::to_string(world_rank()) + " waited " + std::to_string((int)limit) +
          " s in " + what + ": another rank does not take part");
  }
}
static void check(int status, const char* what) {
  if (status != MPI_SUCCESS)
    die(std::string("MPI error in ") + what + " (do the counts on both sides agree?)");
}
void wait(std::vector<MPI_Request>& requests, const char* what) {
  if (requests.empty())
    return;  // perhaps MPI is not even running: a communicator of one does without
  poll(what, [&] {
    int done = 0;
    check(MPI_Testall((int)requests.size(), requests.data(), &done, MPI_STATUSES_IGNORE), what);
    return done;
  });
}
int wait_bytes(MPI_Request& request, const char* what) {
  MPI_Status status;
  poll(what, [&] {
    int done = 0;
    check(MPI_Test(&request, &done, &status), what);
    return done;
  });
  int bytes = 0;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  return bytes;
}
}  // namespace wire
