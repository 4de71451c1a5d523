// SPDX-License-Identifier: MIT
#include "record/diff/kernels.hpp"
#include "tests/diff/align_support.hpp"

namespace heddle::diff {
namespace {

class Levenshtein : public testing::TestWithParam<Simd> {};
INSTANTIATE_TEST_SUITE_P(Kernels, Levenshtein, testing::ValuesIn(simd_levels()),
                         [](const auto& p) { return std::string(simd_name(p.param)); });

}  // namespace

TEST_P(Levenshtein, known_pairs) {
  const auto d = [](std::string_view a, std::string_view b) {
    return edit_distance(word(a), word(b), GetParam());
  };
  EXPECT_EQ(d("daccbb", "bbfee"), 6U);
  EXPECT_EQ(d("kitten", "sitting"), 3U);
  EXPECT_EQ(d("", ""), 0U);
  EXPECT_EQ(d("", "abc"), 3U);
  EXPECT_EQ(d("abc", ""), 3U);
  EXPECT_EQ(d("abc", "abc"), 0U);
  EXPECT_EQ(d("abcdef", "bcdefa"), 2U);
}

TEST_P(Levenshtein, equals_the_reference_on_thousands_of_random_pairs) {
  std::mt19937 random(1);
  for (int round = 0; round < 4000; ++round) {
    const auto alphabet = static_cast<Token>(1 + random() % (round % 3 == 0 ? 3 : 200));
    const auto a = random_tokens(random, random() % 60, alphabet);
    const auto b = round % 2 == 0 ? random_tokens(random, random() % 60, alphabet)
                                  : edited(random, a, 0.2, alphabet);
    const std::uint32_t expected = reference_distance(a, b);
    ASSERT_EQ(edit_distance(a, b, GetParam()), expected);
    ASSERT_EQ(edit_distance(b, a, GetParam()), expected);
    const auto script = edit_script(a, b, GetParam());
    ASSERT_NO_FATAL_FAILURE(expect_valid(script, a, b));
    ASSERT_EQ(count_edits(script), expected);
  }
}

TEST_P(Levenshtein, equals_the_reference_on_longer_pairs_near_and_far) {
  std::mt19937 random(2);
  for (const double share : {0.0, 0.01, 0.1, 0.3, 0.6, 1.0})
    for (const Token alphabet : {2U, 20U, 5000U})
      for (int round = 0; round < 4; ++round) {
        const auto a = random_tokens(random, 200 + random() % 1300, alphabet);
        const auto b = edited(random, a, share, alphabet);
        const std::uint32_t expected = reference_distance(a, b);
        ASSERT_EQ(edit_distance(a, b, GetParam()), expected);
        const auto script = edit_script(a, b, GetParam());
        ASSERT_NO_FATAL_FAILURE(expect_valid(script, a, b));
        ASSERT_EQ(count_edits(script), expected);
      }
}

TEST_P(Levenshtein, lopsided_pairs) {
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    const auto a = random_tokens(random, random() % 8, 5);
    const auto b = random_tokens(random, 900 + random() % 900, 5);
    ASSERT_EQ(edit_distance(a, b, GetParam()), reference_distance(a, b));
    ASSERT_EQ(count_edits(edit_script(a, b, GetParam())), reference_distance(a, b));
    ASSERT_EQ(count_edits(edit_script(b, a, GetParam())), reference_distance(a, b));
  }
}

TEST_P(Levenshtein, each_way_of_computing_it_gives_the_same) {
  std::mt19937 random(4);
  for (int round = 0; round < 300; ++round) {
    const auto alphabet = static_cast<Token>(2 + random() % 50);
    const auto a = random_tokens(random, 1 + random() % 700, alphabet);
    const auto b = edited(random, a, 0.5, alphabet);
    if (b.empty()) continue;
    const std::uint32_t expected = reference_distance(a, b);
    const auto cut = cut_by_diagonals(a, b, 100'000, GetParam());
    ASSERT_TRUE(cut.has_value());
    EXPECT_EQ(cut->distance, expected);
    EXPECT_EQ(reference_distance(Tokens(a).first(cut->a), Tokens(b).first(cut->b)), cut->before);
    EXPECT_EQ(reference_distance(Tokens(a).subspan(cut->a), Tokens(b).subspan(cut->b)),
              expected - cut->before);
    EXPECT_EQ(last_row(a, b, alphabet, false, GetParam()).back(), expected);
    EXPECT_EQ(last_row(a, b, alphabet, true, GetParam()).back(), expected);
    if (expected > 0) {
      EXPECT_FALSE(cut_by_diagonals(a, b, expected - 1, GetParam()).has_value());
    }
  }
}

TEST_P(Levenshtein, a_million_events_with_one_percent_of_edits) {
  std::mt19937 random(6);
  const auto a = random_tokens(random, 1'000'000, 20'000);
  const auto b = edited(random, a, 0.01, 20'000);
  const auto script = edit_script(a, b, GetParam());
  ASSERT_NO_FATAL_FAILURE(expect_valid(script, a, b));
  EXPECT_EQ(count_edits(script), edit_distance(a, b, GetParam()));
  EXPECT_GT(count_edits(script), 9'000U);
  EXPECT_LT(count_edits(script), 10'500U);
}

}  // namespace heddle::diff
