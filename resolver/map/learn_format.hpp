// SPDX-License-Identifier: MIT
#pragma once

// The audit library's log for `fs-gen --learn`: records of five strings, each ended by NUL and
// appended by one write(2), so that any number of processes share the file. It exists for one run:
// no header, no version.
//   "P" program ""     ""   ""     a process started with this executable
//   "L" program caller name path   its library `caller` (empty: the program itself) requested
//                                  `name`, which is not in the map, and got `path`
// Paths are as ld.so spells them. An incomplete last record (a full disk) is ignored.

namespace heddle::learn_format {

inline constexpr char kVariable[] = "HEDDLE_LEARN";
inline constexpr char kProgram[] = "P";
inline constexpr char kLibrary[] = "L";
inline constexpr unsigned kFields = 5;
/// Nothing is appended to a file of this size: a run of any length leaves a bounded log.
inline constexpr long kMostBytes = 64L << 20;

}  // namespace heddle::learn_format
