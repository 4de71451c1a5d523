// SPDX-License-Identifier: MIT
#include "resolver/map/codec.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "resolver/map/map_format.hpp"
#include "tests/map/sample_map.hpp"

namespace heddle::map_format {
namespace {

TEST(MapCodec, fields_come_back_at_their_limits) {
  Encoder out;
  out(std::uint8_t{255}, std::numeric_limits<std::int64_t>::min(), true, UINT64_MAX, std::string(),
      std::string("a\0b", 3), std::vector<std::string>{"", "x"});
  const std::string bytes = out.take();
  std::uint8_t u8 = 0;
  std::int64_t i64 = 0;
  bool flag = false;
  std::uint64_t u64 = 0;
  std::string empty = "not", text;
  std::vector<std::string> list;
  Decoder in(bytes);
  in(u8, i64, flag, u64, empty, text, list);
  EXPECT_TRUE(in.complete());
  EXPECT_EQ(u8, 255);
  EXPECT_EQ(i64, std::numeric_limits<std::int64_t>::min());
  EXPECT_TRUE(flag);
  EXPECT_EQ(u64, UINT64_MAX);
  EXPECT_EQ(empty, "");
  EXPECT_EQ(text, std::string("a\0b", 3));
  EXPECT_EQ(list, (std::vector<std::string>{"", "x"}));
}

TEST(MapCodec, a_record_cut_short_or_too_long_is_refused) {
  const MapContent map = sample_map(20);
  const std::string object = encode(map.objects[9]);
  const std::string program = encode(map.programs[0]);
  MapObject o;
  MapProgram p;
  for (std::size_t n = 0; n < object.size(); ++n) EXPECT_FALSE(decode(object.substr(0, n), o)) << n;
  for (std::size_t n = 0; n < program.size(); ++n)
    EXPECT_FALSE(decode(program.substr(0, n), p)) << n;
  EXPECT_TRUE(decode(object, o) && decode(program, p));
  EXPECT_FALSE(decode(object + "x", o));
}

TEST(MapCodec, random_damage_never_takes_much_memory_or_crashes) {
  const std::string good = encode(sample_map(20).programs[0]);
  std::mt19937 random(3);
  for (int i = 0; i < 20000; ++i) {
    std::string bad = good;
    for (unsigned blows = 1 + random() % 4; blows--;)
      bad[random() % bad.size()] = static_cast<char>(random());
    MapProgram p;
    (void)decode(bad, p);
    EXPECT_LE(p.guided.size() + p.libraries.size() + p.missing.size(), good.size());
  }
}

TEST(MapCodec, number_keys_sort_like_numbers) {
  EXPECT_LT(number_key(255), number_key(256));
  EXPECT_LT(number_key(0x7FFFFFFF), number_key(0x80000000));
  EXPECT_EQ(number_of_key(number_key(0xFEDCBA98)), 0xFEDCBA98);
  EXPECT_EQ(number_of_key("abc"), std::nullopt);
}

TEST(MapCodec, a_hashed_key_is_never_a_name_s_own) {
  const std::string prefix = number_key(7);
  EXPECT_FALSE(is_hashed_key(prefix, text_key(prefix, std::string(507, 'x'))));
  const std::string key = text_key(prefix, std::string(508, 'x'));
  EXPECT_TRUE(is_hashed_key(prefix, key));
  EXPECT_EQ(key.size(), 4u + 1 + 16);
  EXPECT_NE(key, text_key(prefix, std::string(509, 'x')));
}

}  // namespace
}  // namespace heddle::map_format
