// SPDX-License-Identifier: MIT
#include "compat/package_index.hpp"

#include <fcntl.h>

#include <filesystem>

#include "base/fd.hpp"
#include "base/open_regular.hpp"

namespace heddle::compat {

namespace {

constexpr const char* kDatabase = "/var/lib/dpkg";

bool has_line(const std::string& text, const std::string& line) {
  for (auto at = text.find(line); at != text.npos; at = text.find(line, at + 1)) {
    const auto end = at + line.size();
    if ((at == 0 || text[at - 1] == '\n') && (end == text.size() || text[end] == '\n')) return true;
  }
  return false;
}

}  // namespace

/// An image's database is the image's to choose: no link in it leads to a file of the host.
Result<std::string> PackageIndex::read(const std::string& path) const {
  const auto top = open_file(root_.empty() ? "/" : root_, O_PATH | O_DIRECTORY);
  if (!top) return fail(top.error());
  const auto file = open_regular_in(top->get(), path);
  if (!file) return fail(file.error());
  return read_all(file->get(), path, std::size_t{256} << 20);
}

std::string PackageIndex::version(const std::string& package) const {
  const auto status = read(std::string(kDatabase) + "/status");
  if (!status) return {};
  const auto start =
      ("\n" + *status).find("\nPackage: " + package.substr(0, package.find(':')) + "\n");
  if (start == std::string::npos) return {};
  const auto end = status->find("\n\n", start);
  const auto field = status->find("\nVersion: ", start);
  if (field == std::string::npos || field > end) return {};
  const auto value = field + 10;
  return status->substr(value, status->find('\n', value) - value);
}

std::string PackageIndex::search(const std::string& path) const {
  // Merged /usr (a link /lib -> usr/lib): the database may know either name.
  const auto other = path.starts_with("/usr/") ? path.substr(4) : "/usr" + path;
  std::error_code error;
  std::filesystem::directory_iterator entry(root_ + kDatabase + "/info", error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (entry->path().extension() != ".list") continue;
    const auto list = read(std::string(kDatabase) + "/info/" + entry->path().filename().string());
    if (!list || (!has_line(*list, path) && !has_line(*list, other))) continue;
    const auto package = entry->path().stem().string();
    const auto number = version(package);
    return number.empty() ? package : package + " " + number;
  }
  return {};
}

std::string PackageIndex::owner(const std::string& path) {
  if (path.empty()) return {};
  const auto [slot, is_new] = known_.try_emplace(path);
  if (is_new) slot->second = search(path);
  return slot->second;
}

}  // namespace heddle::compat
