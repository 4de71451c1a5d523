// SPDX-License-Identifier: MIT
#include "resolver/policy/glibc_choice.hpp"

#include <algorithm>
#include <set>

#include "resolver/policy/versions.hpp"

namespace heddle {
namespace {

/// The newest by its number: "GLIBC_2.4" < "GLIBC_2.34".
std::string newest(const std::vector<std::string>& versions) {
  const auto number = [](const std::string& version) {
    return version.substr(std::min(version.find('_'), version.size() - 1) + 1);
  };
  return *std::max_element(
      versions.begin(), versions.end(),
      [&](const std::string& a, const std::string& b) { return is_older(number(a), number(b)); });
}

std::vector<std::string> public_versions(const ElfFacts& facts) {
  auto out = facts.version_definitions;
  std::erase(out, "GLIBC_PRIVATE");
  return out;
}

/// The file's own ld.so first: it is no library that a cache leads to.
const FileFacts* container_file(ContainerSide& inside, const std::string& soname,
                                Result<FileFacts>& ld_so) {
  if (soname == inside.loader().soname) return ld_so ? &*ld_so : nullptr;
  const auto* found = inside.find(soname);
  return found == nullptr ? nullptr : &found->file;
}

}  // namespace

GlibcChoice choose_glibc(const GlibcFamily& host, ContainerSide& inside,
                         const std::vector<const HostFile*>& host_files) {
  GlibcChoice out;
  const auto& loader = inside.loader();
  out.container_version = "2." + std::to_string(loader.glibc_minor);
  auto ld_so = inside.world().facts(loader.interpreter);
  std::vector<std::string> wanted;
  std::string wanted_by;
  bool by_stack = false;
  std::string lacking;  // an image of but what its own program needs may have no libm
  for (const auto* file : host_files) {
    std::set<std::string> sonames;
    for (const auto& need : file->file.elf.version_needs)
      if (host.files.contains(need.file)) sonames.insert(need.file);
    for (const auto& soname : sonames) {
      const auto* theirs = container_file(inside, soname, ld_so);
      if (theirs == nullptr) {
        if (lacking.empty())
          lacking = file->path + " needs " + soname + ", which the container's glibc " +
                    out.container_version + " lacks";
        continue;
      }
      const auto missing = missing_versions(file->file.elf, soname, theirs->elf);
      if (missing.empty()) continue;
      // The MPI itself explains more than some library behind it.
      const bool better = !by_stack && !file->stack_part.empty();
      if (better) wanted.clear();
      by_stack |= better;
      if (wanted.empty()) wanted_by = file->path;
      if (wanted_by == file->path) wanted.insert(wanted.end(), missing.begin(), missing.end());
    }
  }
  if (wanted.empty() && lacking.empty()) {
    out.why = "the container's glibc " + out.container_version +
              " has all that the host's libraries need";
    return out;
  }
  const auto reason = wanted.empty() ? lacking
                                     : wanted_by + " needs " + newest(wanted) +
                                           ", the container's glibc is " + out.container_version;
  out.why = reason;
  out.taken = Side::host;
  for (const auto& [soname, file] : host.files) {
    const auto* theirs = container_file(inside, soname, ld_so);
    if (theirs != nullptr) {
      const auto mine = public_versions(file.file.elf);
      const auto lost = compare_offers(mine, public_versions(theirs->elf));
      if (lost == Contains::second || lost == Contains::neither)
        out.conflict = reason + ", and the host's glibc " + host.version + " (" + file.path +
                       ") lacks versions that the container's " + soname + " has";
    }
    const auto* found = soname == loader.soname ? nullptr : inside.find(soname);
    out.verdicts.push_back({soname, Side::host, file.path,
                            found != nullptr          ? found->path
                            : soname == loader.soname ? loader.interpreter
                                                      : "",
                            "glibc", "glibc goes as a whole: " + reason});
  }
  for (const auto& soname : glibc_sonames()) {
    const auto* theirs = inside.find(soname);
    // Names without a number are aids to debug with (LD_PRELOAD=libSegFault.so).
    if (theirs != nullptr && !soname.ends_with(".so") && !host.files.contains(soname) &&
        is_glibc_part(theirs->file.elf))
      out.warnings.push_back(theirs->path + ": it belongs to the container's glibc " +
                             out.container_version + " and the host's " + host.version +
                             " has none: programs that load it do not start");
  }
  return out;
}

}  // namespace heddle
