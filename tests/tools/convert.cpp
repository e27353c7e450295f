// SPDX-License-Identifier: Apache-2.0
//
// The converters on documents whose text is known, and on what is no document at all; patterns.
#include "smelt_tokens/convert.hpp"

#include <doctest/doctest.h>

#include <string>

#include "smelt/exec/random.hpp"
#include "smelt_tokens/sources.hpp"

namespace {
using namespace smelt_tokens;

TEST_CASE("html: tags go, blocks end lines, entities become characters") {
  CHECK(html_text("<html><head><title>no</title></head><body><h1>One</h1>\n<p>two  <b>three</b>\n"
                  "four</p><ul><li>a</li><li>b</li></ul></body></html>") ==
        "One\n\ntwo three four\n\n- a\n- b\n");
  CHECK(html_text("a &lt; b &amp;&amp; c &#62; d &#x41;&eacute;&mdash;&nosuch; &") ==
        "a < b && c > d A\xc3\xa9\xe2\x80\x94&nosuch; &\n");
  CHECK(html_text("x<script>if (a < b) { '</p>' }</script>y<!-- <p>no</p> -->z") == "xyz\n");
  CHECK(html_text("<pre>  one\n    two &lt;\n</pre>three") == "  one\n    two <\n\nthree\n");
  CHECK(html_text("<a title=\"a > b\" href='>'>link</a> 1 < 2 <3") == "link 1 < 2 <3\n");
  CHECK(html_text("<div role=\"navigation\"><div>no</div>no</div>yes") == "yes\n");
  CHECK(html_text("<h2>Head<a class=\"headerlink\" href=\"#x\">P</a></h2>text") ==
        "Head\n\ntext\n");
  CHECK(html_text("<p>a<br>b<table><tr><td>1</td><td>2</td></tr></table>") == "a\nb\n\n1 2\n");
  CHECK(html_text("<script>never closed") == "never closed\n");
  CHECK(html_text("").empty());
  CHECK(html_text("&#xd800;&#0;&#1114112;") == "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\n");
}

TEST_CASE("man: headings and paragraphs stay, fonts and requests go") {
  CHECK(man_text(".\\\" comment\n.TH LS 1\n.SH NAME\nls \\- list \\fIfiles\\fR\n.SH OPTIONS\n.TP\n"
                 "\\fB\\-a\\fR, \\fB\\-\\-all\\fR\nshow\nall\n.PP\nSee\n.BR ls (1),\n.I that\n.nf\n"
                 "  code\ncode\n.fi\nend\n") ==
        "NAME\nls - list files\n\nOPTIONS\n\n-a, --all\nshow all\n\nSee ls(1), that\n  code\ncode\n"
        "end\n");
  CHECK(man_text(".de XX\n.B no\n..\n.SH \"A B\"\nx\\(aqy\\e \\s-1Z\\s0\\&. \\*(lqq\\*(rq\n") ==
        "A B\nx'y\\ Z. \"q\"\n");
  CHECK(man_text(".Dd today\n.Dt FILE 1\n.Os\n.Sh NAME\n.Nm file\n.Nd what it is\n.Sh SYNOPSIS\n"
                 ".Nm\n.Op Fl v Ar name\n.Bl -tag\n.It Fl x , Ar y\ntext\n.El\n") ==
        "NAME\nfile what it is\n\nSYNOPSIS\nfile [-v name]\n\n-x, y\ntext\n");
  CHECK(man_text(".TS\nl l.\na\tb\n.TE\nafter\n") == "a\tb\nafter\n");
  CHECK(man_text(".B \"two \"\"quoted\"\" words\" more\n") == "two \"quoted\" words more\n");
  CHECK(man_text("").empty());
  CHECK(man_text(".so man1/other.1\n").empty());
}

TEST_CASE("info: nodes without headers, menus, indices and tables") {
  using namespace std::string_literals;
  CHECK(
      info_text("preamble\n\x1f\nFile: a.info,  Node: Top,  Up: (dir)\n\nTop text\n\n\n\nmore\n* "
                "Menu:\n\n* One::   first\n\x1f\nFile: a.info,  Node: One\n\n1 One\n*****\n\nbody\n"
                "\x1f\nFile: a.info,  Node: Index\n\n\0\b[index\0\b]\n* x: One.\n"
                "\x1f\nTag Table:\nNode: Top\x7f"
                "12\n\x1f\nEnd Tag Table\n"s) == "Top text\n\nmore\n\n1 One\n*****\n\nbody\n");
  CHECK(info_text("no node in it\n").empty());
  CHECK(info_text("\x1f").empty());
}

TEST_CASE("no input breaks a converter") {
  // Every byte that means something, in random order.
  const std::string alphabet = "<>&;#x/!-\"'\\.( [n)]\n\x1f\0*fB\"Tp" + std::string(1, '\0');
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    std::string text;
    for (std::uint64_t i = 0; i < 1 + seed % 60; ++i)
      text += alphabet[smelt::random_bits(seed, i) % alphabet.size()];
    for (const converter kind : {converter::html, converter::info, converter::man})
      CHECK(plain_text(kind, text).size() <= 20 * text.size() + 20);
    CHECK(plain_text(converter::plain, text) == text);
  }
}

TEST_CASE("patterns") {
  CHECK(fits_pattern("*.py", "a.py"));
  CHECK(fits_pattern("*.py", ".py"));
  CHECK_FALSE(fits_pattern("*.py", "a/b.py"));
  CHECK_FALSE(fits_pattern("*.py", "a.pyc"));
  CHECK(fits_pattern("**/*.py", "a.py"));
  CHECK(fits_pattern("**/*.py", "a/b/c.py"));
  CHECK(fits_pattern("5.36.*/**/*.pm", "5.36.0/a/b.pm"));
  CHECK_FALSE(fits_pattern("5.36.*/**/*.pm", "5.37.0/a/b.pm"));
  CHECK(fits_pattern("a?c", "abc"));
  CHECK_FALSE(fits_pattern("a?c", "a/c"));
  CHECK_FALSE(fits_pattern("a?c", "ac"));
  CHECK(fits_pattern("", ""));
  CHECK_FALSE(fits_pattern("", "a"));
  CHECK_FALSE(fits_pattern("a", ""));
  CHECK(fits_pattern("*a*b*", "xxaxxbxx"));
}

}  // namespace
