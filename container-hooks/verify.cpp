// SPDX-License-Identifier: MIT
#include "container-hooks/verify.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/fd.hpp"
#include "base/log.hpp"
#include "container-hooks/json_text.hpp"
#include "container-hooks/mount_calls.hpp"

namespace heddle {
namespace {

struct Mount {
  std::string device;  ///< "major:minor", decimal
  std::string root;
  std::string point;
  bool is_overlay = false;  ///< else copies of its files
};

std::vector<Mount> our_mounts(const std::string& mountinfo) {
  std::vector<Mount> out;
  std::istringstream lines(mountinfo);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string id, parent, word;
    Mount mount;
    fields >> id >> parent >> mount.device >> mount.root >> mount.point;
    while (fields >> word && word != "-") {
    }
    std::string type, source;
    fields >> type >> source;
    mount.is_overlay = type == "fuse.heddle";
    if (mount.is_overlay || (type == "tmpfs" && source == kMountSource))
      out.push_back(std::move(mount));
  }
  return out;
}

/// maps writes the device in hexadecimal.
std::string decimal_device(const std::string& hex) {
  const auto colon = hex.find(':');
  if (colon == std::string::npos) return {};
  return std::to_string(std::strtoul(hex.c_str(), nullptr, 16)) + ":" +
         std::to_string(std::strtoul(hex.c_str() + colon + 1, nullptr, 16));
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

std::set<std::string> heddle_devices(const std::string& mountinfo) {
  std::set<std::string> out;
  for (const auto& mount : our_mounts(mountinfo)) out.insert(mount.device);
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
    out.push_back({path, devices.contains(decimal_device(device))});
  }
  return out;
}

std::string heddle_mount_point(const std::string& mountinfo) {
  for (const auto& mount : our_mounts(mountinfo))
    if (mount.is_overlay && mount.root == "/") return mount.point;
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

int verify_process(pid_t pid, bool json) {
  const std::string proc = "/proc/" + std::to_string(pid);
  const auto maps = read_file(proc + "/maps");
  const auto mountinfo = read_file(proc + "/mountinfo");
  if (!maps || !mountinfo) {
    const Error& error = (maps ? mountinfo : maps).error();
    report(error.code() == ENOENT ? Error(std::to_string(pid), "there is no such process") : error);
    return exit_failure;
  }
  auto libraries = mapped_libraries(*maps, *mountinfo);
  const auto mount_point = heddle_mount_point(*mountinfo);
  Decision decision;
  Finding finding;
  if (mount_point.empty()) {
    finding = compare_with_decision(libraries, decision);
    finding.swapped = false;
    finding.lines.emplace_back("heddle has no mount in its mount namespace");
  } else {
    const auto name = proc + "/root" + mount_point + "/.heddle/container.json";
    const auto text = read_file(name, 16U << 20);
    auto parsed = text ? parse_decision(*text, name) : Result<Decision>(fail(text.error()));
    if (!parsed) {
      report(parsed.error());
      return exit_failure;
    }
    decision = std::move(*parsed);
    finding = compare_with_decision(libraries, decision);
  }
  return print_finding(finding, libraries, decision,
                       {{"version", 1}, {"pid", pid}, {"mount_point", mount_point}}, json);
}

}  // namespace heddle
