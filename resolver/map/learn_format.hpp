// SPDX-License-Identifier: MIT
#pragma once

// What the audit library writes for `fs-gen --learn`: records of four strings, each ended by NUL,
// appended by one write(2) each, so that any number of processes may share the file. It lives for
// one run: no header, no version.
//   "P" program ""   ""     a process started, and this is its executable's path
//   "L" program name path   it asked for `name`, which the map did not know, and got `path`
// Paths are absolute. A file that was full ends where it was; the reader takes what is whole.

namespace heddle::learn_format {

inline constexpr char kVariable[] = "HEDDLE_LEARN";
inline constexpr char kProgram[] = "P";
inline constexpr char kLibrary[] = "L";
/// Nothing is appended to a file of this size: a run of any length leaves a bounded log.
inline constexpr long kMostBytes = 64L << 20;

}  // namespace heddle::learn_format
