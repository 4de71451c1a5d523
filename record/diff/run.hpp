// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "record/diff/alignment.hpp"
#include "record/trace/normalise.hpp"
#include "record/trace/trace_reader.hpp"

namespace heddle::diff {

/// The part of an event that is compared.
struct TokenText {
  trace::Op op = trace::Op::lookup;
  int error = 0;
  std::string_view path;  ///< bytes, not escaped
};

/// Numbers for token texts, dense from 0. For one thread.
class TokenTable {
 public:
  TokenTable();
  Token intern(const TokenText& text);
  /// The view is valid until the next intern().
  TokenText text(Token token) const;
  std::size_t size() const noexcept { return entries_.size(); }

 private:
  struct Entry {
    std::uint64_t hash;
    std::uint64_t path_at;
    std::uint32_t path_size;
    std::int16_t error;
    trace::Op op;
  };
  void rehash(std::size_t slots);
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> slots_;  ///< index into entries_ plus one; 0: free
  std::string paths_;
};

/// `open ENOENT /usr/lib/libx.so.1`, `open /etc/passwd`: one line, escaped for a terminal.
std::string token_label(const TokenText& text);

/// The sequences that are compared: whole runs, their processes, or these processes' threads.
enum class By { run, process, thread };

/// Which differences between events count.
struct TokenRules {
  trace::NormaliseOptions normalise;
  std::vector<trace::Op> ops;  ///< empty: all
  bool result = true;          ///< a miss differs from a hit
  bool late = true;            ///< events that fs-record writes at close are ignored without `ops`
  bool resolved = false;       ///< the path after symlinks, where the trace has it
  bool collapse = false;       ///< the same event many times in a row counts once
  bool threads = false;        ///< Run::processes are threads

  /// The rules that are on: the normalisers, "result", "late", "resolved", "collapse".
  std::vector<std::string> names() const;
};

/// Events in order, as numbers. The vectors have the same length.
struct Sequence {
  std::vector<Token> tokens;
  std::vector<std::uint64_t> ns;         ///< since the run's start
  std::vector<std::uint32_t> repeats;    ///< with collapse: the number of events; else empty
  std::vector<std::uint32_t> positions;  ///< in the whole run, from 0; empty: the same as here

  std::size_t size() const noexcept { return tokens.size(); }
  std::uint32_t position(std::size_t i) const {
    return positions.empty() ? static_cast<std::uint32_t>(i) : positions[i];
  }
  /// Merges neighbours with equal tokens.
  void collapse();
};

/// A stretch of one pid's, or tid's, life under one executable.
struct Process {
  std::int32_t id = 0;
  std::string exe;  ///< in normal form
};

/// One run, ready to compare.
struct Run {
  std::string name;  ///< `a.txt`, or `a.txt#2` when the file holds several runs
  int number = 1;
  int runs_in_file = 1;
  trace::RunHeader header;
  trace::RunFooter footer;
  trace::Ending ending = trace::Ending::no_footer;
  Sequence sequence;
  std::vector<Process> processes;
  std::vector<std::uint32_t> process_of;  ///< of each event, index into processes

  bool complete() const { return trace::is_complete(footer, ending); }
  /// Fails when the trace names no processes.
  Result<void> require_processes() const;
};

/// `a.txt` or `a.txt#2`. If a file of the whole name exists, it is that file.
struct RunName {
  std::string path;
  int number = 0;  ///< 0: none given
};
RunName parse_run_name(const std::string& text);

/// The runs of a file, or the named one; at least one. Fails as read_trace() does, and when there
/// is no such run. Tokens are numbered by `table`.
Result<std::vector<Run>> load_runs(const RunName& name, const TokenRules& rules,
                                   const trace::ReadOptions& read, TokenTable& table);

/// One run of each of two files, read in parallel; the first one where none is named.
Result<std::pair<Run, Run>> load_pair(const RunName& a, const RunName& b, const TokenRules& rules,
                                      const trace::ReadOptions& read, TokenTable& table);

}  // namespace heddle::diff
