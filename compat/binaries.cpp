// SPDX-License-Identifier: MIT
#include "compat/binaries.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/find_program.hpp"
#include "base/log.hpp"
#include "resolver/build/app_inputs.hpp"

namespace heddle::compat {
namespace {

namespace fs = std::filesystem;

/// The programs of a folder in another root: links are not followed, so that none leads out of it.
Result<void> walk(NodeTarget& node, const std::string& folder, std::vector<std::string>& out) {
  const auto real = node.world().real_path(folder);
  const auto outside = node.outside(folder);
  std::error_code error;
  std::vector<std::string> found;
  for (fs::recursive_directory_iterator it(outside, error), end; !error && it != end;
       it.increment(error))
    if (it->symlink_status().type() == fs::file_type::regular)
      found.push_back(real + it->path().string().substr(outside.size()));
  if (error) return fail_errno(folder, "cannot list", error.value());
  std::sort(found.begin(), found.end());
  node.world().prefetch(found);
  for (auto& path : found) {
    const auto file = node.world().facts(path);
    // libc and libcap have an interpreter too, and Debian keeps them from being started.
    if (file && file->elf.interp && (file->mode & 0111) != 0) out.push_back(std::move(path));
  }
  return {};
}

Result<void> add_in_root(NodeTarget& node, const std::string& name, std::vector<std::string>& out) {
  const auto outside = node.outside(name);
  if (outside.empty()) return fail_errno(name, "cannot describe", ENOENT);
  std::error_code error;
  if (fs::is_directory(outside, error)) return walk(node, name, out);
  out.push_back(name);
  return {};
}

Result<void> add_here(NodeTarget& node, const std::string& name, std::vector<std::string>& out) {
  const char* variable = std::getenv("PATH");
  const std::string search = variable == nullptr ? "" : variable;
  const auto path = find_program(name, search);
  std::error_code error;
  const auto file = path ? fs::absolute(*path, error).string() : name;
  // A library is rarely executable, and what is no ELF file may be a script or a folder.
  if (const auto facts = node.world().facts(file); facts) {
    out.push_back(file);
    return {};
  } else if (!path && name.find('/') == name.npos && facts.error().code() == ENOENT) {
    return fail(Error::with_code(ENOENT, name, "cannot describe",
                                 "neither a program in PATH nor a file here"));
  } else if (!fs::is_directory(file, error) && facts.error().code() != ENOEXEC) {
    return fail(facts.error());
  }
  AppInputs inputs;
  if (auto added = add_app(inputs, name, search); !added) return fail(std::move(added.error()));
  for (const auto& note : inputs.notes) warn(note);
  for (const auto& root : inputs.roots)
    if (root.kind == RootIs::program) out.push_back(root.path);
  return {};
}

}  // namespace

Result<std::vector<std::string>> find_binaries(NodeTarget& node, const std::string& root,
                                               const std::vector<std::string>& names) {
  std::vector<std::string> out;
  for (const auto& name : names) {
    auto added = root.empty() ? add_here(node, name, out) : add_in_root(node, name, out);
    if (!added) return fail(std::move(added.error()));
  }
  if (out.empty()) return fail(names[0], "there is no dynamic program in it");
  return out;
}

}  // namespace heddle::compat
