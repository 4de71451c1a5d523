// SPDX-License-Identifier: MIT
#include "container-hooks/prune_decisions.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <map>
#include <vector>

#include "container-hooks/entry_lock.hpp"

namespace heddle {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kDay = 24 * 60 * 60;
constexpr std::size_t kKeyLength = 64;  ///< hex digits of the key that names an entry's files

struct Entry {
  std::string stem;
  std::uint64_t bytes = 0;
  std::int64_t used = 0;
};

std::vector<Entry> entries_of(const std::string& folder) {
  std::map<std::string, Entry> by_stem;
  std::error_code gone;
  for (const auto& file : fs::directory_iterator(folder, gone)) {
    const auto name = file.path().filename().string();
    if (name.find('.') != kKeyLength || name.find_first_not_of("0123456789abcdef") != kKeyLength)
      continue;
    struct stat status {};
    if (::lstat(file.path().c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    auto& entry = by_stem[name.substr(0, kKeyLength)];
    entry.bytes += static_cast<std::uint64_t>(status.st_size);
    entry.used = std::max<std::int64_t>(entry.used, status.st_mtim.tv_sec);
  }
  std::vector<Entry> out;
  for (auto& [stem, entry] : by_stem) {
    entry.stem = stem;
    out.push_back(std::move(entry));
  }
  std::sort(out.begin(), out.end(), [](const Entry& a, const Entry& b) { return a.used < b.used; });
  return out;
}

std::vector<fs::path> files_of(const std::string& folder, const std::string& stem) {
  std::vector<fs::path> out;
  std::error_code gone;
  for (const auto& file : fs::directory_iterator(folder, gone))
    if (file.path().filename().string().starts_with(stem + ".")) out.push_back(file.path());
  return out;
}

bool is_map_in_use(const fs::path& file) {
  if (file.extension() != ".map") return false;
  const auto map = open_file(file, O_RDONLY);
  return map && is_held(*map);
}

/// All its files, a temporary one of somebody who was killed too; the lock last.
bool remove_entry(const std::string& folder, const std::string& stem) {
  const auto lock_path = folder + "/" + stem + ".lock";
  const auto lock = lock_entry(lock_path, Access::change, Wait::no);
  if (!lock) return false;
  const auto files = files_of(folder, stem);
  if (std::any_of(files.begin(), files.end(), is_map_in_use)) return false;
  std::error_code gone;
  for (const auto& file : files)
    if (file != lock_path) fs::remove(file, gone);
  fs::remove(lock_path, gone);
  return true;
}

}  // namespace

void prune_decisions(const std::string& folder, const CacheLimits& limits) {
  const auto entries = entries_of(folder);
  const auto now = static_cast<std::int64_t>(std::time(nullptr));
  const auto oldest = now - std::chrono::seconds(limits.unused).count();
  std::uint64_t bytes = 0;
  for (const auto& entry : entries) bytes += entry.bytes;
  for (const auto& entry : entries) {
    if (entry.used >= oldest && bytes <= limits.bytes) break;
    if (remove_entry(folder, entry.stem)) bytes -= entry.bytes;
  }
}

void remove_other_maps(const std::string& map) {
  const fs::path kept(map);
  const auto name = kept.filename().string();
  std::error_code gone;
  for (const auto& file : files_of(kept.parent_path(), name.substr(0, name.find('.'))))
    if (file.extension() == ".map" && file != kept && !is_map_in_use(file)) fs::remove(file, gone);
}

void mark_used(int fd, std::int64_t seen) {
  if (static_cast<std::int64_t>(std::time(nullptr)) - seen >= kDay) (void)::futimens(fd, nullptr);
}

}  // namespace heddle
