// SPDX-License-Identifier: MIT
#pragma once

// The part of fs-ship that runs once on each node, in a step of the job (`fs-ship --receive ...`).
// It makes the job's directory, says that it is ready, waits until the bundle's bytes have been
// written there by another program, and checks them. The bundle's id and size come by the command
// line and not with the bytes.
//
//     DIR/heddle-job-UID-JOB/    mode 0700, this user's
//         ID.part.NUMBER         written by the engine (sbcast, ...). A new name for each try: a
//                                slurmd would add to the file of a transfer that has failed.
//         ID.bundle              the bundle once it has been checked; until then, and for good on a
//                                node that cannot receive it, a symbolic link to the source
//         ID.source              a symbolic link to the source, for frames that are damaged later
//         slurm                  JOB is a number of Slurm's

#include <cstdint>
#include <string>
#include <vector>

#include "base/content_hash.hpp"
#include "base/result.hpp"

namespace heddle::ship {

struct ReceiveOptions {
  std::string id;  ///< of the bundle: 64 hex digits
  std::uint64_t size = 0;
  std::string part;    ///< the name of the file that the engine writes
  std::string source;  ///< its path on the shared file system
  std::string to;      ///< DIR
  std::string job;
  std::vector<std::string> live;  ///< jobs of this user that have not ended; empty: not known
  bool shared = false;            ///< only check the source, there is no copy
};

/// What a node says, one JSON object a line: {"node", "state", "step", "source", "error"}.
struct Answer {
  enum class State { ready, ok, failed };
  std::string node;
  State state = State::failed;
  std::string step;  ///< JOB.STEP of Slurm, or empty
  /// What a program on that node now gets by bundle_path(): "copy", "shared" or "none".
  std::string source = "none";
  std::string error;
};
std::string to_line(const Answer& answer);
/// Failure: the line is something else, which a login script may have printed.
Result<Answer> parse_answer(const std::string& line);

/// Receives one bundle; answers on stdout, waits for a line on stdin. Result: the exit status.
int receive_bundle(const ReceiveOptions& options);

}  // namespace heddle::ship
