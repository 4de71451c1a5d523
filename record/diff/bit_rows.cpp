// SPDX-License-Identifier: MIT
#include "record/diff/bit_rows.hpp"

#include <algorithm>

namespace heddle::diff {
namespace {

constexpr std::size_t kBlock = 64;
constexpr std::size_t kLanes = 4;

/// Bits of up to `lanes` blocks of rows, by token; cleared by what it set, not by its size.
class RowTable {
 public:
  RowTable(std::uint32_t alphabet, std::size_t lanes) : lanes_(lanes), bits_(alphabet * lanes) {}
  void set(Tokens rows) {
    for (std::size_t r = 0; r < rows.size(); ++r)
      bits_[rows[r] * lanes_ + r / kBlock] |= std::uint64_t{1} << r % kBlock;
  }
  void clear(Tokens rows) {
    for (std::size_t r = 0; r < rows.size(); ++r) bits_[rows[r] * lanes_ + r / kBlock] = 0;
  }
  const std::uint64_t* bits() const { return bits_.data(); }

 private:
  std::size_t lanes_;
  std::vector<std::uint64_t> bits_;
};

}  // namespace

void bit_block_scalar(const BitStrip& s, int last) {
  std::uint64_t plus = ~std::uint64_t{0};  // rows one above their upper neighbour
  std::uint64_t minus = 0;                 // rows one below it
  for (std::int64_t j = 0; j < s.m; ++j) {
    const int in = s.delta[j];
    const std::uint64_t in_minus = in < 0;
    const std::uint64_t in_plus = in > 0;
    std::uint64_t eq = s.rows_with[s.columns[j]];
    const std::uint64_t vertical = eq | minus;
    eq |= in_minus;
    const std::uint64_t diagonal = (((eq & plus) + plus) ^ plus) | eq;
    std::uint64_t h_plus = minus | ~(diagonal | plus);
    std::uint64_t h_minus = plus & diagonal;
    s.delta[j] = static_cast<std::int8_t>(static_cast<int>(h_plus >> last & 1) -
                                          static_cast<int>(h_minus >> last & 1));
    h_plus = h_plus << 1 | in_plus;
    h_minus = h_minus << 1 | in_minus;
    plus = h_minus | ~(vertical | h_plus);
    minus = h_plus & vertical;
  }
}

std::vector<std::uint32_t> last_row(Tokens a, Tokens b, std::uint32_t alphabet, bool backward,
                                    Simd level) {
  std::vector<Token> rows(a.begin(), a.end());
  std::vector<Token> columns(b.begin(), b.end());
  if (backward) {
    std::reverse(rows.begin(), rows.end());
    std::reverse(columns.begin(), columns.end());
  }
  std::vector<std::int8_t> delta(columns.size(), 1);  // row 0: D(0, j) = j
  BitStrip strip{columns.data(), static_cast<std::int64_t>(columns.size()), nullptr, delta.data()};
  std::size_t done = 0;
#if defined(__x86_64__)
  if (level >= Simd::avx2 && rows.size() >= kLanes * kBlock && columns.size() >= kLanes) {
    RowTable table(alphabet, kLanes);
    strip.rows_with = table.bits();
    for (; done + kLanes * kBlock <= rows.size(); done += kLanes * kBlock) {
      const Tokens part(rows.data() + done, kLanes * kBlock);
      table.set(part);
      bit_strip_avx2(strip);
      table.clear(part);
    }
  }
#endif
  RowTable table(alphabet, 1);
  strip.rows_with = table.bits();
  while (done < rows.size()) {
    const Tokens part(rows.data() + done, std::min(kBlock, rows.size() - done));
    table.set(part);
    bit_block_scalar(strip, static_cast<int>(part.size()) - 1);
    table.clear(part);
    done += part.size();
  }
  std::vector<std::uint32_t> row(columns.size() + 1);
  row[0] = static_cast<std::uint32_t>(rows.size());
  for (std::size_t j = 0; j < columns.size(); ++j)
    row[j + 1] = row[j] + static_cast<std::uint32_t>(static_cast<std::int32_t>(delta[j]));
  return row;
}

}  // namespace heddle::diff
