// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <utility>

#include "base/result.hpp"

namespace heddle {

/// A private directory (mode 0700) that goes with its owner, files and all. Its removal never
/// descends into another file system: a mount that still stands below it is left, with the
/// directory. A signal that ends the process removes it after clean_up_on_signals(), else leaves it
/// (fuseovl/service/leftovers.hpp).
class TempDir {
 public:
  /// `<parent>/<prefix>-XXXXXX`, made absolute; parent empty means $TMPDIR, or /tmp where
  /// that is not set or cannot be used.
  static Result<TempDir> create(const std::string& prefix, std::string parent = {});
  TempDir(TempDir&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TempDir& operator=(TempDir&& other) noexcept;
  ~TempDir();

  const std::string& path() const noexcept { return path_; }
  /// Gives it another path on the same file system.
  Result<void> move_to(std::string path);
  /// Gives up ownership: the directory stays, the caller removes it.
  std::string release() noexcept;

 private:
  explicit TempDir(std::string path) : path_(std::move(path)) {}
  void remove() noexcept;
  std::string path_;
};

/// Removes `path` and what is below it, on its own file system only. Missing is no failure.
Result<void> remove_tree(const std::string& path);

/// From here on the signals that would end this process (those it does not ignore) remove its
/// temporary directories first. For programs that set up for seconds with such a directory; signals
/// that a SignalRelay holds back meanwhile arrive here when it ends. Forked children remove
/// nothing.
void clean_up_on_signals();

}  // namespace heddle
