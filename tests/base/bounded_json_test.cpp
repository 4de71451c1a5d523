// SPDX-License-Identifier: MIT
#include "base/bounded_json.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace heddle {
namespace {

using Json = nlohmann::ordered_json;

std::string nested(std::size_t depth, char open, char close) {
  return std::string(depth, open) + std::string(depth, close);
}

TEST(BoundedJson, texts_within_the_limits_are_what_the_parser_says) {
  for (const std::string text :
       {R"({"a":[1,-2.5e3,true,null,"x"],"b":{"c":{}}})", R"("[[[[\"[[\\")", "7", "[]", "", "{",
        "]", "]]]][", R"(["\)", R"("\"", ":", R"({"a":1,"a":2})"})
    EXPECT_EQ(parse_bounded<Json>(text).dump(), Json::parse(text, nullptr, false).dump()) << text;
}

TEST(BoundedJson, depth_is_limited) {
  EXPECT_FALSE(parse_bounded<Json>(nested(64, '[', ']')).is_discarded());
  EXPECT_STREQ(beyond({}, nested(65, '[', ']')), "it is nested too deep");
  EXPECT_TRUE(parse_bounded<Json>(nested(65, '[', ']')).is_discarded());
  EXPECT_STREQ(beyond({}, std::string(5'000'000, '{')), "it is nested too deep");
  // More than the table of depths has is not to be had.
  EXPECT_STREQ(beyond({.depth = 1000}, nested(65, '[', ']')), "it is nested too deep");
  std::string keys;
  for (int i = 0; i < 100; ++i) keys += R"({"a":)";
  EXPECT_STREQ(beyond({.depth = 3}, keys), "it is nested too deep");
  EXPECT_EQ(beyond({.depth = 1}, R"([{"[":"{[{["}])"), std::string("it is nested too deep"));
  EXPECT_EQ(beyond({.depth = 1}, R"(["[{[{[","\"[{[{["])"), nullptr) << "brackets in texts";
}

TEST(BoundedJson, values_and_members_are_limited) {
  EXPECT_EQ(beyond({.values = 6}, "[[],[],1]"), nullptr);
  EXPECT_STREQ(beyond({.values = 5}, "[[],[],1]"), "it has too many values");
  EXPECT_EQ(beyond({.members = 2}, R"([{"a":1,"b":{"c":2}},{"d":3,"e":4}])"), nullptr);
  EXPECT_STREQ(beyond({.members = 2}, R"({"a":1,"b":{"x":0},"c":2})"),
               "an object has too many members");
}

}  // namespace
}  // namespace heddle
