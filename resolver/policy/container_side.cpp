// SPDX-License-Identifier: MIT
#include "resolver/policy/container_side.hpp"

#include <elf.h>

#include <algorithm>

#include "base/find_program.hpp"
#include "base/try.hpp"

namespace heddle::policy {
namespace {

/// What is loaded by others (an interpreter's module: mpi4py's MPI.so), not started.
bool is_library(const ElfFacts& elf) {
  return elf.dynamic && !elf.dependencies.empty() && (elf.flags_1 & DF_1_PIE) == 0;
}

}  // namespace

Result<std::string> ContainerSide::locate(const std::string& name) {
  if (name.find('/') != name.npos) return name.starts_with('/') ? name : "/" + name;
  for (const char* directory : {"/usr/local/bin/", "/usr/bin/", "/bin/", "/usr/sbin/", "/sbin/"})
    if (!world_.real_path(directory + name).empty()) return directory + name;
  return fail_errno(name, "no such program in the container", ENOENT,
                    "name it by its absolute path there");
}

Result<bool> ContainerSide::add_program(const std::string& name, const SearchOptions& options,
                                        std::string& reason) {
  auto path = TRY(locate(name));
  auto file = world_.facts(path);
  for (int depth = 0; !file && file.error().code() == ENOEXEC; ++depth) {
    const auto bytes = world_.read(path);
    const auto next = bytes ? script_interpreter(*bytes) : "";
    if (next.empty() || depth == kMostScripts)
      return fail(path, "not a program", "neither an ELF file nor a #! script");
    path = next;
    file = world_.facts(path);
  }
  if (!file) return fail(std::move(file.error()));
  if (!file->elf.interp && !is_library(file->elf)) {
    reason = path + " is a static program: nothing to swap";
    return false;
  }
  const auto loader =
      TRY(read_loader_profile(world_, file->elf.interp.value_or(LoaderProfile{}.interpreter)));
  auto closure = TRY(resolve(world_, loader, path, options));
  if (programs_.empty()) {
    loader_ = loader;
    if (auto bytes = world_.read(loader.cache_path)) cache_ = LdSoCache(std::move(*bytes), loader_);
  } else if (loader.interpreter != loader_.interpreter) {
    return fail(path, "cannot be decided together with " + programs_[0].path,
                "their loaders differ", "ask for each by itself");
  }
  programs_.push_back({path, std::move(closure)});
  objects_.clear();
  for (const auto& program : programs_) objects_.push_back(&program.closure.objects[0]);
  for (const auto& program : programs_)
    for (std::size_t i = 1; i < program.closure.objects.size(); ++i) {
      const auto& object = program.closure.objects[i];
      if (std::none_of(objects_.begin(), objects_.end(), [&](const LoadedObject* known) {
            return known->file.stamp.id == object.file.stamp.id;
          }))
        objects_.push_back(&object);
    }
  return true;
}

const ContainerFile* ContainerSide::find(const std::string& soname) {
  const auto [slot, is_new] = found_.try_emplace(soname);
  if (!is_new) return slot->second ? &*slot->second : nullptr;
  for (const auto* object : objects_) {
    const auto& names = object->names;
    if (object->found_by == FoundBy::program ||
        (object->file.elf.soname != soname &&
         std::find(names.begin(), names.end(), soname) == names.end()))
      continue;
    slot->second = ContainerFile{object->path, object->file};
    return &*slot->second;
  }
  std::vector<std::string> candidates;
  if (const auto cached = cache_.lookup(soname); !cached.empty()) candidates.emplace_back(cached);
  for (const auto& directory : loader_.default_directories)
    candidates.push_back(directory + soname);
  for (const auto& path : candidates) {
    auto file = world_.facts(path);
    if (!file || file->elf.machine != loader_.machine || file->elf.elf_class != loader_.elf_class)
      continue;
    slot->second = ContainerFile{path, std::move(*file)};
    return &*slot->second;
  }
  return nullptr;
}

}  // namespace heddle::policy
