// SPDX-License-Identifier: MIT
#include "resolver/build/alias_finder.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <memory>

namespace heddle {
namespace {

namespace fs = std::filesystem;

std::unordered_map<FileId, std::vector<std::string>> list_links(const std::string& folder) {
  std::unordered_map<FileId, std::vector<std::string>> out;
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(folder.c_str()), ::closedir);
  if (!dir) return out;  // a folder that cannot be listed has no aliases we could know of
  while (const dirent* entry = ::readdir(dir.get())) {
    if (entry->d_type != DT_LNK && entry->d_type != DT_UNKNOWN) continue;
    struct stat st {};
    if (::fstatat(::dirfd(dir.get()), entry->d_name, &st, 0) == 0 && S_ISREG(st.st_mode))
      out[file_id(st)].emplace_back(entry->d_name);
  }
  for (auto& [id, names] : out) std::sort(names.begin(), names.end());
  return out;
}

}  // namespace

AliasFinder::AliasFinder() {
  for (const char* name : {"lib", "lib64", "lib32", "libx32", "bin", "sbin"}) {
    std::error_code error;
    const std::string top = std::string("/") + name;
    const std::string below_usr = std::string("/usr/") + name;
    if (fs::is_symlink(top, error) && fs::equivalent(top, below_usr, error) && !error)
      merged_.emplace_back(top + "/", below_usr + "/");
  }
}

const std::vector<std::string>& AliasFinder::links(const std::string& folder, FileId id) {
  static const std::vector<std::string> kNone;
  auto found = folders_.find(folder);
  if (found == folders_.end()) found = folders_.emplace(folder, list_links(folder)).first;
  const auto names = found->second.find(id);
  return names == found->second.end() ? kNone : names->second;
}

std::vector<std::string> AliasFinder::spellings(const std::string& path) const {
  std::error_code error;
  std::vector<std::string> out{fs::absolute(path, error).string(),
                               fs::absolute(path, error).lexically_normal().string()};
  const auto real = fs::canonical(path, error);
  if (!error) out.push_back(real.string());
  const std::size_t known = out.size();
  for (std::size_t i = 0; i < known; ++i) {
    for (const auto& [top, below_usr] : merged_) {
      if (out[i].starts_with(top)) out.push_back(below_usr + out[i].substr(top.size()));
      if (out[i].starts_with(below_usr)) out.push_back(top + out[i].substr(below_usr.size()));
    }
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  // "a/../b" is not always "b", and a link may have moved meanwhile: only what leads to this file.
  std::erase_if(out, [&](const std::string& name) { return !fs::equivalent(name, path, error); });
  return out;
}

}  // namespace heddle
