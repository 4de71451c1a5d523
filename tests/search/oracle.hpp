// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "resolver/search/search.hpp"
#include "tests/support/run.hpp"

namespace heddle::test {

/// The real ld.so's closure of a program or library (LD_TRACE_LOADED_OBJECTS=1).
struct Trace {
  struct Line {
    std::string name;  ///< empty when ld.so prints name and path as one
    std::string path;  ///< empty: not found
  };
  std::vector<Line> lines;  ///< in order, without the kernel's vDSO
  bool is_static = false;   ///< "statically linked": no DT_NEEDED
  int status = 0;
  std::string err;
};

/// Runs a program with LD_TRACE_LOADED_OBJECTS=1 (its code does not run), or `loader` with a
/// library.
Trace ask_ld_so(const std::string& file, bool has_interpreter, const std::string& loader,
                const RunOptions& options = {});

/// Parses the output of LD_TRACE_LOADED_OBJECTS.
std::vector<Trace::Line> parse_trace(const std::string& text, bool& is_static);

/// The paths after "trying file=" in the output of LD_DEBUG=libs, in order.
std::vector<std::string> tried_files(const std::string& debug);

/// Empty when ld.so maps and misses the same, in the same order; else the first difference.
std::string difference(const Closure& ours, const Trace& theirs);
/// The paths that `ours` probed.
std::vector<std::string> tried_files(const Closure& ours);

/// Empty when equal; else the first difference.
std::string first_difference(const std::vector<std::string>& ours,
                             const std::vector<std::string>& theirs);

}  // namespace heddle::test
