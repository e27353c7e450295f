// SPDX-License-Identifier: Apache-2.0
//
// Near-duplicates: shingles against a plain loop, and each of the three rules at its border.
#include "smelt_tokens/near_duplicates.hpp"

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

namespace {
using namespace smelt_tokens;

// Words first, first + 1, ... all different from those of other numbers.
std::string words(int first, int count) {
  std::string text;
  for (int i = first; i < first + count; ++i) text += "word" + std::to_string(i) + " ";
  return text;
}

// Whether `text` goes, with `held` held out and `others` in the training text beside it.
bool goes(const std::vector<std::string>& held, const std::string& text,
          const std::vector<std::string>& others = {}, double threshold = 0.5) {
  near_duplicates near(5, threshold, 10);
  for (const std::string& each : held) near.add_held_out(each);
  near.finish_held_out();
  near.count(text);
  for (const std::string& each : others) near.count(each);
  near.finish_counts();
  const bool first = near.is_one(text);
  for (const std::string& each : others) static_cast<void>(near.is_one(each));
  CHECK(near.is_one(text) == first);  // nothing is kept from one to the next
  return first;
}

TEST_CASE("shingles are those of a plain loop, whatever stands between the words") {
  std::vector<std::uint64_t> one;
  std::vector<std::uint64_t> two;
  shingles_of("The quick, brown fox; jumps over (the) lazy dog.", 3, one);
  CHECK(one.size() == 7);
  shingles_of("  the QUICK\nbrown\tfox jumps - over the \"lazy\" dog", 3, two);
  CHECK(one == two);
  shingles_of("the quick brown fox jumps over the lazy cat", 3, two);
  std::set<std::uint64_t> both(one.begin(), one.end());
  both.insert(two.begin(), two.end());
  CHECK(both.size() == 8);
  shingles_of("a b a b a b a b", 2, one);
  CHECK(one.size() == 2);
  shingles_of("two words", 13, one);
  CHECK(one.size() == 1);
  shingles_of(" ,.; ", 13, one);
  CHECK(one.empty());
  shingles_of("na\xc3\xafve", 13, one);
  shingles_of("nave", 13, two);
  CHECK(one != two);
}

TEST_CASE("the same text with changes goes, other text stays") {
  const std::string text = words(0, 200);
  CHECK(goes({text}, text));
  CHECK_FALSE(goes({text}, words(1000, 200)));
  CHECK_FALSE(goes({}, text));
  CHECK_FALSE(goes({text}, "?!"));
  // Jaccard of texts of 196 shingles that share 130 and 128: 130/262 is below one half.
  CHECK(goes({text}, words(0, 150) + words(1000, 50)));
  CHECK_FALSE(goes({text}, words(0, 80) + words(1000, 120)));
}

TEST_CASE("one inside the other goes, either way") {
  const std::string text = words(0, 40);
  CHECK(goes({text}, words(1000, 500) + text + words(2000, 500)));
  CHECK(goes({words(1000, 500) + text + words(2000, 500)}, text));
  // Only half of the inner one, and then less.
  CHECK(goes({text}, words(1000, 500) + words(0, 22) + words(2000, 500)));
  CHECK_FALSE(goes({text}, words(1000, 500) + words(0, 18) + words(2000, 500)));
  CHECK_FALSE(goes({text}, words(1000, 500) + words(0, 22) + words(2000, 500), {}, 0.9));
  // A phrase is no evidence: 7 shingles shared, then 8.
  CHECK_FALSE(goes({words(0, 11)}, words(1000, 500) + words(0, 11)));
  CHECK(goes({words(0, 12)}, words(1000, 500) + words(0, 12)));
}

TEST_CASE("made of pieces of several held-out texts goes") {
  std::vector<std::string> held;
  std::string pieces;
  for (int i = 0; i < 5; ++i) {
    held.push_back(words(1000 * i, 300));
    pieces += words(1000 * i, 40);
  }
  CHECK(goes(held, pieces));
  CHECK_FALSE(goes(held, pieces + words(9000, 260)));
}

TEST_CASE("what stands in many documents is no evidence") {
  const std::string licence = words(0, 200);
  std::vector<std::string> others;
  for (int i = 0; i < 8; ++i) others.push_back(licence + words(1000 * (i + 1), 300));
  const std::string held = licence + words(20'000, 10);
  const std::string text = licence + words(30'000, 300);
  // In 10 documents it still counts, in 11 not.
  CHECK(goes({held}, text, others));
  others.push_back(licence + words(40'000, 300));
  CHECK_FALSE(goes({held}, text, others));
  // The text behind it counts as ever.
  CHECK(goes({licence + words(20'000, 100)}, licence + words(20'000, 100), others));
}

}  // namespace
