// SPDX-License-Identifier: Apache-2.0
//
// The trainers on CUDA: the same models, another policy; several ranks by NCCL, a device each,
// which meet through the engine that started them.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device_trainers.hpp"
#include "smelt/cuda.hpp"
#if defined(SMELT_TOOL_NCCL)
#include "smelt/nccl.hpp"
#endif
#if defined(SMELT_MODELS)
#include SMELT_MODELS
#else
#include "models.hpp"
#endif

namespace smelt_tool {
namespace {

#if defined(SMELT_TOOL_NCCL)
using device_ranks = smelt::nccl;
#else
using device_ranks = smelt::alone;
#endif

// NCCL chooses the device by the rank's place on its machine; a policy comes after it.
std::unique_ptr<device_ranks> meet(ranks& all) {
#if defined(SMELT_TOOL_NCCL)
  return std::make_unique<device_ranks>(all);
#else
  if (all.size() > 1)
    throw smelt::agreed_error(
        "--device cuda: expected a program with NCCL for " + std::to_string(all.size()) +
        " ranks, found one without; install NCCL (Debian: libnccl-dev) and build again");
  return std::make_unique<device_ranks>();
#endif
}

template <class Compute>
class trainers_of final : public device_trainers {
 public:
  trainers_of(ranks& all, const request& wanted) : wanted_(wanted), engine_(meet(all)) {}

  std::unique_ptr<smelt::run_model> make(const smelt::training_options& options) override {
    std::unique_ptr<smelt::run_model> model;
    smelt_models::all::with(wanted_.setting.model, [&]<class Model>() {
      using trainer = smelt::trainer<Model, smelt::cuda<Compute>, device_ranks>;
      model = std::make_unique<smelt::run_model_of<trainer>>(run_, options, wanted_.setting.seed,
                                                             *engine_, wanted_.parallel);
    });
    return model;
  }

  std::string description() const override {
    cudaDeviceProp device{};
    smelt::cuda_detail::check(cudaGetDeviceProperties(&device, run_.context().device()),
                              "cudaGetDeviceProperties");
    return std::string(device.name) + ", " + wanted_.compute + " products by cuBLAS";
  }

  // The best of half a second of products of 4096 x 4096 x 4096, four at a time.
  double product_rate() const override {
    using clock = std::chrono::steady_clock;
    constexpr std::int64_t size = 4096;
    constexpr int together = 4;
    const auto matrix = [&](auto element) {
      using T = decltype(element);
      auto memory = smelt::allocate(run_, size * size * static_cast<std::int64_t>(sizeof(T)));
      memory.zero();
      return memory;
    };
    const auto a = matrix(Compute{}), b = matrix(Compute{}), c = matrix(float{});
    const auto view = [](const auto& memory, auto element) {
      using T = decltype(element);
      return smelt::matrix_view<T>(reinterpret_cast<T*>(memory.data()), size, size);
    };
    double best = 0.0;
    const clock::time_point all = clock::now();
    while (clock::now() - all < std::chrono::milliseconds(500)) {
      run_.synchronize();
      const clock::time_point start = clock::now();
      for (int i = 0; i < together; ++i)
        smelt::product(run_, smelt::matrix_view<const Compute>(view(a, Compute{})),
                       smelt::matrix_view<const Compute>(view(b, Compute{})), view(c, float{}));
      run_.synchronize();
      const double seconds = std::chrono::duration<double>(clock::now() - start).count();
      best = std::max(best, together * 2.0 * size * size * size / seconds);
    }
    return best;
  }

 private:
  const request& wanted_;
  std::unique_ptr<device_ranks> engine_;
  smelt::cuda<Compute> run_;
};

}  // namespace

std::unique_ptr<device_trainers> trainers_on_cuda(ranks& all, const request& wanted) {
  if (wanted.compute == "bf16") return std::make_unique<trainers_of<smelt::bf16>>(all, wanted);
  return std::make_unique<trainers_of<float>>(all, wanted);
}

}  // namespace smelt_tool
