// SPDX-License-Identifier: MIT
#include "resolver/policy/served_names.hpp"

#include <filesystem>

namespace heddle {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxFolderFiles = 10'000;

void take_folder(const PluginFolder& folder, ServedNames& out) {
  std::error_code error;
  std::size_t count = 0;
  for (fs::recursive_directory_iterator walk(folder.path, error), end; !error && walk != end;
       walk.increment(error)) {
    std::error_code none;
    if (!walk->is_regular_file(none) || ++count > kMaxFolderFiles) continue;
    const auto below = walk->path().lexically_relative(folder.path).string();
    const auto real = fs::canonical(walk->path(), none).string();
    if (!none) out.files.emplace(folder.view_name + "/" + below, real);
  }
}

void take_file(const HostFile& file, const std::vector<std::string>& asked_for, ServedNames& out) {
  for (const auto& name : asked_for) {
    if (name.empty() || name.find('/') != name.npos) continue;
    out.files[name] = file.path;
    out.sonames[name] = file.soname;
  }
}

}  // namespace

ServedNames served_names(const SideChoice& sides, const GlibcChoice& glibc,
                         const GlibcFamily& family) {
  ServedNames out;
  for (const auto* pick : sides.picks())
    if (pick->taken == Side::host) take_file(pick->host, pick->names, out);
  if (glibc.taken == Side::host)
    for (const auto& [soname, file] : family.files) take_file(file, {soname}, out);
  for (const auto& folder : sides.folders()) take_folder(folder, out);
  return out;
}

bool is_plugin_name(const std::string& name) {
  return name.find('/') != name.npos && name.find(".so") != name.npos;
}

}  // namespace heddle
