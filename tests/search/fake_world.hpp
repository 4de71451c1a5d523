// SPDX-License-Identifier: MIT
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "resolver/search/world.hpp"
#include "tests/search/tiny_elf.hpp"

namespace heddle::test {

/// A file system in memory that records requests. Adding a file makes its directory.
class FakeWorld final : public World {
 public:
  void add(const std::string& path, const TinyElf& elf);
  void add_text(const std::string& path, const std::string& content);
  /// Facts of this path fail with `code` though the directory lists it.
  void fail_with(const std::string& path, int code);

  DirId directory(std::string_view path) override;
  DirId subdirectory(DirId base, std::string_view relative) override;
  DirState state(DirId dir) override;
  Presence entry(DirId dir, const EntryName& name) override;
  Result<FileFacts> facts(const std::string& path) override;
  void prefetch(const std::vector<std::string>& paths) override;
  Result<std::string> read(const std::string& path, Part part) override;
  std::string real_path(const std::string& path) override;

  std::vector<std::string> asked;   ///< each directory at its first request
  std::vector<std::string> opened;  ///< paths whose facts were requested
  std::vector<std::string> prefetched;

 private:
  std::map<std::string, std::string> files_;
  std::map<std::string, int> failing_;
  std::map<std::string, std::set<std::string, std::less<>>, std::less<>> directories_;
  std::vector<std::string> ids_;
  std::map<std::string, DirId, std::less<>> by_path_;
};

}  // namespace heddle::test
