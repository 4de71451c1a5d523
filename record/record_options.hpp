// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "record/recorder.hpp"

namespace heddle {

/// How the loopback comes before APP.
enum class RecordVia : std::uint8_t {
  best,   ///< root: mount; else user; else proot
  mount,  ///< a mount namespace, mount(2): root
  user,   ///< fusermount3, then a user namespace; without fusermount3 mounted in that namespace
  proot,  ///< fusermount3, then proot
};

struct RecordOptions {
  std::string out;  ///< absolute
  bool json = false;
  bool quiet = false;
  bool summary = false;
  std::string slim_dir;
  std::string trace;                ///< summary and slim copy from this trace, nothing is run
  std::vector<std::string> scopes;  ///< absolute, real
  RecordVia via = RecordVia::best;
  RecorderOptions recorder;
  std::vector<std::string> command;
};

struct ParsedRecordOptions {
  std::optional<RecordOptions> options;
  int exit_status = 0;  ///< when there are none
};
ParsedRecordOptions parse_record_options(int argc, const char* const* argv);

}  // namespace heddle
