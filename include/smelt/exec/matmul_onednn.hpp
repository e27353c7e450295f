// SPDX-License-Identifier: Apache-2.0
//
// Matrix products by oneDNN: float32 through its gemm entry point, bf16 through matmul primitives
// whose three sizes and strides are all given at run time. Included by matmul.hpp.
//
// A primitive costs 350 us to create. Shapes of whole tiles repeat and get one of their own, made
// on first sight and kept; the ragged rest shares eight (two transposes, overwrite or add). Each
// thread keeps its own, so that nothing is shared.
//
// The C interface throughout: nvcc does not survive the C++ one, and this header is part of
// programs that hold both backends.
#pragma once

#include <oneapi/dnnl/dnnl.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
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
  static const bool amx = dnnl_get_effective_cpu_isa() >= dnnl_cpu_isa_avx512_core_amx;
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

inline void check(dnnl_status_t status, const char* call) {
  if (status != dnnl_success)
    throw error("oneDNN " + std::string(call) + " failed with status " + std::to_string(status) +
                " in a bf16 product");
}

// An owned handle of oneDNN.
template <class Handle, dnnl_status_t (*Destroy)(Handle)>
struct destroy_handle {
  using pointer = Handle;
  void operator()(Handle handle) const { Destroy(handle); }
};
template <class Handle, dnnl_status_t (*Destroy)(Handle)>
using owned = std::unique_ptr<Handle, destroy_handle<Handle, Destroy>>;

using owned_engine = owned<dnnl_engine_t, dnnl_engine_destroy>;
using owned_stream = owned<dnnl_stream_t, dnnl_stream_destroy>;
using owned_memory = owned<dnnl_memory_t, dnnl_memory_destroy>;
using owned_primitive = owned<dnnl_primitive_t, dnnl_primitive_destroy>;
using owned_description = owned<dnnl_primitive_desc_t, dnnl_primitive_desc_destroy>;
using owned_attributes = owned<dnnl_primitive_attr_t, dnnl_primitive_attr_destroy>;
using owned_post_ops = owned<dnnl_post_ops_t, dnnl_post_ops_destroy>;

inline owned_engine make_engine() {
  dnnl_engine_t engine = nullptr;
  check(dnnl_engine_create(&engine, dnnl_cpu, 0), "engine_create");
  return owned_engine(engine);
}

inline owned_stream make_stream(dnnl_engine_t engine) {
  dnnl_stream_t stream = nullptr;
  check(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags), "stream_create");
  return owned_stream(stream);
}

inline owned_memory make_memory(const dnnl_memory_desc_t& description, dnnl_engine_t engine,
                                void* data) {
  dnnl_memory_t memory = nullptr;
  check(dnnl_memory_create(&memory, &description, engine, data), "memory_create");
  return owned_memory(memory);
}

// Row-major, or column-major where transposed.
inline dnnl_memory_desc_t matrix_description(std::int64_t rows, std::int64_t columns,
                                             dnnl_data_type_t type, bool transpose,
                                             std::int64_t leading) {
  const dnnl_dims_t sizes = {rows, columns};
  const dnnl_dims_t strides = {transpose ? 1 : leading, transpose ? leading : 1};
  dnnl_memory_desc_t description;
  check(dnnl_memory_desc_init_by_strides(&description, 2, sizes, type, strides),
        "memory_desc_init");
  return description;
}

// Shape and strides of one product; a size may be DNNL_RUNTIME_DIM_VAL.
struct bf16_shape {
  std::int64_t m, n, k, lda, ldb, ldc;
  bool ta, tb, add;
  bool operator==(const bf16_shape&) const = default;

  dnnl_memory_desc_t left() const { return matrix_description(m, k, dnnl_bf16, ta, lda); }
  dnnl_memory_desc_t right() const { return matrix_description(k, n, dnnl_bf16, tb, ldb); }
  dnnl_memory_desc_t result() const { return matrix_description(m, n, dnnl_f32, false, ldc); }
};

inline owned_description describe(const bf16_shape& shape, dnnl_engine_t engine) {
  dnnl_primitive_attr_t raw_attributes = nullptr;
  check(dnnl_primitive_attr_create(&raw_attributes), "primitive_attr_create");
  const owned_attributes attributes(raw_attributes);
  check(dnnl_primitive_attr_set_scratchpad_mode(attributes.get(), dnnl_scratchpad_mode_user),
        "set_scratchpad_mode");
  if (shape.add) {
    dnnl_post_ops_t raw_post_ops = nullptr;
    check(dnnl_post_ops_create(&raw_post_ops), "post_ops_create");
    const owned_post_ops post_ops(raw_post_ops);
    check(dnnl_post_ops_append_sum(post_ops.get(), 1.0F), "post_ops_append_sum");
    check(dnnl_primitive_attr_set_post_ops(attributes.get(), post_ops.get()), "set_post_ops");
  }
  const dnnl_memory_desc_t a = shape.left(), b = shape.right(), c = shape.result();
  dnnl_matmul_desc_t product;
  check(dnnl_matmul_desc_init(&product, &a, &b, nullptr, &c), "matmul_desc_init");
  dnnl_primitive_desc_t description = nullptr;
  check(dnnl_primitive_desc_create(&description, &product, attributes.get(), engine, nullptr),
        "primitive_desc_create");
  return owned_description(description);
}

inline owned_primitive make_primitive(dnnl_primitive_desc_t description) {
  dnnl_primitive_t primitive = nullptr;
  check(dnnl_primitive_create(&primitive, description), "primitive_create");
  return owned_primitive(primitive);
}

inline void execute(dnnl_primitive_t primitive, dnnl_stream_t stream, dnnl_memory_t a,
                    dnnl_memory_t b, dnnl_memory_t c, dnnl_memory_t scratchpad) {
  const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, a},
                                       {DNNL_ARG_WEIGHTS, b},
                                       {DNNL_ARG_DST, c},
                                       {DNNL_ARG_SCRATCHPAD, scratchpad}};
  check(dnnl_primitive_execute(primitive, stream, 4, arguments), "primitive_execute");
}

// One bf16 x bf16 -> float32 product with everything but the transposes decided at the call.
class bf16_product {
 public:
  bf16_product(bool transpose_a, bool transpose_b, bool add)
      : ta_(transpose_a),
        tb_(transpose_b),
        description_(
            describe({any, any, any, any, any, any, transpose_a, transpose_b, add}, engine_.get())),
        primitive_(make_primitive(description_.get())) {}

  void operator()(std::int64_t m, std::int64_t n, std::int64_t k, const bf16* a, std::int64_t lda,
                  const bf16* b, std::int64_t ldb, float* c, std::int64_t ldc) {
    const bf16_shape shape{m, n, k, lda, ldb, ldc, ta_, tb_, false};
    // oneDNN takes its inputs as non-const pointers and does not write to them.
    const auto left = make_memory(shape.left(), engine_.get(), const_cast<bf16*>(a));
    const auto right = make_memory(shape.right(), engine_.get(), const_cast<bf16*>(b));
    const auto result = make_memory(shape.result(), engine_.get(), c);
    const auto scratchpad =
        make_memory(*dnnl_primitive_desc_query_md(description_.get(), dnnl_query_scratchpad_md, 0),
                    engine_.get(), DNNL_MEMORY_ALLOCATE);
    execute(primitive_.get(), stream_.get(), left.get(), right.get(), result.get(),
            scratchpad.get());
  }

 private:
  static constexpr std::int64_t any = DNNL_RUNTIME_DIM_VAL;
  bool ta_;
  bool tb_;
  owned_engine engine_ = make_engine();
  owned_stream stream_ = make_stream(engine_.get());
  owned_description description_;
  owned_primitive primitive_;
};

// The same product with everything decided when it is made: oneDNN then picks its AMX kernels for
// exactly these sizes, 1.2 to 1.8 times as fast as the one above. Its memory objects are made once,
// so a call allocates nothing.
class bf16_fixed_product {
 public:
  explicit bf16_fixed_product(const bf16_shape& s) : shape(s) {
    const owned_description description = describe(s, engine_.get());
    primitive_ = make_primitive(description.get());
    const dnnl_memory_desc_t& scratch =
        *dnnl_primitive_desc_query_md(description.get(), dnnl_query_scratchpad_md, 0);
    scratch_bytes_ = static_cast<std::int64_t>(dnnl_memory_desc_get_size(&scratch));
    a_ = make_memory(s.left(), engine_.get(), DNNL_MEMORY_NONE);
    b_ = make_memory(s.right(), engine_.get(), DNNL_MEMORY_NONE);
    c_ = make_memory(s.result(), engine_.get(), DNNL_MEMORY_NONE);
    scratch_ = make_memory(scratch, engine_.get(), DNNL_MEMORY_NONE);
  }

  void operator()(const bf16* a, const bf16* b, float* c) {
    struct scratch;
    set(a_, const_cast<bf16*>(a));
    set(b_, const_cast<bf16*>(b));
    set(c_, c);
    set(scratch_, thread_scratch<std::byte, scratch>(scratch_bytes_));
    execute(primitive_.get(), stream_.get(), a_.get(), b_.get(), c_.get(), scratch_.get());
  }

  bf16_shape shape;

 private:
  static void set(const owned_memory& memory, void* data) {
    check(dnnl_memory_set_data_handle(memory.get(), data), "set_data_handle");
  }
  owned_engine engine_ = make_engine();
  owned_stream stream_ = make_stream(engine_.get());
  owned_primitive primitive_;
  owned_memory a_, b_, c_, scratch_;
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
