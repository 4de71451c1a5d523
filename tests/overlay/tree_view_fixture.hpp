// SPDX-License-Identifier: MIT
#pragma once

// A directory tree, served at `.t` of a mount.

#include <sys/xattr.h>

#include <nlohmann/json.hpp>
#include <set>

#include "fuseovl/mount/stats_attribute.hpp"
#include "tests/overlay/overlay_support.hpp"

namespace heddle::test {

inline struct stat status_of(const std::string& path) {
  struct stat out {};
  if (::lstat(path.c_str(), &out) != 0) throw Error::from_errno(path, "lstat");
  return out;
}

inline std::set<std::string> names_below(const std::string& directory) {
  std::set<std::string> out;
  for (const auto& entry : fs::recursive_directory_iterator(directory))
    out.insert(entry.path().lexically_relative(directory).string());
  return out;
}

class TreeView : public ::testing::Test {
 protected:
  void SetUp() override {
    HEDDLE_NEEDS_FUSE();
    fs::permissions(dir_.path(), fs::perms(0755));
    fs::create_directory(source());
  }
  std::string source() const { return dir_ / "src"; }
  std::string native(const std::string& name) const { return source() + "/" + name; }
  std::string add(const std::string& name, const std::string& content, unsigned mode = 0644) {
    return write_text_file(native(name), content, mode);
  }
  /// Serves `directory`, else the source.
  void mount(std::vector<std::string> options = {}, const std::string& directory = {}) {
    MapMaker maker;
    maker.add_tree(directory.empty() ? source() : directory);
    options.insert(options.end(), {"--prefetch", "0", "--log", dir_ / "log"});
    mount_.emplace(maker.write(dir_ / "map"), dir_ / "mnt", std::move(options));
  }
  std::string served(const std::string& name) const { return *mount_ / (".t/0/" + name); }
  nlohmann::json stats() const {
    return nlohmann::json::parse(value_or_throw(read_stats_text(mount_->path())));
  }
  std::uint64_t requests(const std::string& kind) const { return stats()["requests"][kind]; }
  /// Requests but for those of stats().
  std::uint64_t requests() const {
    const auto now = stats();
    return now["requests_total"].get<std::uint64_t>() -
           now["requests"]["getxattr"].get<std::uint64_t>();
  }
  std::string log() const { return read_file(dir_ / "log").value_or(""); }

  TestDir dir_;
  std::optional<Mount> mount_;
};

}  // namespace heddle::test
