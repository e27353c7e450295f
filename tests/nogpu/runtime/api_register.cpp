// SPDX-License-Identifier: Apache-2.0
//
// What nvcc's generated start-up code calls: fat binaries, kernels, variables.
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <string.h>
#include <sys/wait.h>
#include <thread>
#include "api.h"
#include "compiler.h"
#include "device_model.h"

struct FatWrapper {
  int magic, version;
  const char* data;
  void* extra;
};
struct FatHeader {
  u32 magic;
  u16 version, header_size;
  u64 size;
};
struct FatEntry {
  u16 kind, version;
  u32 header_size;
  u64 size;
};  // the rest varies with the toolkit
static const u16 PTX_ENTRY = 1;

struct HostFunction {
  Module* module;
  std::string name;
  Kernel* kernel;
};
struct HostVariable {
  Module* module;
  std::string name;
  size_t bytes;
};
static std::recursive_mutex lock;
static std::map<const void*, HostFunction>& functions() {
  static auto* m = new std::map<const void*, HostFunction>;
  return *m;
}
static std::map<const void*, HostVariable>& variables() {
  static auto* m = new std::map<const void*, HostVariable>;
  return *m;
}

static int ptx_target(const char* text, size_t bytes) {
  const char* t = (const char*)memmem(text, bytes, ".target sm_", 11);
  return t ? atoi(t + 11) : 0;
}

// The PTX to use: the newest not above the device's capability; by default the device is 8.0, or
// what the program was compiled for if that is newer.
static void choose_ptx(Module& m, const char* data) {
  const FatHeader* h = (const FatHeader*)data;
  const char *p = data + h->header_size, *end = p + h->size;
  bool compressed = false, any = false;
  std::string_view best;
  int best_target = 0, wanted = settings().capability ? settings().capability : 80;
  while (p < end) {
    const FatEntry* e = (const FatEntry*)p;
    any = true;
    if (e->kind == PTX_ENTRY) {
      const char* text = p + e->header_size;
      size_t bytes = strnlen(text, e->size);
      if (!memmem(text, bytes, ".version", 8))
        compressed = true;
      else {
        int target = ptx_target(text, bytes);
        bool better =
            !best_target || (target <= wanted ? best_target > wanted || target > best_target
                                              : best_target > wanted && target < best_target);
        if (better) {
          best = {text, bytes};
          best_target = target;
        }
      }
    }
    p += e->header_size + e->size;
  }
  m.text = best;
  m.target = best_target;
  if (best_target)
    note_program_target(best_target);
  else if (compressed)
    m.problem = "its PTX is compressed: compile with nvcc -no-compress";
  else if (any)
    m.problem = "the program holds no PTX: compile with -gencode arch=compute_80,code=compute_80";
}

static void compile_everything(Module& m) {
  std::vector<std::string> names = m.kernel_names();
  std::atomic<size_t> next{0};
  std::vector<std::thread> pool;
  for (int i = 0; i < settings().threads; i++)
    pool.emplace_back([&] {
      for (size_t k; (k = next++) < names.size();) {
        Kernel* kernel = m.kernel(names[k]);
        Compiled c = compile_unit(names[k], kernel->unit);
        const char* problem =
            c.handle ? (const char*)dlsym(c.handle, "nogpu_problem") : c.error.c_str();
        if (problem) log_line("warning: kernel %s would not run: %s", names[k].c_str(), problem);
      }
    });
  for (auto& t : pool) t.join();
}

Kernel* find_kernel(const void* f, cudaError_t* error) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  auto it = functions().find(f);
  if (it == functions().end()) {
    *error = cudaErrorInvalidDeviceFunction;
    return nullptr;
  }
  HostFunction& h = it->second;
  if (!h.kernel) h.kernel = h.module->kernel(h.name);
  if (h.kernel) return h.kernel;
  log_line(
      "error: no PTX for kernel %s: %s", h.name.c_str(),
      h.module->problem.empty() ? "it is not in the program's PTX" : h.module->problem.c_str());
  note_problem("a kernel has no PTX");
  *error = cudaErrorNoKernelImageForDevice;
  return nullptr;
}

cudaError_t find_symbol(const void* variable, void** address, size_t* bytes) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  auto it = variables().find(variable);
  if (it == variables().end()) return cudaErrorInvalidSymbol;
  *address = (void*)it->second.module->symbol_address(it->second.name);
  *bytes = it->second.bytes;
  return *address ? cudaSuccess : cudaErrorInvalidSymbol;
}

extern "C" {
void** __cudaRegisterFatBinary(void* wrapper) {
  Module* m = new Module;  // lives as long as the process: kernels may run in static destructors
  const FatWrapper* w = (const FatWrapper*)wrapper;
  if (w->magic == 0x466243b1 && w->data) choose_ptx(*m, w->data);
  if (settings().eager && !m->text.empty()) compile_everything(*m);
  return (void**)m;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) {
  return 1;
}
void __cudaRegisterFunction(void** module, const char* host, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  functions()[host] = {(Module*)module, name, nullptr};
}
void __cudaRegisterVar(void** module, char* host, char*, const char* name, int, size_t bytes, int,
                       int) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  variables()[host] = {(Module*)module, name, bytes};
}
void __cudaRegisterManagedVar(void** module, void** host, char*, const char* name, int,
                              size_t bytes, int, int) {
  std::lock_guard<std::recursive_mutex> guard(lock);
  variables()[host] = {(Module*)module, name, bytes};
  *host = (void*)((Module*)module)
              ->symbol_address(name);  // the host reads the variable through this pointer
  variables()[*host] = variables()[host];
}
void __cudaRegisterHostVar(void**, const char*, char*, size_t) {}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* f) {
  *kernel = (cudaKernel_t)f;
  return cudaSuccess;
}
cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* symbol) {
  *function = (cudaFunction_t)symbol;
  return cudaSuccess;
}
cudaError_t cudaGetKernel(cudaKernel_t* kernel, const void* f) {
  *kernel = (cudaKernel_t)f;
  return cudaSuccess;
}
cudaError_t cudaFuncGetName(const char** name, const void* f) {
  cudaError_t e = cudaSuccess;
  Kernel* k = find_kernel(f, &e);
  if (k) *name = k->name.c_str();
  return finish(e);
}
}
