// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "record/diff/levenshtein.hpp"

namespace heddle::diff {

// Edit distances by bit vectors (Myers 1999, in Hyyro's 2003 form), for sequences that have little
// in common: a column of 64 rows costs some 15 instructions whatever the tokens. Rows are worked
// off in strips, each over all columns, so that a table of "which rows hold this token" is needed
// for one strip only: any alphabet, linear memory.

/// The last row of the table of a (rows) against b (columns): D(n, j) for j = 0 .. m.
/// `alphabet`: all tokens are smaller. With `backward` both are read from their ends.
std::vector<std::uint32_t> last_row(Tokens a, Tokens b, std::uint32_t alphabet, bool backward,
                                    Simd level);

/// One strip's job, for the kernels.
struct BitStrip {
  const Token* columns;  ///< b, in reading order
  std::int64_t m;
  const std::uint64_t* rows_with;  ///< [token * lanes + lane]: rows of the lane's block with it
  std::int8_t* delta;  ///< D(row, j + 1) - D(row, j) of the row above; then of the last row
};
/// One block of up to 64 rows; `last` is its last row's bit. One lane.
void bit_block_scalar(const BitStrip& strip, int last);
/// Four whole blocks, 256 rows. Four lanes.
void bit_strip_avx2(const BitStrip& strip);

}  // namespace heddle::diff
