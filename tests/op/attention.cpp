// SPDX-License-Identifier: Apache-2.0
//
// The suite of attention on the host, its gradients against central differences, and what only the
// host can be asked: its own tiles, threads, and totals of segments that nobody told it.
#include "attention.hpp"

#include <numeric>

using namespace smelt;
using namespace smelt::test;

TEST_CASE_TEMPLATE_INVOKE(attention_values, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(attention_far_scores, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(attention_gradients, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(attention_head_sizes, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(attention_groups, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(attention_one_token, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(attention_packed_documents, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(attention_nan, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(attention_views, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(attention_modes, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(attention_scratch, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(attention_empty_segments, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(attention_flops, host<double>, host<>);
TEST_CASE_TEMPLATE_INVOKE(attention_empty, host<double>, host<>, host<bf16>);
TEST_CASE_TEMPLATE_INVOKE(attention_misfits, host<double>, host<>);

namespace {
using tuning = attention_tuning;
// Lengths below, at and above every tile size of the host, empty and one-token documents.
const std::vector<std::vector<std::int64_t>> host_batches = {{1},
                                                             {7},
                                                             {129},
                                                             {tuning::query_tile},
                                                             {tuning::query_tile + 1},
                                                             {tuning::square_tile},
                                                             {300},
                                                             {tuning::key_tile + 1},
                                                             {2 * tuning::key_tile + 77},
                                                             {1, 1, 1, 0, 2, 129, 7, 0, 64, 1},
                                                             {300, 5, tuning::square_tile + 1}};

void check_gradients(const attention_shape& shape, const std::vector<std::int64_t>& lengths) {
  attention_case<host<double>> c(shape.query_heads, shape.kv_heads, shape.head_dim, lengths);
  c.both();
  auto q = c.q_values, k = c.k_values, v = c.v_values;
  const auto loss = [&] {
    c.q.set(q);
    c.k.set(k);
    c.v.set(v);
    c.forward();
    return dot(c.dout_values, c.out.values());
  };
  CHECK(relative_error(c.dq.values(), central_differences(q, loss)) < 1e-6);
  CHECK(relative_error(c.dk.values(), central_differences(k, loss)) < 1e-6);
  CHECK(relative_error(c.dv.values(), central_differences(v, loss)) < 1e-6);
}
}  // namespace

TEST_CASE("attention: values are those of the definition, around the tiles of the host") {
  for (const auto& lengths : host_batches) {
    check_values<host<double>>({2, 1, 4}, lengths, 1e-12);
    check_values<host<>>({2, 1, 44}, lengths, 1e-5);
    check_values<host<bf16>>({2, 1, 44}, lengths, 1e-2);
  }
  for (const std::int64_t head_dim : {4, 64, 72, 88, 112, 128})
    check_values<host<>>({12, 2, head_dim}, {7, 129, 1, 64}, 1e-5);
  check_values<host<double>>({2, 1, 8}, {600, 65}, 1e-12, 30.0);
  check_values<host<>>({2, 1, 8}, {600, 65}, 1e-4, 30.0);
}

TEST_CASE("attention: gradients by central differences") {
  check_gradients({1, 1, 1}, {1});
  check_gradients({4, 2, 3}, {1, 5, 3, 0, 2});
  check_gradients({6, 2, 8}, {7, 11});
  check_gradients({7, 1, 4}, {17});
  // Strips that are not whole, and a second step of the backward pass.
  check_gradients({2, 1, 2}, {149, 3});
  check_gradients({1, 1, 1}, {tuning::square_tile + 5});
}

TEST_CASE("attention: the float path follows the double path, around the tiles of the host") {
  const std::vector<attention_shape> shapes = {{1, 1, 64}, {4, 2, 44},  {12, 2, 88},
                                               {7, 1, 72}, {2, 2, 112}, {2, 1, 128}};
  for (const attention_shape& shape : shapes)
    for (const auto& lengths : host_batches) {
      const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
      // Keeps the plain loops of the double path below a second.
      if (shape.query_width() * tokens > 64 * 1200) continue;
      check_against_double<host<>>(shape, lengths);
    }
}

TEST_CASE_TEMPLATE("attention: packed documents longer than a tile of the host", Policy,
                   host<double>, host<>) {
  attention_case<Policy> packed(4, 2, 12, {129, 555, 3});
  attention_case<Policy> alone(4, 2, 12, {555});
  const auto part = [&](const auto& all, std::int64_t width) {
    return std::vector(all.begin() + 129 * width, all.begin() + 684 * width);
  };
  alone.q.set(part(packed.q_values, alone.q_width));
  alone.k.set(part(packed.k_values, alone.kv_width));
  alone.v.set(part(packed.v_values, alone.kv_width));
  alone.dout.set(part(packed.dout_values, alone.q_width));
  packed.both();
  alone.both();
  CHECK(alone.out.values() == part(packed.out.values(), alone.q_width));
  CHECK(alone.dq.values() == part(packed.dq.values(), alone.q_width));
  CHECK(alone.dk.values() == part(packed.dk.values(), alone.kv_width));
  CHECK(alone.dv.values() == part(packed.dv.values(), alone.kv_width));
}

TEST_CASE_TEMPLATE("attention: 1, 2 and 3 threads give the same bits", Policy, host<double>,
                   host<>) {
  const std::vector<std::int64_t> lengths{555, 1, 50, 7, 129, 2, 2, 64};
  attention_case<Policy> one(6, 2, 20, lengths);
  one.forward(Policy(1));
  one.backward(into::overwrite, Policy(1));
  for (const int threads : {2, 3}) {
    attention_case<Policy> more(6, 2, 20, lengths);
    more.forward(Policy(threads));
    more.backward(into::overwrite, Policy(threads));
    CHECK(results_of(one) == results_of(more));
  }
}

TEST_CASE("attention: a walk over all slots meets every tile once, in order") {
  // Empty segments at the start, inside and at the end; tiles of 4 and of 64.
  for (const std::int64_t tile : {1, 4, 64}) {
    const std::vector<std::int64_t> offsets = offsets_of({0, 9, 0, 1, 1, 130, 0, 64, 3, 0, 0});
    const segments documents{offsets.data(), std::ssize(offsets) - 1};
    std::vector<std::int64_t> found, expected;
    for (std::int64_t slot = 0; slot < attention_slots(documents, tile); ++slot) {
      attention_tile_walk walk(documents, slot, tile);
      for (attention_tile at; walk.next(at);) {
        CHECK(at.begin / tile == slot);
        found.insert(found.end(), {at.segment_begin, at.segment_end, at.begin, at.end});
      }
      attention_tile at;
      CHECK_FALSE(walk.next(at));
    }
    for (std::int64_t s = 0; s < documents.count; ++s)
      for (std::int64_t begin = offsets[std::size_t(s)]; begin < offsets[std::size_t(s) + 1];
           begin += tile)
        expected.insert(expected.end(),
                        {offsets[std::size_t(s)], offsets[std::size_t(s) + 1], begin,
                         std::min(begin + tile, offsets[std::size_t(s) + 1])});
    CHECK(found == expected);
  }
}
