// SPDX-License-Identifier: Apache-2.0
//
// Streams, events, capture and graphs. Work runs when it is submitted; a capture records it for
// replay.
#include <memory>
#include <mutex>
#include <set>
#include <string.h>
#include <time.h>
#include <vector>
#include "api.h"
#include "ordering.h"

struct Node {
  NodeKind kind;
  std::function<cudaError_t()> work;
};
struct CUgraph_st {
  std::vector<Node*> nodes;
};
struct CUgraphExec_st {
  std::vector<std::function<cudaError_t()>> work;
};
struct Capture {
  CUgraph_st* graph;
  cudaStream_t origin;
  cudaStreamCaptureMode mode;
  bool invalid = false;
};
struct CUstream_st {
  unsigned flags = 0;
  int priority = 0;
  u64 id = 0;
  Capture* capture = nullptr;
};
struct CUevent_st {
  unsigned flags = 0;
  double time = 0;
  bool recorded = false;
  Capture* capture = nullptr;
  Moment* moment = nullptr;  // what came before it, for NOGPU_STREAMS
};

static std::recursive_mutex lock;
static std::set<Capture*> captures;
static std::set<cudaStream_t> streams;
static std::set<cudaEvent_t> events;
static thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

static bool is_default(cudaStream_t s) {
  return !s || s == cudaStreamLegacy || s == cudaStreamPerThread;
}
static bool exists(cudaStream_t s) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  return is_default(s) || streams.count(s);
}

// ---------------------------------------------------------------- order between streams
static Timeline timeline_of(cudaStream_t s) {
  return is_default(s) ? LEGACY_TIMELINE : s->id;
}
static void note_operation(cudaStream_t s) {
  if (!ordering_on()) return;
  // The legacy stream waits for all blocking streams, and they for it.
  if (is_default(s)) {
    for (cudaStream_t other : streams)
      if (!(other->flags & cudaStreamNonBlocking)) order_after(LEGACY_TIMELINE, other->id);
  } else if (!(s->flags & cudaStreamNonBlocking)) {
    order_after(s->id, LEGACY_TIMELINE);
  }
  order_operation(timeline_of(s));
}
void stream_access(cudaStream_t s, const void* p, size_t bytes, bool write, const char* what) {
  order_access(timeline_of(s), p, bytes, write, what);
}
void host_waits_for(cudaStream_t s) {
  order_after(HOST_TIMELINE, timeline_of(s));
}
void host_waits_for_all() {
  if (!ordering_on()) return;
  std::lock_guard<std::recursive_mutex> guard(lock);
  order_after(HOST_TIMELINE, LEGACY_TIMELINE);
  for (cudaStream_t s : streams) order_after(HOST_TIMELINE, s->id);
}
extern "C" void nogpu_stream_access(cudaStream_t s, const void* p, size_t bytes, int write,
                                    const char* what) {
  stream_access(s, p, bytes, write != 0, what);
}

bool stream_is_capturing(cudaStream_t s) {
  return !is_default(s) && exists(s) && s->capture;
}

cudaError_t forbid_in_capture() {
  std::lock_guard<std::recursive_mutex> guard(lock);
  for (Capture* c : captures)
    if (c->mode != cudaStreamCaptureModeRelaxed && thread_mode != cudaStreamCaptureModeRelaxed) {
      c->invalid = true;
      return cudaErrorStreamCaptureUnsupported;
    }
  return cudaSuccess;
}

cudaError_t submit(cudaStream_t s, NodeKind kind, std::function<cudaError_t()> work) {
  {
    std::lock_guard<std::recursive_mutex> guard(lock);
    if (!exists(s)) return cudaErrorInvalidResourceHandle;
    note_operation(s);
    if (!is_default(s) && s->capture) {
      if (s->capture->invalid) return cudaErrorStreamCaptureInvalidated;
      s->capture->graph->nodes.push_back(new Node{kind, std::move(work)});
      return cudaSuccess;
    }
    // The legacy stream would wait for a captured blocking stream.
    if (!s || s == cudaStreamLegacy)
      for (Capture* c : captures)
        if (!(c->origin->flags & cudaStreamNonBlocking)) {
          c->invalid = true;
          return cudaErrorStreamCaptureImplicit;
        }
  }
  DeviceAccess access;
  return work();
}

// For the cuBLAS and NCCL stand-ins: the same, with a C interface. work returns a cudaError_t.
extern "C" int nogpu_submit(cudaStream_t s, int (*work)(void*), void* argument,
                            void (*destroy)(void*)) {
  if (cudaError_t e = sticky_error()) {
    destroy(argument);
    return finish(e);
  }
  std::shared_ptr<void> owner(argument, destroy);
  return submit(s, NodeKind::OTHER, [work, owner] { return (cudaError_t)work(owner.get()); });
}
extern "C" int nogpu_valid_range(const void* p, size_t bytes) {
  return !bytes || arena_valid_range(p, bytes) || host_registered((u64)p, bytes);
}
extern "C" int nogpu_illegal_address(const char* text) {
  return finish(device_fault(cudaErrorIllegalAddress, text));
}
extern "C" int nogpu_threads() {
  return settings().threads;
}
extern "C" void nogpu_fail(const char* text) {
  note_problem(text);
  log_line("error: %s", text);
}
extern "C" void nogpu_describe(const void* p, char* text, size_t bytes) {
  snprintf(text, bytes, "%s", arena_describe((u64)p).c_str());
}

static double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

static cudaError_t new_stream(cudaStream_t* s, unsigned flags, int priority) {
  API_ENTER();
  if (!s) return finish(cudaErrorInvalidValue);
  static u64 counter = 10;
  std::lock_guard<std::recursive_mutex> guard(lock);
  *s = new CUstream_st;
  (*s)->flags = flags;
  (*s)->priority = priority;
  (*s)->id = ++counter;
  streams.insert(*s);
  return cudaSuccess;
}
static cudaError_t synchronize(cudaStream_t s) {
  API_ENTER();
  if (!exists(s)) return finish(cudaErrorInvalidResourceHandle);
  if (stream_is_capturing(s)) {
    s->capture->invalid = true;
    return finish(cudaErrorStreamCaptureUnsupported);
  }
  if (is_default(s))
    if (cudaError_t e = forbid_in_capture()) return finish(e);
  host_waits_for(s);
  fflush(stdout);  // device printf appears here
  return cudaSuccess;
}

extern "C" {
cudaError_t cudaStreamCreate(cudaStream_t* s) {
  return new_stream(s, 0, 0);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned flags) {
  return new_stream(s, flags, 0);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned flags, int priority) {
  return new_stream(s, flags, priority);
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  API_ENTER();
  std::lock_guard<std::recursive_mutex> guard(lock);
  if (is_default(s) || !streams.erase(s)) return finish(cudaErrorInvalidResourceHandle);
  delete s;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  return synchronize(s);
}
cudaError_t cudaStreamQuery(cudaStream_t s) {
  return synchronize(s);
}
cudaError_t cudaDeviceSynchronize() {
  host_waits_for_all();
  return synchronize(nullptr);
}
cudaError_t cudaStreamGetFlags(cudaStream_t s, unsigned* flags) {
  *flags = is_default(s) ? 0 : s->flags;
  return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t s, int* p) {
  *p = is_default(s) ? 0 : s->priority;
  return cudaSuccess;
}
cudaError_t cudaStreamGetId(cudaStream_t s, unsigned long long* id) {
  *id = is_default(s) ? (u64)s : s->id;
  return cudaSuccess;
}
cudaError_t cudaStreamGetDevice(cudaStream_t, int* d) {
  *d = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamSetAttribute(cudaStream_t, cudaLaunchAttributeID,
                                   const cudaLaunchAttributeValue*) {
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
  API_ENTER();
  std::lock_guard<std::recursive_mutex> guard(lock);
  if (!events.count(e) || !exists(s)) return finish(cudaErrorInvalidResourceHandle);
  order_after(timeline_of(s), e->moment);
  if (e->capture && captures.count(e->capture)) {  // the stream joins the capture
    if (is_default(s)) {
      e->capture->invalid = true;
      return finish(cudaErrorStreamCaptureImplicit);
    }
    s->capture = e->capture;
  }
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void* data) {
  API_ENTER();
  return finish(submit(s, NodeKind::HOST, [=] {
    f(data);
    return cudaSuccess;
  }));
}
cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t f, void* data, unsigned) {
  API_ENTER();
  return finish(submit(s, NodeKind::HOST, [=] {
    f(s, cudaSuccess, data);
    return cudaSuccess;
  }));
}

// ---------------------------------------------------------------- events
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned flags) {
  API_ENTER();
  std::lock_guard<std::recursive_mutex> guard(lock);
  *e = new CUevent_st;
  (*e)->flags = flags;
  events.insert(*e);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* e) {
  return cudaEventCreateWithFlags(e, 0);
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  API_ENTER();
  std::lock_guard<std::recursive_mutex> guard(lock);
  if (!events.erase(e)) return finish(cudaErrorInvalidResourceHandle);
  order_drop(e->moment);
  delete e;
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned) {
  API_ENTER();
  std::lock_guard<std::recursive_mutex> guard(lock);
  if (!events.count(e) || !exists(s)) return finish(cudaErrorInvalidResourceHandle);
  e->capture = stream_is_capturing(s) ? s->capture : nullptr;
  order_drop(e->moment);
  e->moment = order_moment(timeline_of(s));
  e->time = now();
  e->recorded = true;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  return cudaEventRecordWithFlags(e, s, 0);
}
static cudaError_t check_event(cudaEvent_t e) {
  API_ENTER();
  std::lock_guard<std::recursive_mutex> guard(lock);
  if (!events.count(e)) return finish(cudaErrorInvalidResourceHandle);
  if (e->capture && captures.count(e->capture)) {
    e->capture->invalid = true;
    return finish(cudaErrorStreamCaptureUnsupported);
  }
  order_after(HOST_TIMELINE, e->moment);
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  return check_event(e);
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
  return check_event(e);
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t a, cudaEvent_t b) {
  API_ENTER();
  std::lock_guard<std::recursive_mutex> guard(lock);
  if (!events.count(a) || !events.count(b) || !a->recorded || !b->recorded ||
      (a->flags | b->flags) & cudaEventDisableTiming)
    return finish(cudaErrorInvalidResourceHandle);
  *ms = (float)((b->time - a->time) * 1e3);
  return cudaSuccess;
}

// ---------------------------------------------------------------- capture
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode) {
  API_ENTER();
  std::lock_guard<std::recursive_mutex> guard(lock);
  if (is_default(s)) return finish(cudaErrorStreamCaptureUnsupported);
  if (!streams.count(s)) return finish(cudaErrorInvalidResourceHandle);
  if (s->capture) return finish(cudaErrorIllegalState);
  s->capture = new Capture{new CUgraph_st, s, mode};
  captures.insert(s->capture);
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* graph) {
  API_ENTER();
  std::lock_guard<std::recursive_mutex> guard(lock);
  *graph = nullptr;
  if (is_default(s) || !streams.count(s) || !s->capture) return finish(cudaErrorIllegalState);
  Capture* c = s->capture;
  if (c->origin != s) return finish(cudaErrorStreamCaptureUnmatched);
  for (cudaStream_t other : streams)
    if (other->capture == c) other->capture = nullptr;
  captures.erase(c);
  cudaError_t result = c->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
  if (c->invalid)
    cudaGraphDestroy(c->graph);
  else
    *graph = c->graph;
  delete c;
  return finish(result);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus* status) {
  API_ENTER();
  *status = !stream_is_capturing(s) ? cudaStreamCaptureStatusNone
            : s->capture->invalid   ? cudaStreamCaptureStatusInvalidated
                                    : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges,
                                     size_t* count) {
  API_ENTER();
  cudaStreamIsCapturing(s, status);
  if (*status == cudaStreamCaptureStatusNone) return cudaSuccess;
  if (id) *id = (u64)s->capture;
  if (graph) *graph = s->capture->graph;
  if (nodes) *nodes = nullptr;
  if (edges) *edges = nullptr;
  if (count) *count = 0;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, thread_mode);
  return cudaSuccess;
}

// ---------------------------------------------------------------- graphs
cudaError_t cudaGraphCreate(cudaGraph_t* g, unsigned) {
  *g = new CUgraph_st;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t g) {
  if (!g) return finish(cudaErrorInvalidValue);
  for (Node* n : g->nodes) delete n;
  delete g;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t g, unsigned long long) {
  API_ENTER();
  if (!exec || !g) return finish(cudaErrorInvalidValue);
  *exec = new CUgraphExec_st;
  for (Node* n : g->nodes) (*exec)->work.push_back(n->work);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t g,
                                          unsigned long long flags) {
  return cudaGraphInstantiate(exec, g, flags);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e) {
  delete e;
  return cudaSuccess;
}
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t g,
                                cudaGraphExecUpdateResultInfo* info) {
  API_ENTER();
  if (info) {
    memset(info, 0, sizeof *info);
    info->result = cudaGraphExecUpdateSuccess;
  }
  if (g->nodes.size() != exec->work.size()) {
    if (info) info->result = cudaGraphExecUpdateErrorTopologyChanged;
    return finish(cudaErrorGraphExecUpdateFailure);
  }
  for (size_t i = 0; i < g->nodes.size(); i++) exec->work[i] = g->nodes[i]->work;
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
  API_ENTER();
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s) {
  API_ENTER();
  if (!exec) return finish(cudaErrorInvalidValue);
  auto work = exec->work;
  return finish(submit(s, NodeKind::OTHER, [work] {
    for (auto& w : work)
      if (cudaError_t e = w()) return e;
    return cudaSuccess;
  }));
}
cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t* nodes, size_t* count) {
  if (nodes)
    for (size_t i = 0; i < min_<size_t>(*count, g->nodes.size()); i++)
      nodes[i] = (cudaGraphNode_t)g->nodes[i];
  *count = g->nodes.size();
  return cudaSuccess;
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t n, cudaGraphNodeType* type) {
  switch (((Node*)n)->kind) {
    case NodeKind::KERNEL:
      *type = cudaGraphNodeTypeKernel;
      break;
    case NodeKind::COPY:
      *type = cudaGraphNodeTypeMemcpy;
      break;
    case NodeKind::SET:
      *type = cudaGraphNodeTypeMemset;
      break;
    case NodeKind::HOST:
      *type = cudaGraphNodeTypeHost;
      break;
    default:
      *type = cudaGraphNodeTypeEmpty;
  }
  return cudaSuccess;
}
}
