// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_stamp.hpp"
#include "base/result.hpp"
#include "resolver/elf/facts_source.hpp"

namespace heddle {

/// The file system as the search sees it, so that tests can fake it and see what was asked. Paths are
/// the loader's (inside `--into ROOTFS` they are the container's). Each directory is listed once.
class World {
 public:
  virtual ~World() = default;
  enum class Presence : std::uint8_t {
    absent,   ///< open(2) would give ENOENT or ENOTDIR
    present,  ///< there is such a name (a dangling link counts: facts() then fails with ENOENT)
  };
  /// Whether `dir` (ends in '/') has an entry `name`, from the directory's listing; a directory that
  /// cannot be listed (mode 0711) is probed for this one name instead.
  virtual Presence entry(std::string_view dir, std::string_view name) = 0;
  /// Whether `dir` is a directory, as stat(2) says: decides if ld.so looks into it again.
  virtual bool is_directory(std::string_view dir) = 0;
  /// The file's facts, as FactsSource::facts gives them.
  virtual Result<FileFacts> facts(const std::string& path) = 0;
  virtual void prefetch(const std::vector<std::string>& paths) = 0;
  /// Content of a small configuration file (/etc/ld.so.cache, /etc/ld.so.preload).
  virtual Result<std::string> read(const std::string& path) = 0;
  /// Absolute, symlink-free form of the folder of `path`, for $ORIGIN of the program
  /// (/proc/self/exe is already resolved there); empty when it does not exist.
  virtual std::string real_path(const std::string& path) = 0;
};

}  // namespace heddle
