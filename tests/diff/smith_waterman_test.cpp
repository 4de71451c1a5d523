// SPDX-License-Identifier: MIT
#include "record/diff/alignment.hpp"

#include "tests/diff/align_support.hpp"

namespace heddle::diff {
namespace {

class SmithWaterman : public testing::TestWithParam<Simd> {
 protected:
  static std::vector<LocalAlignment> best(Tokens a, Tokens b, const Scores& s, std::size_t count) {
    return value_or_throw(best_local_alignments(a, b, s, count, GetParam()));
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, SmithWaterman, testing::ValuesIn(simd_levels()),
                         [](const auto& p) { return std::string(simd_name(p.param)); });

/// Gotoh's recurrences written down as they stand, whole tables.
LocalEnd reference(Tokens a, Tokens b, const Scores& s) {
  const std::size_t w = b.size() + 1;
  std::vector<int> h((a.size() + 1) * w), e(h.size(), -100000), f(h.size(), -100000);
  LocalEnd end;
  for (std::size_t i = 1; i <= a.size(); ++i)
    for (std::size_t j = 1; j < w; ++j) {
      const std::size_t at = i * w + j;
      e[at] = std::max(e[at - 1] - s.gap_extend, h[at - 1] - s.gap_open);
      f[at] = std::max(f[at - w] - s.gap_extend, h[at - w] - s.gap_open);
      const int met = h[at - w - 1] + (a[i - 1] == b[j - 1] ? s.match : -s.mismatch);
      h[at] = std::max({0, met, e[at], f[at]});
      if (h[at] > end.score) end = {h[at], i - 1, j - 1};
    }
  return end;
}

constexpr Scores kScores[] = {
    {1, 1, 1, 1}, {2, 1, 3, 1}, {5, 4, 10, 0}, {1, 0, 0, 0}, {3, 7, 2, 2}};

}  // namespace

TEST_P(SmithWaterman, the_textbook_pair) {
  const auto found = best(word("ABCDE"), word("XBCDY"), {}, 1);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].score, 3);
  EXPECT_EQ(found[0].a_begin + 1, 2U);
  EXPECT_EQ(found[0].a_end, 4U);
  EXPECT_EQ(found[0].b_begin + 1, 2U);
  EXPECT_EQ(found[0].b_end, 4U);
}

TEST_P(SmithWaterman, nothing_in_common_gives_nothing) {
  EXPECT_TRUE(best(word("abc"), word("xyz"), {}, 3).empty());
  EXPECT_TRUE(best(word(""), word("xyz"), {}, 3).empty());
  EXPECT_TRUE(best(word("abc"), word(""), {}, 3).empty());
  EXPECT_TRUE(best(word("abc"), word("abc"), {}, 0).empty());
}

TEST_P(SmithWaterman, each_kernel_ends_where_the_reference_ends) {
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    const auto alphabet = static_cast<Token>(1 + random() % 6);
    const auto a = random_tokens(random, random() % 50, alphabet);
    const auto b = random_tokens(random, random() % 50, alphabet);
    const Scores& s = kScores[random() % std::size(kScores)];
    ASSERT_EQ(local_end(a, b, s, GetParam()), reference(a, b, s)) << round;
  }
}

TEST_P(SmithWaterman, the_script_of_the_best_covers_its_stretch) {
  std::mt19937 random(8);
  for (int round = 0; round < 1000; ++round) {
    const auto a = random_tokens(random, 5 + random() % 120, 6);
    const auto b = edited(random, a, 0.4, 6);
    const Scores& s = kScores[random() % std::size(kScores)];
    const LocalEnd expected = reference(a, b, s);
    for (const LocalAlignment& found : best(a, b, s, 1)) {
      EXPECT_EQ(found.score, expected.score);
      EXPECT_EQ(found.a_end, expected.a + 1);
      EXPECT_EQ(found.b_end, expected.b + 1);
      std::size_t i = found.a_begin, j = found.b_begin;
      for (const EditRun& run : found.script) {
        ASSERT_EQ(run.a, i);
        ASSERT_EQ(run.b, j);
        if (run.kind != EditKind::inserted) i += run.length;
        if (run.kind != EditKind::deleted) j += run.length;
      }
      EXPECT_EQ(i, found.a_end);
      EXPECT_EQ(j, found.b_end);
    }
  }
}

TEST_P(SmithWaterman, further_alignments_come_in_order_and_share_no_event_of_the_first) {
  std::mt19937 random(9);
  for (int round = 0; round < 100; ++round) {
    const auto a = random_tokens(random, 150, 12);
    const auto b = random_tokens(random, 150, 12);
    const auto found = best(a, b, {2, 1, 2, 1}, 6);
    std::vector<int> used(a.size());
    for (std::size_t n = 0; n < found.size(); ++n) {
      if (n > 0) {
        EXPECT_LE(found[n].score, found[n - 1].score);
      }
      for (std::size_t i = found[n].a_begin; i < found[n].a_end; ++i) EXPECT_EQ(used[i]++, 0);
    }
  }
}

TEST_P(SmithWaterman, a_moved_block_is_found_second) {
  const auto found = best(word("0123456789abcdefgh"), word("abcdefgh0123456789"), {}, 2);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].score, 10);
  EXPECT_EQ(found[1].score, 8);
  EXPECT_EQ(found[1].a_begin, 10U);
  EXPECT_EQ(found[1].b_begin, 0U);
}

TEST(SmithWatermanScores, those_without_sense_are_refused) {
  const auto a = word("abc");
  for (const Scores& s :
       {Scores{0, 1, 1, 1}, Scores{1, -1, 1, 1}, Scores{1, 1, -1, 1}, Scores{1 << 29, 1, 1, 1}})
    EXPECT_FALSE(best_local_alignments(a, a, s, 1).has_value());
}

}  // namespace heddle::diff
