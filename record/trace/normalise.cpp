// SPDX-License-Identifier: MIT
#include "record/trace/normalise.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "record/trace/name_rules.hpp"

namespace heddle::trace {
namespace {

bool starts_with_folder(std::string_view path, std::string_view folder) {
  return path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/');
}

bool is_below_one_of(std::string_view path, std::initializer_list<std::string_view> folders) {
  return std::any_of(folders.begin(), folders.end(), [&](std::string_view folder) {
    return path.size() > folder.size() && starts_with_folder(path, folder);
  });
}

bool is_number(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// /proc/4711/task/4712/fd/3 -> /proc/<pid>/task/<tid>/fd/3
void normalise_proc(std::string_view before, std::string& name) {
  if (!is_number(name)) return;
  if (before == "/proc") name = "<pid>";
  if (before.ends_with("/task") && before.starts_with("/proc/")) name = "<tid>";
}

}  // namespace

Result<void> NormaliseOptions::add_map(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0)
    return fail(text, "not a mapping", "FROM=TO expected");
  std::string from(text.substr(0, equals));
  std::string to(text.substr(equals + 1));
  while (from.size() > 1 && from.back() == '/') from.pop_back();
  while (!to.empty() && to.back() == '/') to.pop_back();
  maps.emplace_back(std::move(from), std::move(to));
  return {};
}

std::vector<std::string> NormaliseOptions::names() const {
  std::vector<std::string> list;
  if (soname) list.emplace_back("soname");
  if (pid) list.emplace_back("pid");
  if (temp) list.emplace_back("temp");
  if (hash) list.emplace_back("hash");
  for (const auto& [from, to] : maps) list.push_back(fmt::format("map:{}={}", from, to));
  return list;
}

Normaliser::Normaliser(NormaliseOptions options) : options_(std::move(options)) {
  std::stable_sort(options_.maps.begin(), options_.maps.end(),
                   [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
}

std::string Normaliser::operator()(std::string_view given,
                                   const std::unordered_set<std::int32_t>& pids) const {
  std::string path(given);
  for (const auto& [from, to] : options_.maps) {
    const bool root = from == "/" && path.starts_with('/');
    if (!root && !starts_with_folder(path, from)) continue;
    path.replace(0, root ? 0 : from.size(), to);
    if (path.empty()) path = "/";
    break;
  }
  const bool in_temp = is_below_one_of(path, {"/tmp", "/var/tmp", "/dev/shm"});
  const bool volatile_folder = in_temp || is_below_one_of(path, {"/run", "/var/run"});
  const bool in_store = is_below_one_of(path, {"/nix/store", "/gnu/store"}) ||
                        path.find("/nix/store/") != std::string::npos;
  std::string out;
  out.reserve(path.size() + 16);
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t slash = std::min(path.find('/', at), path.size());
    std::string name = path.substr(at, slash - at);
    const bool last = slash == path.size();
    // `out` ends with the slash that stands before this component.
    const std::string_view before(out.data(), out.empty() ? 0 : out.size() - 1);
    if (options_.temp)
      replace_temp_name(name) || (in_temp && replace_temp_name_in_temp_folder(name));
    if (options_.pid) {
      normalise_proc(before, name);
      if (volatile_folder) replace_pids(name, pids);
    }
    if (options_.hash) replace_spack_hash(name) || (in_store && replace_nix_hash(name));
    if (options_.soname && last) shorten_soname(name);
    out += name;
    if (!last) out += '/';
    at = slash + 1;
  }
  return out;
}

}  // namespace heddle::trace
