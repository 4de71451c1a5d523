// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "resolver/search/search.hpp"
#include "tests/support/run.hpp"

namespace heddle::test {

/// What the real ld.so says of one program or library (LD_TRACE_LOADED_OBJECTS=1).
struct Trace {
  struct Line {
    std::string name;  ///< empty when ld.so prints name and path as one
    std::string path;  ///< empty: not found
    bool operator==(const Line&) const = default;
  };
  std::vector<Line> lines;  ///< in order, without the kernel's vDSO
  bool is_static = false;   ///< "statically linked": no DT_NEEDED
  int status = 0;
  std::string err;
};

/// Asks ld.so: a program is run with LD_TRACE_LOADED_OBJECTS=1 (its own code never is), a library
/// is given to `loader`. `env` as RunOptions::env.
Trace ask_ld_so(const std::string& file, bool has_interpreter, const std::string& loader,
                const RunOptions& options = {});

/// The text of LD_TRACE_LOADED_OBJECTS.
std::vector<Trace::Line> parse_trace(const std::string& text, bool& is_static);

/// The paths behind "trying file=" in what LD_DEBUG=libs wrote, in order.
std::vector<std::string> tried_files(const std::string& debug);

/// Empty: ld.so maps and misses what `ours` says, in its order. Else the first difference.
std::string difference(const Closure& ours, const Trace& theirs);
/// The paths that `ours` tried, its own way.
std::vector<std::string> tried_files(const Closure& ours);

/// Empty when equal. Hundreds of paths are compared; only the first that differs is of use.
std::string first_difference(const std::vector<std::string>& ours,
                             const std::vector<std::string>& theirs);

}  // namespace heddle::test
