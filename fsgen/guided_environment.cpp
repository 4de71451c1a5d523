// SPDX-License-Identifier: MIT
#include "fsgen/guided_environment.hpp"

#include <unistd.h>

#include <filesystem>

#include "base/child.hpp"
#include "resolver/map/learn_format.hpp"
#include "resolver/map/static_tls.hpp"

namespace heddle {

Environment Environment::current() {
  std::vector<std::string> entries;
  for (char** entry = ::environ; entry && *entry; ++entry) entries.emplace_back(*entry);
  return Environment(std::move(entries));
}

std::optional<std::string> Environment::get(std::string_view name) const {
  for (const auto& entry : entries_)
    if (entry.size() > name.size() && entry[name.size()] == '=' && entry.starts_with(name))
      return entry.substr(name.size() + 1);
  return std::nullopt;
}

void Environment::set(std::string_view name, std::string_view value) {
  std::string line = std::string(name) + "=" + std::string(value);
  for (auto& entry : entries_) {
    if (entry.size() > name.size() && entry[name.size()] == '=' && entry.starts_with(name)) {
      entry = std::move(line);
      return;
    }
  }
  entries_.push_back(std::move(line));
}

std::vector<std::string> daemon_environment() {
  std::vector<std::string> out = Environment::current().entries();
  std::erase_if(out, [](const std::string& entry) {
    return (entry.starts_with("LD_") && !entry.starts_with("LD_LIBRARY_PATH=")) ||
           entry.starts_with("HEDDLE_");
  });
  return out;
}

Result<std::string> audit_library_path() {
  auto here = own_program_dir();
  if (!here) return here;
  std::string path = std::filesystem::path(*here + "/../lib/heddle/libheddle-audit.so")
                         .lexically_normal()
                         .string();
  if (::access(path.c_str(), R_OK) != 0)
    return fail_errno(path, "cannot read the audit library", errno,
                      "is heddle installed completely?");
  return path;
}

void guide(Environment& environment, const Guidance& guidance) {
  const auto before = [&](const char* name, const std::string& ours) {
    const auto theirs = environment.get(name);
    environment.set(name, theirs && !theirs->empty() ? ours + ":" + *theirs : ours);
  };
  if (guidance.loader == LoaderKind::environment) {
    before("LD_LIBRARY_PATH", guidance.view_path);
    return;
  }
  before("LD_AUDIT", guidance.audit_library);
  environment.set("HEDDLE_INDEX", guidance.index_path);
  if (!guidance.counters_path.empty()) environment.set("HEDDLE_COUNTERS", guidance.counters_path);
  if (!guidance.learn_log.empty()) environment.set(learn_format::kVariable, guidance.learn_log);
  if (guidance.static_tls_bytes == 0) return;
  const auto tunables = environment.get("GLIBC_TUNABLES");
  environment.set(kSavedTunables, tunables ? "GLIBC_TUNABLES=" + *tunables : "");
  environment.set("GLIBC_TUNABLES",
                  merge_tunables(tunables.value_or(""), guidance.static_tls_bytes));
}

}  // namespace heddle
