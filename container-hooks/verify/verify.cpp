// SPDX-License-Identifier: MIT
#include "container-hooks/verify/verify.hpp"

#include <fcntl.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/fd.hpp"
#include "base/log.hpp"
#include "base/mounts.hpp"
#include "base/open_regular.hpp"
#include "base/try.hpp"
#include "container-hooks/host/mount_calls.hpp"

namespace heddle::hook {
namespace {

bool is_overlay(const MountEntry& mount) { return mount.type == "fuse.heddle"; }

/// maps writes it as "major:minor", in hexadecimal.
dev_t device_of(const std::string& text) {
  char* end = nullptr;
  const auto number = [&end](const char* digits) {
    return static_cast<unsigned>(std::strtoul(digits, &end, 16));
  };
  const auto high = number(text.c_str());
  return *end == ':' ? makedev(high, number(end + 1)) : 0;
}

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool is_library(const std::string& path) {
  const auto name = base_name(path);
  return name.find(".so") != std::string::npos && !name.ends_with(".cache");
}

/// A mapped file goes by its own name, "libucp.so.0.0.0", not by the link that led to it.
bool goes_by(const MappedLibrary& library, const std::string& soname) {
  const auto name = base_name(library.path);
  return library.name == soname || name == soname || name.starts_with(soname + ".");
}

bool is_mpi(const std::string& soname) {
  return soname.starts_with("libmpi") || soname.starts_with("libmpich");
}

}  // namespace

std::set<dev_t> heddle_devices(const std::string& mountinfo) {
  std::set<dev_t> out;
  for (const auto& mount : parse_mountinfo(mountinfo))
    if (is_overlay(mount) || (mount.type == "tmpfs" && mount.source == kMountSource))
      out.insert(mount.device);
  return out;
}

std::vector<MappedLibrary> mapped_libraries(const std::string& maps, const std::string& mountinfo) {
  const auto devices = heddle_devices(mountinfo);
  std::vector<MappedLibrary> out;
  std::set<std::string> seen;
  std::istringstream lines(maps);
  for (std::string line; std::getline(lines, line);) {
    // address perms offset dev inode   path (proc(5))
    std::istringstream fields(line);
    std::string address, permissions, offset, device, inode, path;
    fields >> address >> permissions >> offset >> device >> inode >> std::ws;
    std::getline(fields, path);
    if (!path.starts_with('/') || !is_library(path) || !seen.insert(path).second) continue;
    out.push_back({path, devices.contains(device_of(device))});
  }
  return out;
}

std::string heddle_mount_point(const std::string& mountinfo) {
  for (const auto& mount : parse_mountinfo(mountinfo))
    if (is_overlay(mount) && mount.root == "/") return mount.point;
  return {};
}

Finding compare_with_decision(const std::vector<MappedLibrary>& libraries,
                              const Decision& decision) {
  Finding out;
  bool any_mpi = false;
  bool all_right = true;
  for (const auto& library : libraries) {
    const auto name = base_name(library.path);
    const auto verdict =
        std::find_if(decision.verdicts.begin(), decision.verdicts.end(),
                     [&](const Verdict& entry) { return goes_by(library, entry.soname); });
    std::string line = (library.from_host ? "host       " : "container  ") + library.path;
    if (verdict != decision.verdicts.end() && verdict->from_host && !library.from_host) {
      all_right = false;
      line += "  NOT swapped: the host's was decided on (" + verdict->why + ")";
    }
    if (is_mpi(name)) {
      any_mpi = true;
      if (!library.from_host && verdict == decision.verdicts.end()) {
        all_right = false;
        line += "  NOT swapped: the map does not have this name";
      }
    }
    out.lines.push_back(std::move(line));
  }
  if (!any_mpi) out.lines.emplace_back("it has loaded no MPI library");
  out.swapped = any_mpi && all_right;
  return out;
}

int print_finding(const Finding& finding, const std::vector<MappedLibrary>& libraries,
                  const Decision& decision, Json about, bool json) {
  if (json) {
    about["swapped"] = finding.swapped;
    about["mpi"] = to_json_text(decision.host_mpi);
    Json list = Json::array();
    for (const auto& library : libraries)
      list.push_back({{"path", to_json_text(library.path)},
                      {"from", library.from_host ? "host" : "container"}});
    about["libraries"] = std::move(list);
    Json lines = Json::array();
    for (const auto& line : finding.lines) lines.push_back(to_json_text(line));
    about["lines"] = std::move(lines);
    std::puts(to_text(about, 2).c_str());
  } else {
    for (const auto& line : finding.lines) std::puts(escape_for_terminal(line).c_str());
    std::puts(finding.swapped ? ("swapped: " + decision.host_mpi).c_str() : "NOT swapped");
  }
  return finding.swapped ? exit_done : exit_no;
}

Result<int> verify_process(pid_t pid, bool json) {
  const std::string proc = "/proc/" + std::to_string(pid);
  const auto maps = read_file(proc + "/maps");
  if (!maps && maps.error().code() == ENOENT)
    return fail(std::to_string(pid), "there is no such process");
  if (!maps) return fail(maps.error());
  const auto mountinfo = TRY(read_file(proc + "/mountinfo"));
  const auto libraries = mapped_libraries(*maps, mountinfo);
  const auto mount_point = heddle_mount_point(mountinfo);
  Decision decision;
  if (!mount_point.empty()) {
    const auto name = proc + "/root" + mount_point + "/.heddle/container.json";
    const Fd root = TRY(open_file(proc + "/root", O_PATH | O_DIRECTORY));
    const Fd file = TRY(open_regular_in(root.get(), mount_point + "/.heddle/container.json"));
    const auto text = TRY(read_all(file.get(), name, 16U << 20));
    decision = TRY(parse_decision(text, name));
  }
  auto finding = compare_with_decision(libraries, decision);
  if (mount_point.empty()) {
    finding.swapped = false;
    finding.lines.emplace_back("heddle has no mount in its mount namespace");
  }
  return print_finding(finding, libraries, decision,
                       {{"version", 1}, {"pid", pid}, {"mount_point", mount_point}}, json);
}

}  // namespace heddle::hook
