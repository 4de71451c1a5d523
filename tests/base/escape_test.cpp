// SPDX-License-Identifier: MIT
#include "base/escape.hpp"

#include <gtest/gtest.h>

namespace heddle {

TEST(Escape, every_byte_comes_back) {
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  all += "\xC3\xA4 \xE2\x82\xAC \xF0\x9F\x98\x80 \xED\xA0\x80";  // a surrogate is not UTF-8
  EXPECT_EQ(unescape(escape_for_terminal(all)), all);
  EXPECT_TRUE(is_valid_utf8(escape_for_terminal(all)));
}

TEST(Escape, odd_names_stay_on_one_line) {
  EXPECT_EQ(escape_for_terminal("a b\tc\nd\\e"), "a b\\tc\\nd\\\\e");
  EXPECT_EQ(escape_for_terminal("\x1b[31m"), "\\x1b[31m");
  EXPECT_EQ(escape_for_terminal("\xC3\xA4"), "\xC3\xA4");
  EXPECT_EQ(escape_for_terminal("\xC3"), "\\xc3");
}

TEST(Escape, refuses_what_it_never_wrote) {
  for (const char* text : {"\\", "\\q", "\\x1", "\\xZZ"}) EXPECT_FALSE(unescape(text)) << text;
}

}  // namespace heddle
