// SPDX-License-Identifier: Apache-2.0
//
// The search finds what a plain walk of the whole grid finds: for the paper's Baselines, for
// published and for made-up ones, grid by grid and through the order in which preferences give way.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include "match/whole_grid.hpp"
#include "smelt/arch/scales.hpp"
#include "smelt/match/search.hpp"

namespace {

using namespace smelt;
using namespace smelt::paper;
using smelt::detail::candidate;
using smelt::detail::preferences;
using smelt::detail::search_space;

std::string text(std::int64_t number) {
  return std::to_string(number);
}

std::string words(std::int64_t hidden, std::int64_t q, std::int64_t kv, std::int64_t d,
                  std::int64_t width, std::int64_t experts) {
  return "hidden " + text(hidden) + " heads " + text(q) + "/" + text(kv) + "/" + text(d) +
         " width " + text(width) + " experts " + text(experts);
}

std::string searched(const candidate& twin) {
  return twin.inside() ? words(twin.hidden, twin.query_heads, twin.kv_heads, twin.head_dim,
                               twin.width, twin.experts)
                       : "none";
}

std::string walked(const search_space& space, const preferences& wish) {
  whole_grid::best_of_grid grid{space, wish};
  grid.run();
  if (!grid.any) return "none";
  const whole_grid::point& at = grid.best;
  return words(at.hidden, at.query_heads, at.kv_heads, at.head_dim, at.width, at.experts);
}

// The order of search.hpp, written out as a list.
std::string walked(const search_space& space) {
  std::int64_t width = space.width_multiple;
  while (true) {
    for (const std::int64_t band :
         {std::int64_t{0}, space.query_band_permille / 4, space.query_band_permille}) {
      for (std::int64_t head = space.head_size_multiple; head >= space.head_size_multiple_at_least;
           head /= 2) {
        for (std::int64_t experts = space.experts_multiple;
             experts >= space.experts_multiple_at_least; experts /= 2) {
          const std::string found = walked(space, {width, head, experts, band});
          if (found != "none") return found;
          if (space.ffn.experts == 0) break;
        }
      }
    }
    if (width == space.width_multiple_at_least || width * 64 <= space.ffn.width) return "none";
    width /= 2;
  }
}

template <class Baseline, class Recipe = recipe::smelt, class Tolerance = tolerance<>,
          class Mask = attended<391>>
void compare() {
  const search_space space = detail::space_of<Baseline, Recipe, Tolerance, Mask>();
  CHECK(searched(detail::search(space)) == walked(space));
}

template <class... Cells>
void compare_cells(cell_list<Cells...>) {
  (compare<typename Cells::baseline>(), ...);
}

TEST_CASE("the paper's twelve sparse Baselines and four controls") {
  compare_cells(sparse_cells{});
  compare<baseline_100m_s0>();
  compare<baseline_200m_s0>();
  compare<baseline_600m_s0>();
  compare<baseline_1600m_s0>();
}

using qwen3_30b = transformer<hidden<2048>, gqa<32, 4, 128>, moe<128, 8, 768>, stack<plain<48>>,
                              qk_norm::per_head>;
using olmoe = transformer<hidden<2048>, gqa<16, 16, 128>, moe<64, 8, 1024>, stack<plain<16>>,
                          qk_norm::full_width>;

TEST_CASE("published models: a query width of its own, multi-head attention") {
  compare<qwen3_30b>();
  compare<olmoe>();
}

TEST_CASE("options, shared experts, dense feed-forwards, other recipes and masks") {
  compare<transformer<hidden<512>, gqa<8, 4, 64>, moe<32, 4, 256, shared<512>>, stack<plain<8>>>>();
  compare<transformer<hidden<512>, gqa<8, 4, 64>, moe<32, 4, 256, shared<200>>, stack<plain<8>>>>();
  compare<transformer<hidden<512>, gqa<8, 2, 64>, moe<64, 4, 256>, stack<plain<8>>,
                      kv_cache::shared>>();
  compare<transformer<hidden<512>, gqa<8, 2, 64>, dense<1536>, stack<plain<8>>>>();
  compare<transformer<hidden<512>, gqa<8, 2, 64>, dense<1536>, stack<plain<8>>>,
          recipe::looped_middle<recipe::visits<1>, recipe::depth<10>>>();
  compare<transformer<hidden<512>, gqa<8, 4, 64>, moe<64, 6, 256>, stack<plain<12>>>,
          recipe::looped_middle<recipe::visits<3>, recipe::span_percent<33>>>();
  compare<transformer<hidden<512>, gqa<8, 4, 64>, moe<64, 6, 256>, stack<plain<12>>>, recipe::smelt,
          tolerance<20, 5, 60>, causal<2048>>();
}

// Numbers of a linear congruential generator, so that every run asks the same.
struct dice {
  std::uint64_t state;
  std::int64_t below(std::int64_t sides) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::int64_t>((state >> 33) % static_cast<std::uint64_t>(sides));
  }
};

search_space made_up(dice& roll) {
  search_space space =
      detail::space_of<baseline_100m_s85, recipe::smelt, tolerance<>, attended<391>>();
  space.hidden = 8 * (4 + roll.below(40));
  space.attention.head_dim = 8 * (1 + roll.below(8));
  space.attention.kv_heads = 1 + roll.below(4);
  space.attention.query_heads = space.attention.kv_heads * (1 + roll.below(4));
  space.attention.rope_base = roll.below(3) == 0 ? 0 : 10'000;
  space.attention.norm = static_cast<qk_norm_kind>(roll.below(3));
  space.ffn.top_k = 1 + roll.below(8);
  space.ffn.experts = space.ffn.top_k + roll.below(120);
  space.ffn.width = 8 * (2 + roll.below(30));
  space.ffn.shared_width = roll.below(3) == 0 ? 8 * (1 + roll.below(30)) : 0;
  if (roll.below(6) == 0) space.ffn = {0, 0, 8 * (4 + roll.below(60)), 0};
  space.layers = 4 + roll.below(8);
  space.tokens = roll.below(2) == 0 ? 1 : 64;
  space.pairs = space.tokens * (1 + roll.below(400));
  space.width_multiple = std::int64_t{1} << roll.below(4);
  space.width_multiple_at_least = 1;
  space.head_size_multiple = std::int64_t{1} << roll.below(3);
  space.head_size_multiple_at_least = 1;
  space.experts_multiple = std::int64_t{1} << roll.below(4);
  space.experts_multiple_at_least = 1;
  space.flops_permille = 10 + roll.below(60);
  space.parameters_permille = 5 + roll.below(30);
  space.kv_permille = 10 + roll.below(80);
  space.query_band_permille = 80 * roll.below(4);

  // The Baseline's own budgets, by the same formulas, every layer executed once.
  space.executed_layers = space.layers;
  space.cached_layers = space.layers;
  const whole_grid::point self{space.hidden,
                               space.attention.query_heads,
                               space.attention.kv_heads,
                               space.attention.head_dim,
                               space.ffn.width,
                               space.ffn.experts};
  const whole_grid::cost cost = whole_grid::cost_of(space, self);
  space.target = {cost.flops, cost.parameters, cost.kv_elements};
  space.executed_layers += roll.below(space.layers);
  space.attention.kv_shared_by_visits = roll.below(4) == 0;
  if (!space.attention.kv_shared_by_visits) space.cached_layers = space.executed_layers;
  return space;
}

TEST_CASE("made-up Baselines, one grid each and through all preferences") {
  dice roll{2026};
  std::int64_t matches = 0;
  for (int number = 0; number < 1000; ++number) {
    CAPTURE(number);
    const search_space space = made_up(roll);
    const preferences wish{space.width_multiple, space.head_size_multiple, space.experts_multiple,
                           space.query_band_permille};
    const std::string here = searched(detail::grid_walk(space, wish).best(1'000'000));
    CHECK(here == walked(space, wish));
    matches += here != "none";
    if (number % 8 == 0) CHECK(searched(detail::search(space)) == walked(space));
  }
  // Neither "always none" nor "always something" would test much.
  CHECK(matches > 300);
  CHECK(matches < 950);
}

}  // namespace
