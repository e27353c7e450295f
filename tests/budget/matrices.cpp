// SPDX-License-Identifier: Apache-2.0
//
// Parameters, FLOPs and cache of a type against a walk through the model it describes: a list of
// the layers in the order in which they run, each with its matrices one by one. Every matrix is
// looked at on every execution; weights count the first time their layer is met.
//
// The list of layers is written by hand beside each type, so that stacks are checked as well.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <smelt/arch/scales.hpp>
#include <smelt/budget/flops.hpp>
#include <smelt/budget/kv_cache.hpp>
#include <smelt/budget/parameters.hpp>
#include <vector>

namespace {

using namespace smelt;

struct matrix {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

struct feed_forward {
  std::int64_t experts = 0;  // 0: dense
  std::int64_t chosen = 0;
  std::int64_t width = 0;
  std::int64_t shared_width = 0;
};

// A body by hand: nothing in here is read from its type.
struct model {
  std::int64_t hidden = 0;
  std::int64_t query_heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_size = 0;
  std::vector<std::int64_t> order;           // physical layers as they run
  std::vector<feed_forward> feed_forwards;   // one per physical layer
  std::vector<std::int64_t> gains_per_norm;  // widths of query and key norms, if any
  bool one_cache = false;                    // of the first visit, for all
};

struct counts {
  std::int64_t parameters = 0;
  std::int64_t active = 0;
  std::int64_t kv_elements = 0;
  std::int64_t multiply_adds = 0;  // one forward pass over the documents
};

std::int64_t elements(const matrix& m) {
  return m.rows * m.columns;
}

// Gate, up and down of one SwiGLU.
std::vector<matrix> swiglu(std::int64_t hidden, std::int64_t width) {
  return {{width, hidden}, {width, hidden}, {hidden, width}};
}

// One forward pass over documents that stand behind one another, each causal on its own.
counts walk(const model& m, const std::vector<std::int64_t>& documents) {
  counts found;
  std::set<std::int64_t> met;
  std::int64_t tokens = 0;
  for (const std::int64_t length : documents) tokens += length;

  for (const std::int64_t layer : m.order) {
    const bool first_visit = met.insert(layer).second;
    const feed_forward& ffn = m.feed_forwards[static_cast<std::size_t>(layer)];

    std::vector<matrix> always;   // met by every token
    std::vector<matrix> resting;  // held, not met
    for (std::int64_t head = 0; head < m.query_heads; ++head) {
      always.push_back({m.head_size, m.hidden});  // query
      always.push_back({m.hidden, m.head_size});  // output
    }
    std::vector<matrix> keys_and_values;
    for (std::int64_t head = 0; head < m.kv_heads; ++head) {
      keys_and_values.push_back({m.head_size, m.hidden});
      keys_and_values.push_back({m.head_size, m.hidden});
    }
    if (ffn.experts == 0) {
      for (const matrix& part : swiglu(m.hidden, ffn.width)) always.push_back(part);
    } else {
      always.push_back({ffn.experts, m.hidden});  // router
      for (std::int64_t expert = 0; expert < ffn.experts; ++expert) {
        for (const matrix& part : swiglu(m.hidden, ffn.width)) {
          (expert < ffn.chosen ? always : resting).push_back(part);
        }
      }
      if (ffn.shared_width > 0) {
        for (const matrix& part : swiglu(m.hidden, ffn.shared_width)) always.push_back(part);
      }
    }

    for (const matrix& part : always) {
      found.multiply_adds += tokens * elements(part);
      if (first_visit) found.active += elements(part);
    }
    // A shared cache is filled by the first visit; the later ones only read it.
    const bool projects = first_visit || !m.one_cache;
    for (const matrix& part : keys_and_values) {
      if (projects) found.multiply_adds += tokens * elements(part);
      if (projects) found.kv_elements += part.rows;
      if (first_visit) found.active += elements(part);
    }
    if (first_visit) {
      for (const matrix& part : resting) found.parameters += elements(part);
      found.active += m.hidden + m.hidden;
      for (const std::int64_t width : m.gains_per_norm) found.active += width;
    }

    // Every query head meets every attended position, however few key-value heads there are.
    for (const std::int64_t length : documents) {
      for (std::int64_t query = 0; query < length; ++query) {
        for (std::int64_t key = 0; key <= query; ++key) {
          found.multiply_adds += m.query_heads * (m.head_size + m.head_size);  // QK, AV
        }
      }
    }
  }
  found.parameters += found.active;
  return found;
}

// `documents` are the lengths that Mask describes.
template <class A, class Mask>
void check(const model& m, const std::vector<std::int64_t>& documents) {
  const counts found = walk(m, documents);
  CHECK(parameters<A> == found.parameters);
  CHECK(active_parameters<A> == found.active);
  CHECK(kv_elements_per_token<A> == found.kv_elements);
  CHECK(flops_per_sequence<A, Mask, convention::forward> == 2 * found.multiply_adds);
  CHECK(flops_per_sequence<A, Mask> == 6 * found.multiply_adds);
}

}  // namespace

TEST_CASE("budgets equal a walk: the paper's 200M pair") {
  const std::vector<std::int64_t> order{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  const std::vector<std::int64_t> looped_order{0, 1, 2, 3, 4, 5, 6, 7,  8,
                                               3, 4, 5, 6, 7, 8, 9, 10, 11};
  check<paper::baseline_200m_s95, causal<33>>(
      {1280, 10, 2, 128, order, std::vector<feed_forward>(12, {192, 8, 432, 0}), {}, false}, {33});
  check<paper::smelt_200m_s95, packed<7, 20, 6>>(
      {1056, 12, 2, 88, looped_order, std::vector<feed_forward>(12, {288, 8, 352, 0}), {}, false},
      {7, 20, 6});
}

TEST_CASE("budgets equal a walk: grouped queries wider than hidden, gains per head") {
  check<transformer<hidden<24>, gqa<6, 2, 8>, moe<5, 2, 12>, stack<plain<3>>, qk_norm::per_head>,
        causal<9>>(
      {24, 6, 2, 8, {0, 1, 2}, std::vector<feed_forward>(3, {5, 2, 12, 0}), {8, 8}, false}, {9});
}

TEST_CASE("budgets equal a walk: dense, MoE and shared experts in one stack, full-width gains") {
  using A = transformer<hidden<16>, gqa<4, 2, 6>, moe<7, 3, 10, shared<14>>,
                        stack<plain<1, dense<40>>, looped<2, 3>, plain<1, moe<3, 1, 22>>>,
                        qk_norm::full_width>;
  const feed_forward with_shared{7, 3, 10, 14};
  check<A, packed<4, 5>>({16,
                          4,
                          2,
                          6,
                          {0, 1, 2, 1, 2, 1, 2, 3},
                          {{0, 0, 40, 0}, with_shared, with_shared, {3, 1, 22, 0}},
                          {24, 12},
                          false},
                         {4, 5});
}

TEST_CASE("budgets equal a walk: every layer looped on its own, one cache for all visits") {
  using A = transformer<hidden<8>, mha<2, 4>, dense<20>, stack<repeated<3, looped<1, 2>>>,
                        kv_cache::shared>;
  check<A, causal<6>>(
      {8, 2, 2, 4, {0, 0, 1, 1, 2, 2}, std::vector<feed_forward>(3, {0, 0, 20, 0}), {}, true}, {6});
}

TEST_CASE("budgets equal a walk: nested copies of looped and plain spans") {
  using A = transformer<hidden<8>, mha<1, 4>, moe<4, 4, 6>,
                        stack<repeated<2, plain<1>, looped<2, 2>>, looped<1, 3, dense<10>>>>;
  std::vector<feed_forward> ffns(6, {4, 4, 6, 0});
  ffns.push_back({0, 0, 10, 0});
  check<A, causal<5>>({8, 1, 1, 4, {0, 1, 2, 1, 2, 3, 4, 5, 4, 5, 6, 6, 6}, ffns, {}, false}, {5});
}
