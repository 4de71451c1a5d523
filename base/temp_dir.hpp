// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <utility>

#include "base/result.hpp"

namespace heddle {

/// A private directory (mode 0700); the destructor removes it with its files. The removal never
/// descends into another file system: it leaves a mount below, and the directory. After
/// clean_up_on_signals() a signal that ends the process removes it too; else it is left
/// (fuseovl/service/leftovers.hpp).
class TempDir {
 public:
  /// No directory.
  TempDir() = default;
  /// `<parent>/<prefix>-XXXXXX`, absolute. Empty parent: $TMPDIR, or /tmp if that is not set or
  /// cannot be used.
  static Result<TempDir> create(const std::string& prefix, std::string parent = {});
  TempDir(TempDir&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TempDir& operator=(TempDir&& other) noexcept;
  ~TempDir();

  const std::string& path() const noexcept { return path_; }
  /// Renames it on the same file system.
  Result<void> move_to(std::string path);
  /// Gives up ownership: the caller removes the directory.
  std::string release() noexcept;

 private:
  explicit TempDir(std::string path) : path_(std::move(path)) {}
  void remove() noexcept;
  std::string path_;
};

/// Removes `path` and everything below it on its file system. A missing path is no failure.
Result<void> remove_tree(const std::string& path);

/// From here on signals that would end this process remove its temporary directories first, but not
/// in forked children. For programs whose set-up takes seconds; signals that a SignalRelay holds
/// arrive when it ends.
void clean_up_on_signals();

}  // namespace heddle
