// SPDX-License-Identifier: MIT
#include "record/trace/normalise.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/paths.hpp"

namespace heddle::trace {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_alnum(char c) { return is_digit(c) || is_lower(c) || is_upper(c); }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f'); }
bool is_python(char c) { return is_digit(c) || is_lower(c) || c == '_'; }

/// Smaller numbers in names are mostly counters, though containers have small pids.
constexpr std::int32_t kSmallestPid = 100;

template <class Test>
bool all_of(std::string_view text, Test test) {
  return std::all_of(text.begin(), text.end(), test);
}

/// Whether six letters and digits look drawn by mkstemp(3): `A8x2Qz`, whose kind changes at least
/// twice, not `input1`, `Report` or `202401`. Misses one random name in twenty.
bool looks_random(std::string_view text) {
  if (!all_of(text, is_alnum)) return false;
  int changes = 0;
  for (std::size_t i = 1; i < text.size(); ++i) {
    const bool capital_starts_word = i == 1 && is_upper(text[0]) && is_lower(text[1]);
    const bool same =
        is_digit(text[i]) == is_digit(text[i - 1]) && is_upper(text[i]) == is_upper(text[i - 1]);
    changes += !same && !capital_starts_word;
  }
  return changes >= 2;
}

bool replace(std::string& name, std::size_t at, std::size_t length, const char* by) {
  name.replace(at, length, by);
  return true;
}

// The rules. Each changes one component of a path and returns true, or leaves it. If uncertain they
// leave it: a difference too many is visible, a hidden one is not.

/// `libx.so.1.2.3` -> `libx.so.1`. Only versions may follow `.so.`: not `a.so.bak`, `libx.so.1.gz`.
bool shorten_soname(std::string& name) {
  const std::size_t so = name.rfind(".so.");
  if (so == std::string::npos || so == 0) return false;
  const std::string_view tail = std::string_view(name).substr(so + 4);
  std::size_t major = 0;
  while (major < tail.size() && is_digit(tail[major])) ++major;
  if (major == 0 || major == tail.size() || tail[major] != '.') return false;
  // Further parts may end in letters, as in OpenSSL's .so.1.0.2k.
  for (std::size_t at = major; at < tail.size();) {
    if (tail[at] != '.') return false;
    const std::size_t end = std::min(tail.find('.', at + 1), tail.size());
    const std::string_view part = tail.substr(at + 1, end - at - 1);
    if (part.empty() || !is_digit(part[0]) || !all_of(part, is_alnum)) return false;
    at = end;
  }
  name.resize(so + 4 + major);
  return true;
}

/// Each number of three or more digits in `pids` -> `<pid>`.
bool replace_pids(std::string& name, const std::unordered_set<std::int32_t>& pids) {
  bool changed = false;
  for (std::size_t at = 0; at < name.size();) {
    if (!is_digit(name[at])) {
      ++at;
      continue;
    }
    std::size_t end = at;
    while (end < name.size() && is_digit(name[end])) ++end;
    std::int32_t number = 0;
    const auto parsed = std::from_chars(name.data() + at, name.data() + end, number);
    if (parsed.ec == std::errc() && number >= kSmallestPid && pids.contains(number) &&
        name[at] != '0') {
      changed = replace(name, at, end - at, "<pid>");
      end = at + 5;
    }
    at = end;
  }
  return changed;
}

/// Names of `prefix`, `length` characters of `test`, and optionally an extension.
struct TempName {
  std::string_view prefix;
  std::size_t length;
  bool (*test)(char);
  bool anywhere;  ///< or only below a directory for temporary files
};
constexpr TempName kTempNames[] = {
    {"tmp_obj_", 6, is_alnum, true},     // git, object-file.c
    {"tmp_pack_", 6, is_alnum, true},    // git, pack-write.c
    {"tmp_idx_", 6, is_alnum, true},     // git
    {".nfs", 24, is_hex, true},          // Linux, fs/nfs/unlink.c
    {"TryCompile-", 6, is_alnum, true},  // CMake's scratch directories
    {"cc", 6, is_alnum, false},          // gcc: /tmp/ccA8x2Qz.o
    {"tmp.", 10, is_alnum, false},       // mktemp(1)
    {"tmp", 8, is_python, false},        // Python's tempfile
    {"etilqs_", 16, is_alnum, false}};   // SQLite

/// Names of these prefixes and a number, and optionally `-` and more: Open MPI's session
/// directories and PMIx's shared memory (src/mca/gds/ds_base).
constexpr std::string_view kNumberedNames[] = {
    "smseg-", "smdataseg-", "smlockseg-", "pmix_dstor_ds12_", "pmix_dstor_ds21_", "pid.", "jf."};

bool replace_numbered_name(std::string& name) {
  for (const std::string_view prefix : kNumberedNames) {
    if (!name.starts_with(prefix)) continue;
    const std::size_t end =
        std::min(name.find_first_not_of("0123456789", prefix.size()), name.size());
    return end > prefix.size() && (end == name.size() || name[end] == '-') &&
           replace(name, prefix.size(), end - prefix.size(), "<temp>");
  }
  return false;
}

bool replace_temp_name(std::string& name, bool in_temp) {
  if (in_temp && replace_numbered_name(name)) return true;
  for (const auto& [prefix, length, test, anywhere] : kTempNames) {
    const std::size_t end = prefix.size() + length;
    if ((anywhere || in_temp) && name.starts_with(prefix) && name.size() >= end &&
        all_of(std::string_view(name).substr(prefix.size(), length), test) &&
        (end == name.size() || name[end] == '.'))
      return replace(name, prefix.size(), length, "<temp>");
  }
  if (name.starts_with(".fuse_hidden") && name.size() >= 28 &&
      all_of(std::string_view(name).substr(12), is_hex))
    return replace(name, 12, std::string::npos, "<temp>");  // libfuse, hidden_name()
  // CPython, importlib/_bootstrap_external.py: x.cpython-311.pyc.<id of an object>
  const std::size_t pyc = name.rfind(".pyc.");
  if (pyc != std::string::npos && name.size() > pyc + 10 &&
      all_of(std::string_view(name).substr(pyc + 5), is_digit))
    return replace(name, pyc + 5, std::string::npos, "<temp>");
  if (name.starts_with("cmTC_") && name.size() >= 10 &&  // CMake
      all_of(std::string_view(name).substr(5, 5), is_hex) &&
      (name.size() == 10 || !is_alnum(name[10])))
    return replace(name, 5, 5, "<temp>");
  // mkstemp(3) and mkdtemp(3): six characters at the end, or before an extension.
  std::size_t end = in_temp ? name.size() : 0;
  for (int tries = 0; tries < 2; ++tries) {
    if (end >= 6 && looks_random(std::string_view(name).substr(end - 6, 6)) &&
        (end == 6 || !is_alnum(name[end - 7])))
      return replace(name, end - 6, 6, "<temp>");
    const std::size_t dot = name.rfind('.');
    if (dot == std::string::npos || dot == 0 || !in_temp) return false;
    end = dot;
  }
  return false;
}

/// Spack: `zlib-1.3-<32 of a-z2-7>` -> `zlib-1.3-<hash>`.
bool replace_spack_hash(std::string& name) {
  const auto base32 = [](char c) { return is_lower(c) || (c >= '2' && c <= '7'); };
  if (name.size() < 36 || name[name.size() - 33] != '-') return false;
  const std::string_view hash = std::string_view(name).substr(name.size() - 32);
  return all_of(hash, base32) && replace(name, name.size() - 32, 32, "<hash>");
}

/// Nix and Guix, below their store: `<32 of Nix's base 32>-zlib-1.3` -> `<hash>-zlib-1.3`.
bool replace_nix_hash(std::string& name) {
  // Nix leaves e, o, t and u out (libutil/hash.cc).
  const auto base32 = [](char c) {
    return is_digit(c) || (is_lower(c) && c != 'e' && c != 'o' && c != 't' && c != 'u');
  };
  if (name.size() < 34 || name[32] != '-') return false;
  return all_of(std::string_view(name).substr(0, 32), base32) && replace(name, 0, 32, "<hash>");
}

bool is_below_one_of(std::string_view path, std::initializer_list<std::string_view> directories) {
  return std::any_of(directories.begin(), directories.end(), [&](std::string_view directory) {
    return path.size() > directory.size() && is_at_or_below(path, directory);
  });
}

/// /proc/4711/task/4712/fd/3 -> /proc/<pid>/task/<tid>/fd/3
void normalise_proc(std::string_view before, std::string& name) {
  if (name.empty() || !all_of(name, is_digit)) return;
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
    if (!root && !is_at_or_below(path, from)) continue;
    path.replace(0, root ? 0 : from.size(), to);
    if (path.empty()) path = "/";
    break;
  }
  const bool in_temp = is_below_one_of(path, {"/tmp", "/var/tmp", "/dev/shm"});
  const bool volatile_directory = in_temp || is_below_one_of(path, {"/run", "/var/run"});
  const bool in_store = is_below_one_of(path, {"/nix/store", "/gnu/store"}) ||
                        path.find("/nix/store/") != std::string::npos;
  std::string out;
  out.reserve(path.size() + 16);
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t slash = std::min(path.find('/', at), path.size());
    std::string name = path.substr(at, slash - at);
    const bool last = slash == path.size();
    // Without the slash before this component, with which `out` ends.
    const std::string_view before(out.data(), out.empty() ? 0 : out.size() - 1);
    if (options_.temp) replace_temp_name(name, in_temp);
    if (options_.pid) {
      normalise_proc(before, name);
      if (volatile_directory) replace_pids(name, pids);
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
