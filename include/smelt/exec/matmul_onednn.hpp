// SPDX-License-Identifier: Apache-2.0
//
// Matrix products by oneDNN: float32 through its gemm entry point, bf16 through matmul primitives
// whose three sizes and strides are all given at run time. Included by matmul.hpp.
//
// A primitive costs 350 us to create. Shapes of whole tiles repeat and get one of their own, made
// on first sight and kept; the ragged rest shares eight (two transposes, overwrite or add). Each
// thread keeps its own, so that nothing is shared.
#pragma once

#include <oneapi/dnnl/dnnl.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>

#include "smelt/error.hpp"
#include "smelt/exec/bf16.hpp"
#include "smelt/exec/buffer.hpp"
#include "smelt/exec/parallel.hpp"

namespace smelt {
inline namespace host_backend {
namespace host_detail::matmul_library {

inline constexpr const char* name = "oneDNN";

inline bool has_bf16() {
  static const bool amx = dnnl::get_effective_cpu_isa() >= dnnl::cpu_isa::avx512_core_amx;
  return amx;
}

inline void multiply_float(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n,
                           std::int64_t k, const float* a, std::int64_t lda, const float* b,
                           std::int64_t ldb, float* c, std::int64_t ldc, bool add) {
  const one_thread_scope alone;
  const dnnl_status_t status = dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k,
                                          1.0F, a, lda, b, ldb, add ? 1.0F : 0.0F, c, ldc);
  if (status != dnnl_success)
    throw error("oneDNN sgemm failed with status " + std::to_string(status) + " for m, n, k = " +
                std::to_string(m) + ", " + std::to_string(n) + ", " + std::to_string(k));
}

// One bf16 x bf16 -> float32 product with everything but the transposes decided at the call.
class bf16_product {
 public:
  bf16_product(bool transpose_a, bool transpose_b, bool add) : ta_(transpose_a), tb_(transpose_b) {
    using dnnl::memory;
    constexpr auto any = DNNL_RUNTIME_DIM_VAL;
    const memory::desc a({any, any}, memory::data_type::bf16, strides(ta_, any));
    const memory::desc b({any, any}, memory::data_type::bf16, strides(tb_, any));
    const memory::desc c({any, any}, memory::data_type::f32, strides(false, any));
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (add) {
      dnnl::post_ops sum;
      sum.append_sum(1.0F);
      attributes.set_post_ops(sum);
    }
    description_ = dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, c), attributes, engine_);
    primitive_ = dnnl::matmul(description_);
  }

  void operator()(std::int64_t m, std::int64_t n, std::int64_t k, const bf16* a, std::int64_t lda,
                  const bf16* b, std::int64_t ldb, float* c, std::int64_t ldc) {
    using dnnl::memory;
    // oneDNN takes its inputs as non-const pointers and does not write to them.
    memory left({{m, k}, memory::data_type::bf16, strides(ta_, lda)}, engine_,
                const_cast<bf16*>(a));
    memory right({{k, n}, memory::data_type::bf16, strides(tb_, ldb)}, engine_,
                 const_cast<bf16*>(b));
    memory result({{m, n}, memory::data_type::f32, strides(false, ldc)}, engine_, c);
    memory scratchpad(description_.scratchpad_desc(), engine_);
    primitive_.execute(stream_, {{DNNL_ARG_SRC, left},
                                 {DNNL_ARG_WEIGHTS, right},
                                 {DNNL_ARG_DST, result},
                                 {DNNL_ARG_SCRATCHPAD, scratchpad}});
  }

 private:
  static dnnl::memory::dims strides(bool transpose, std::int64_t leading) {
    return transpose ? dnnl::memory::dims{1, leading} : dnnl::memory::dims{leading, 1};
  }
  bool ta_;
  bool tb_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::matmul::primitive_desc description_;
  dnnl::matmul primitive_;
};

// Shape and strides of one product.
struct bf16_shape {
  std::int64_t m, n, k, lda, ldb, ldc;
  bool ta, tb, add;
  bool operator==(const bf16_shape&) const = default;
};

// The same product with everything decided when it is made: oneDNN then picks its AMX kernels for
// exactly these sizes, 1.2 to 1.8 times as fast as the one above. Its memory objects are made once,
// so a call allocates nothing.
class bf16_fixed_product {
 public:
  explicit bf16_fixed_product(const bf16_shape& s) : shape(s) {
    using dnnl::memory;
    const memory::desc a({s.m, s.k}, memory::data_type::bf16, strides(s.ta, s.lda));
    const memory::desc b({s.k, s.n}, memory::data_type::bf16, strides(s.tb, s.ldb));
    const memory::desc c({s.m, s.n}, memory::data_type::f32, strides(false, s.ldc));
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (s.add) {
      dnnl::post_ops sum;
      sum.append_sum(1.0F);
      attributes.set_post_ops(sum);
    }
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, c), attributes, engine);
    primitive_ = dnnl::matmul(description);
    scratch_bytes_ = static_cast<std::int64_t>(description.scratchpad_desc().get_size());
    stream_ = dnnl::stream(engine);
    a_ = memory(a, engine, nullptr);
    b_ = memory(b, engine, nullptr);
    c_ = memory(c, engine, nullptr);
    scratch_ = memory(description.scratchpad_desc(), engine, nullptr);
  }

  void operator()(const bf16* a, const bf16* b, float* c) {
    struct scratch;
    a_.set_data_handle(const_cast<bf16*>(a));
    b_.set_data_handle(const_cast<bf16*>(b));
    c_.set_data_handle(c);
    scratch_.set_data_handle(thread_scratch<std::byte, scratch>(scratch_bytes_));
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, a_.get()},
                                         {DNNL_ARG_WEIGHTS, b_.get()},
                                         {DNNL_ARG_DST, c_.get()},
                                         {DNNL_ARG_SCRATCHPAD, scratch_.get()}};
    const dnnl_status_t status =
        dnnl_primitive_execute(primitive_.get(), stream_.get(), 4, arguments);
    if (status != dnnl_success)
      throw error("oneDNN bf16 matmul failed with status " + std::to_string(status));
  }

  bf16_shape shape;

 private:
  static dnnl::memory::dims strides(bool transpose, std::int64_t leading) {
    return transpose ? dnnl::memory::dims{1, leading} : dnnl::memory::dims{leading, 1};
  }
  dnnl::matmul primitive_;
  dnnl::stream stream_;
  dnnl::memory a_, b_, c_, scratch_;
  std::int64_t scratch_bytes_ = 0;
};

// Sizes that are whole tiles come from blocks and repeat: those get a product of their own, the
// least recently used making room. Which of the two kinds computes a shape depends on the shape
// alone, so that bits never depend on what ran before. Everything else, ragged, shares eight.
inline bf16_fixed_product& fixed_product(const bf16_shape& shape) {
  struct entry {
    std::unique_ptr<bf16_fixed_product> product;
    std::uint64_t used = 0;
  };
  constexpr std::size_t most = 256;
  thread_local std::array<entry, most> entries;
  thread_local std::uint64_t clock = 0;
  entry* oldest = &entries[0];
  for (entry& candidate : entries) {
    if (!candidate.product) {
      oldest = &candidate;
      break;
    }
    if (candidate.product->shape == shape) {
      candidate.used = ++clock;
      return *candidate.product;
    }
    if (candidate.used < oldest->used) oldest = &candidate;
  }
  oldest->product = std::make_unique<bf16_fixed_product>(shape);
  oldest->used = ++clock;
  return *oldest->product;
}

inline void multiply_bf16(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n,
                          std::int64_t k, const bf16* a, std::int64_t lda, const bf16* b,
                          std::int64_t ldb, float* c, std::int64_t ldc, bool add) {
  const one_thread_scope alone;
  if (m % 16 == 0 && n % 16 == 0 && k % 16 == 0) {
    fixed_product({m, n, k, lda, ldb, ldc, transpose_a, transpose_b, add})(a, b, c);
    return;
  }
  thread_local std::array<std::unique_ptr<bf16_product>, 8> products;
  auto& chosen = products[std::size_t{transpose_a} * 4 + std::size_t{transpose_b} * 2 + add];
  if (!chosen) chosen = std::make_unique<bf16_product>(transpose_a, transpose_b, add);
  (*chosen)(m, n, k, a, lda, b, ldb, c, ldc);
}

}  // namespace host_detail::matmul_library
}  // namespace host_backend
}  // namespace smelt
