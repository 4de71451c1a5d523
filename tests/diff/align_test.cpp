// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string_view>
#include <vector>

#include "record/diff/kernels.hpp"

namespace heddle::diff {
namespace {

/// One token a letter.
std::vector<Token> word(std::string_view letters) { return {letters.begin(), letters.end()}; }

std::vector<Token> random_tokens(std::mt19937& random, std::size_t length, Token alphabet) {
  std::vector<Token> out(length);
  for (Token& t : out) t = static_cast<Token>(random()) % alphabet;
  return out;
}

/// `share` of the events replaced, removed or added.
std::vector<Token> edited(std::mt19937& random, const std::vector<Token>& a, double share,
                          Token alphabet) {
  std::uniform_real_distribution<> chance;
  std::vector<Token> out;
  for (const Token t : a) {
    const double x = chance(random) / share;
    if (x >= 1) {
      out.push_back(t);
    } else if (x < 0.33) {
      out.push_back(static_cast<Token>(random()) % alphabet);
    } else if (x < 0.66) {
      out.push_back(t);
      out.push_back(static_cast<Token>(random()) % alphabet);
    }
  }
  return out;
}

/// The textbook's O(nm) with one row.
std::uint32_t reference_distance(Tokens a, Tokens b) {
  std::vector<std::uint32_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<std::uint32_t>(j);
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::uint32_t diagonal = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::uint32_t met = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({met, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::uint32_t count_edits(const std::vector<EditRun>& script) {
  std::uint32_t edits = 0;
  for (const EditRun& run : script) edits += run.kind == EditKind::same ? 0 : run.length;
  return edits;
}

/// A script covers both sequences in order and marks equal events correctly.
void expect_valid(const std::vector<EditRun>& script, Tokens a, Tokens b) {
  std::size_t i = 0, j = 0;
  for (const EditRun& run : script) {
    ASSERT_EQ(run.a, i);
    ASSERT_EQ(run.b, j);
    ASSERT_GT(run.length, 0U);
    if (run.kind != EditKind::inserted) i += run.length;
    if (run.kind != EditKind::deleted) j += run.length;
    ASSERT_LE(i, a.size());
    ASSERT_LE(j, b.size());
    if (run.kind != EditKind::same && run.kind != EditKind::replaced) continue;
    for (std::size_t n = 0; n < run.length; ++n)
      ASSERT_EQ(a[run.a + n] == b[run.b + n], run.kind == EditKind::same);
  }
  ASSERT_EQ(i, a.size());
  ASSERT_EQ(j, b.size());
}

class Levenshtein : public testing::TestWithParam<Simd> {
 protected:
  static void expect_reference(Tokens a, Tokens b) {
    const std::uint32_t expected = reference_distance(a, b);
    ASSERT_EQ(edit_distance(a, b, GetParam()), expected);
    ASSERT_EQ(edit_distance(b, a, GetParam()), expected);
    const auto script = edit_script(a, b, {}, GetParam()).runs;
    ASSERT_NO_FATAL_FAILURE(expect_valid(script, a, b));
    ASSERT_EQ(count_edits(script), expected);
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, Levenshtein, testing::ValuesIn(simd_levels()),
                         [](const auto& p) { return std::string(simd_name(p.param)); });

class SmithWaterman : public testing::TestWithParam<Simd> {
 protected:
  static std::vector<LocalAlignment> best(Tokens a, Tokens b, const Scores& s, std::size_t count) {
    return value_or_throw(best_local_alignments(a, b, s, count, GetParam()));
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, SmithWaterman, testing::ValuesIn(simd_levels()),
                         [](const auto& p) { return std::string(simd_name(p.param)); });

/// Gotoh's recurrences with whole tables.
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

TEST_P(Levenshtein, gives_known_distances) {
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

TEST_P(Levenshtein, equals_the_reference_on_short_pairs) {
  std::mt19937 random(1);
  for (int round = 0; round < 4000; ++round) {
    const auto alphabet = static_cast<Token>(1 + random() % (round % 3 == 0 ? 3 : 200));
    const auto a = random_tokens(random, random() % 60, alphabet);
    const std::size_t length = round % 40 == 0 ? 900 + random() % 900 : random() % 60;
    const auto b =
        round % 2 == 0 ? random_tokens(random, length, alphabet) : edited(random, a, 0.2, alphabet);
    ASSERT_NO_FATAL_FAILURE(expect_reference(a, b));
  }
}

TEST_P(Levenshtein, equals_the_reference_on_long_pairs) {
  std::mt19937 random(2);
  for (const double share : {0.0, 0.01, 0.1, 0.3, 0.6, 1.0})
    for (const Token alphabet : {2U, 20U, 5000U})
      for (int round = 0; round < 4; ++round) {
        const auto a = random_tokens(random, 200 + random() % 1300, alphabet);
        const auto b = edited(random, a, share, alphabet);
        ASSERT_NO_FATAL_FAILURE(expect_reference(a, b));
      }
}

TEST_P(Levenshtein, band_equals_the_reference) {
  std::mt19937 random(5);
  for (int round = 0; round < 12; ++round) {
    const Token alphabet = std::initializer_list<Token>{2U, 300U, 40'000U}.begin()[round % 3];
    auto a = random_tokens(random, 4'100 + random() % 2'000, alphabet);
    auto b = edited(random, a, std::initializer_list<double>{0.1, 0.3, 0.9}.begin()[round / 3 % 3],
                    alphabet);
    // A block that is only in one of them, or at another place, leads far off the diagonal.
    const auto block = random_tokens(random, random() % 3'000, alphabet);
    if (round % 4 == 1)
      b.insert(b.begin() + static_cast<int>(random() % b.size()), block.begin(), block.end());
    if (round % 4 == 2)
      a.insert(a.begin() + static_cast<int>(random() % a.size()), block.begin(), block.end());
    if (round % 4 == 3)
      std::rotate(b.begin(), b.begin() + static_cast<int>(random() % b.size()), b.end());
    const std::uint32_t expected = reference_distance(a, b);
    ASSERT_EQ(edit_distance(a, b, GetParam()), expected) << round;
    // Below, at and above the distance.
    for (const std::uint32_t most : {expected / 2, expected - 1, expected, expected + 1, ~0U}) {
      double done = 0;
      const auto progress = [&](double share) {
        EXPECT_GE(share, done);
        EXPECT_LE(done = share, 1);
      };
      const Script script = edit_script(a, b, {most, progress}, GetParam());
      ASSERT_NO_FATAL_FAILURE(expect_valid(script.runs, a, b));
      EXPECT_GE(count_edits(script.runs), expected);
      if (script.exact || most >= expected) {
        ASSERT_TRUE(script.exact) << round;
        ASSERT_EQ(count_edits(script.runs), expected) << round;
      }
    }
  }
}

TEST_P(Levenshtein, limit_bounds_the_work_on_unrelated_sequences) {
  std::mt19937 random(7);
  const auto a = random_tokens(random, 300'000, 1'000);
  const auto b = random_tokens(random, 300'000, 1'000);
  const Script script = edit_script(a, b, {1'000, {}}, GetParam());
  EXPECT_FALSE(script.exact);
  ASSERT_NO_FATAL_FAILURE(expect_valid(script.runs, a, b));
}

TEST_P(SmithWaterman, finds_nothing_without_common_events) {
  EXPECT_TRUE(best(word("abc"), word("xyz"), {}, 3).empty());
  EXPECT_TRUE(best(word(""), word("xyz"), {}, 3).empty());
  EXPECT_TRUE(best(word("abc"), word(""), {}, 3).empty());
  EXPECT_TRUE(best(word("abc"), word("abc"), {}, 0).empty());
}

TEST_P(SmithWaterman, ends_where_the_reference_ends) {
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    const auto alphabet = static_cast<Token>(1 + random() % 6);
    const auto a = random_tokens(random, random() % 50, alphabet);
    const auto b = random_tokens(random, random() % 50, alphabet);
    const Scores& s = kScores[random() % std::size(kScores)];
    ASSERT_EQ(local_end(a, b, s, GetParam()), reference(a, b, s)) << round;
  }
}

TEST_P(SmithWaterman, script_covers_the_whole_alignment) {
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
      auto script = found.script;
      for (EditRun& run : script) {
        run.a -= static_cast<std::uint32_t>(found.a_begin);
        run.b -= static_cast<std::uint32_t>(found.b_begin);
      }
      expect_valid(script, Tokens(a).subspan(found.a_begin, found.a_end - found.a_begin),
                   Tokens(b).subspan(found.b_begin, found.b_end - found.b_begin));
    }
  }
}

TEST_P(SmithWaterman, alignments_are_ordered_by_score_and_disjoint) {
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

TEST_P(SmithWaterman, finds_a_moved_block_second) {
  const auto found = best(word("0123456789abcdefgh"), word("abcdefgh0123456789"), {}, 2);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].score, 10);
  EXPECT_EQ(found[1].score, 8);
  EXPECT_EQ(found[1].a_begin, 10U);
  EXPECT_EQ(found[1].b_begin, 0U);
}

TEST(SmithWatermanScores, outside_their_ranges_are_refused) {
  const auto a = word("abc");
  for (const Scores& s :
       {Scores{0, 1, 1, 1}, Scores{1, -1, 1, 1}, Scores{1, 1, -1, 1}, Scores{1 << 29, 1, 1, 1}})
    EXPECT_FALSE(best_local_alignments(a, a, s, 1).has_value());
}

}  // namespace heddle::diff
