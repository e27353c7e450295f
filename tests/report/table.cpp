// SPDX-License-Identifier: Apache-2.0
//
// Tables and quantities, letter by letter.
#include "smelt/report/table.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "smelt/report/quantity.hpp"

namespace {
using namespace smelt;

TEST_CASE("a table aligns its columns and leaves no space at the end of a line") {
  table t({{"", align::left}, {"baseline"}, {"note", align::left}});
  t.row({"parameters", "1 234", "a"}).rule().row({"loss", "2.5", ""});
  CHECK(t.text() ==
        "             baseline   note\n"
        "parameters      1 234   a\n"
        "----------------------------\n"
        "loss              2.5\n");
}

TEST_CASE("a table without heads begins with its rows; UTF-8 counts characters") {
  table t({{"", align::left}, {""}});
  t.row({"stra\xc3\x9f"
         "e",
         "1"})
      .row({"roads", "12"});
  CHECK(t.text() ==
        "stra\xc3\x9f"
        "e    1\n"
        "roads    12\n");
}

TEST_CASE("a row of the wrong length is refused") {
  table t({{"one"}, {"two"}});
  CHECK_THROWS_WITH_AS(t.row({"1"}), "table::row: expected 2 cells, found 1; give one per column",
                       error);
}

TEST_CASE("quantities") {
  CHECK(grouped(0) == "0");
  CHECK(grouped(999) == "999");
  CHECK(grouped(1000) == "1 000");
  CHECK(grouped(-1234567) == "-1 234 567");
  CHECK(grouped(std::numeric_limits<std::int64_t>::max()) == "9 223 372 036 854 775 807");

  CHECK(scaled(0) == "0");
  CHECK(scaled(7, "B") == "7 B");
  CHECK(scaled(7, " tokens") == "7 tokens");
  CHECK(scaled(7000, " tokens") == "7.00 k tokens");
  CHECK(scaled(1.5) == "1.50");
  CHECK(scaled(999.4) == "999");
  CHECK(scaled(999.6) == "1.00 k");
  CHECK(scaled(1'234'567, "FLOP/s") == "1.23 MFLOP/s");
  CHECK(scaled(12.34e9) == "12.3 G");
  CHECK(scaled(-2500) == "-2.50 k");

  CHECK(clock_time(7.4) == "0:07");
  CHECK(clock_time(59.6) == "1:00");
  CHECK(clock_time(125) == "2:05");
  CHECK(clock_time(3725) == "1:02:05");
  CHECK(clock_time(std::nan("")) == "?");
  CHECK(clock_time(-1) == "?");

  CHECK(percent(0.4321) == "43.2 %");
  CHECK(signed_permille(1012, 1000) == "+12");
  CHECK(signed_permille(988, 1000) == "-12");
  CHECK(signed_permille(1000.1, 1000) == "0");
  CHECK(signed_permille(1, 0) == "?");
}

}  // namespace
