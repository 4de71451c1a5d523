// SPDX-License-Identifier: MIT
#pragma once

namespace heddle::jobs {

/// For a program of heddle's that becomes one of a collected job's by exec: what this process uses
/// until end() counts for none of the job's programs. No effect where nothing is collected.
class OwnUse {
 public:
  /// Changes this process's environment.
  OwnUse();
  /// Just before the exec. If the record cannot be written, what ld.so does for the next program
  /// is left out, too.
  void end() const;

 private:
  long start_ = 0;  ///< microseconds since the epoch; 0: nothing is collected
};

}  // namespace heddle::jobs
