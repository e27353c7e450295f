// SPDX-License-Identifier: Apache-2.0
//
// Endpoints as comma-separated values: what is read, and how a broken file is refused.
#include "smelt/law/endpoint_file.hpp"
#include "smelt/law/paper.hpp"
#include "smelt/law/synthetic.hpp"

#include <sstream>
#include <string>

#include <doctest/doctest.h>

using namespace smelt::law;

namespace {

std::vector<endpoint> parsed(const std::string& text) {
  std::istringstream input(text);
  return read_endpoints(input, "runs.csv");
}

std::string refusal(const std::string& text) {
  try {
    parsed(text);
  } catch (const smelt::error& failure) {
    return failure.what();
  }
  return "";
}

}  // namespace

TEST_CASE("columns come in any order, with other columns between, quotes and CRLF") {
  const auto points = parsed(
      "\xEF\xBB\xBFloss,note,architecture,S,F,D,domain,cell\r\n"
      "1.9445,\"a, \"\"b\"\"\",baseline,0.843,1.317e9,2.05e10,all,200M-85\r\n"
      "\r\n"
      " 1.2 , , smelt , +0.846 , 1.345e9 , 31e9 , Code , 200M-85 \r\n");
  REQUIRE(points.size() == 2);
  CHECK(points[0].loss == 1.9445);
  CHECK(points[0].architecture == "baseline");
  CHECK(points[0].sparsity == 0.843);
  CHECK(points[0].flops_per_token == 1.317e9);
  CHECK(points[0].tokens == 2.05e10);
  CHECK(points[0].domain == "");
  CHECK(points[0].cell == "200M-85");
  CHECK(points[0].row == 2);
  CHECK(points[1].row == 4);
  CHECK(points[1].architecture == "smelt");
  CHECK(points[1].sparsity == 0.846);
  CHECK(points[1].domain == "Code");
}

TEST_CASE("without a cell column, equal F and S are one cell") {
  const auto points = parsed(
      "architecture,flops_per_token,sparsity,tokens,loss\n"
      "a,1e9,0.9,1e10,2\na,1e9,0.9,2e10,1.9\na,2e9,0.9,1e10,1.8\n");
  CHECK(points[0].cell == points[1].cell);
  CHECK(points[0].cell != points[2].cell);
}

TEST_CASE("what is written is read back bit for bit") {
  auto points = synthetic_endpoints(paper::smelt, paper::smelt_cells, paper::horizons_tokens,
                                    "a \"looped\", kind", {0.01, 0.01}, 3);
  points[1].domain = "Math/STEM";
  std::stringstream file;
  write_endpoints(file, points);
  const auto back = read_endpoints(file, "file");
  REQUIRE(back.size() == points.size());
  for (std::size_t i = 0; i < points.size(); ++i) {
    CHECK(back[i].flops_per_token == points[i].flops_per_token);
    CHECK(back[i].sparsity == points[i].sparsity);
    CHECK(back[i].tokens == points[i].tokens);
    CHECK(back[i].loss == points[i].loss);
    CHECK(back[i].architecture == points[i].architecture);
    CHECK(back[i].cell == points[i].cell);
    CHECK(back[i].domain == points[i].domain);
  }
}

TEST_CASE("a broken file is refused by file, row and column") {
  const std::string header = "architecture,F,S,D,loss\n";
  CHECK(refusal("") ==
        "runs.csv: the file is empty, expected a header line and one row per "
        "endpoint");
  CHECK(refusal("\n\n").find("the file is empty") != std::string::npos);
  CHECK(refusal(header) == "runs.csv: there is a header and no row, expected one row per endpoint");
  CHECK(refusal("architecture,F,S,loss\na,1,0,2\n") ==
        "runs.csv: no column 'D' or 'tokens', found architecture, F, S, loss; name the columns in "
        "the first line");
  CHECK(refusal(header + "a,1e9,0.9,1e10\n") ==
        "runs.csv: row 2: 4 cells, expected 5 as in the header");
  CHECK(refusal(header + "a,1e9,0.9,1e10,2\na,1e9,0.9,many,2\n") ==
        "runs.csv: row 3: D is 'many', expected a number such as 1.33e9");
  CHECK(refusal(header + "a,1e9,0.9,1e10,2.0x\n").find("row 2: loss is '2.0x'") !=
        std::string::npos);
  CHECK(refusal(header + "a,,0.9,1e10,2\n").find("row 2: F is ''") != std::string::npos);
  CHECK(refusal(header + ",1e9,0.9,1e10,2\n").find("row 2: architecture is empty") !=
        std::string::npos);
  CHECK(refusal(header + "\"a,1e9,0.9,1e10,2\n").find("never closed") != std::string::npos);
  // NaN is a number to the reader; the fit refuses it by row.
  const auto points = parsed(header + "a,1e9,0.9,1e10,nan\n");
  CHECK_THROWS_WITH_AS(check_endpoints(points), doctest::Contains("row 2: loss is nan"),
                       smelt::error);
}

TEST_CASE("a missing file and a folder are refused by path") {
  CHECK_THROWS_WITH_AS(read_endpoint_file("no/such/file.csv"),
                       doctest::Contains("no/such/file.csv: cannot be read"), smelt::error);
  CHECK_THROWS_AS(read_endpoint_file("."), smelt::error);
}
