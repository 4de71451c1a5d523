// SPDX-License-Identifier: MIT
#include "fsgen/guided_environment.hpp"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "base/child.hpp"
#include "base/try.hpp"

namespace heddle {

Environment::Environment() : entries_(own_environment()) {}

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

void Environment::prepend(std::string_view name, const std::string& value) {
  remove(name, value);
  const auto theirs = get(name);
  set(name, theirs && !theirs->empty() ? value + ":" + *theirs : value);
}

void Environment::remove(std::string_view name, const std::string& value) {
  const auto list = get(name);
  if (!list) return;
  std::string out = ":" + *list + ":";
  for (auto at = out.find(":" + value + ":"); at != out.npos; at = out.find(":" + value + ":"))
    out.erase(at, value.size() + 1);
  if (out.size() < list->size() + 2)
    set(name, out.size() > 2 ? out.substr(1, out.size() - 2) : std::string());
}

void leave_standing_mount() {
  ::unsetenv("HEDDLE_INDEX");
  Environment environment;
  const auto library = audit_library_path();
  if (!library || !environment.get("LD_AUDIT")) return;
  environment.remove("LD_AUDIT", *library);
  ::setenv("LD_AUDIT", environment.get("LD_AUDIT")->c_str(), 1);
}

std::vector<std::string> daemon_environment() {
  std::vector<std::string> out = Environment().entries();
  std::erase_if(out, [](const std::string& entry) {
    return entry.starts_with("LD_") || entry.starts_with("HEDDLE_");
  });
  return out;
}

Result<std::string> audit_library_path() {
  const std::string here = TRY(own_program_dir());
  std::string path =
      std::filesystem::path(here + "/../lib/heddle/libheddle-audit.so").lexically_normal().string();
  if (::access(path.c_str(), R_OK) != 0)
    return fail_errno(path, "cannot read the audit library", errno,
                      "is heddle installed completely?");
  // rtld.c splits LD_AUDIT at colons and expands $ in each part: neither can be escaped.
  if (path.find_first_of(":$") != path.npos)
    return fail(path, "cannot be used in LD_AUDIT", "there is a ':' or '$' in it",
                "install heddle at a path without them");
  return path;
}

void add_listed(std::vector<std::string>& directories, const char* variable) {
  const char* value = std::getenv(variable);
  std::istringstream words(value ? value : "");
  for (std::string word; std::getline(words, word, ':');)
    if (!word.empty()) directories.push_back(word);
}

}  // namespace heddle
