// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <random>

#include "resolver/map/map_format.hpp"
#include "tests/map/sample_map.hpp"

namespace heddle::map_format {
namespace {

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

}  // namespace
}  // namespace heddle::map_format
