// SPDX-License-Identifier: MIT
#include <algorithm>

#include "resolver/policy/decider.hpp"
#include "resolver/policy/versions.hpp"

namespace heddle {
namespace {

bool holds(const std::vector<std::string>& list, const std::string& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

MpiSide side_of(const MpiIdentity& identity, const std::string& soname, const std::string& path) {
  return {identity.family, identity.version, soname, identity.abi, path};
}

}  // namespace

bool Decider::choose_mpi() {
  if (options_.installs.empty() && options_.roots.empty())
    return options_.mpi_wanted ? refuse("the host has no MPI to give to the container",
                                        "fs-resolve mpi shows what is found; --mpi PREFIX adds one")
                               : nothing("no library of the host is asked for");
  const auto& program = inside_.programs()[0].path;
  if (stack_.empty()) stack_.take_copies();
  if (stack_.empty()) {
    if (!options_.roots.empty()) return true;
    return nothing(program + " needs no MPI library, and the image has none");
  }
  if (options_.installs.empty()) return true;
  match_ = match_mpi(options_.installs, stack_);
  if (match_.library)
    out_.container_mpi =
        side_of(match_.library->identity, match_.library->soname, match_.library->path);
  if (match_.install == nullptr) {
    std::string host;
    for (const auto& install : options_.installs)
      host += (host.empty() ? "" : " and ") + describe(install.identity) + " (" +
              install.library.path + ", " + install.identity.abi + ")";
    const auto wants = match_.library
                           ? "the container's " + describe(match_.library->identity) + " (" +
                                 match_.library->path + ", " + match_.library->identity.abi + ")"
                           : "the container's " + program + " needs " + stack_.missing.front();
    return refuse(
        wants +
            (match_.library ? ": the host has no MPI of that ABI, only " : ": the host has only ") +
            host,
        "take an image built with the host's MPI family, or name another of the host's "
        "with --mpi PREFIX");
  }
  const auto& install = *match_.install;
  auto all = stack_.libraries;
  for (const auto& part : stack_.copies)
    if (!part.identity.family.empty() && stack_.part_of(part.id) == nullptr) all.push_back(part);
  for (const auto& part : all)
    if (part.identity.abi != install.identity.abi)
      out_.warnings.push_back("the image has " + describe(part.identity) + " (" + part.path +
                              ") too: programs that use it run on it as before; name the program "
                              "that is to be swapped");
  stack_.keep(install.identity.abi);
  out_.mpi = side_of(install.identity, install.library.soname, install.library.path);
  const auto elf = host_.world().facts(install.library.path);
  if (!elf) return refuse(elf.error().message());
  if (elf->elf.machine != inside_.loader().machine ||
      elf->elf.elf_class != inside_.loader().elf_class)
    return refuse(program + " is for another CPU than the host's " + install.library.path);
  return true;
}

const MpiFile* Decider::host_binding(const StackPart& part) const {
  const auto& install = *match_.install;
  for (const auto& binding : install.bindings) {
    const auto aliases = mpi_aliases(binding.soname, install.identity.abi);
    for (const auto& name : part.names)
      if (holds(aliases, name)) return &binding;
  }
  return nullptr;
}

bool Decider::pass_gate() {
  if (match_.install == nullptr) return true;
  const auto& install = *match_.install;
  const auto host_name = describe(install.identity);
  // What a program loads is to be replaced with the library, or not at all.
  for (const auto& part : stack_.bindings) {
    const bool loaded =
        std::any_of(inside_.objects().begin(), inside_.objects().end(),
                    [&](const LoadedObject* object) { return object->file.stamp.id == part.id; });
    if (host_binding(part) != nullptr) continue;
    if (loaded)
      return refuse(inside_.programs()[0].path + " needs " + part.soname + " of the container's " +
                        (match_.library ? describe(match_.library->identity) : "MPI") +
                        ": the host's " + host_name + " (" + install.library.path +
                        ") has no such bindings",
                    "install the host's Fortran or C++ bindings beside its libmpi; Open MPI 5 has "
                    "none for C++");
    out_.warnings.push_back(part.path + ": the host's " + host_name +
                            " has no such bindings: a program that loads it mixes both");
  }
  std::vector<std::string> host_files = {install.library.path};
  for (const auto& binding : install.bindings) host_files.push_back(binding.path);
  const auto missing =
      missing_symbols(inside_, inside_symbols_, stack_, host_.symbols(), host_files);
  if (!missing.empty()) {
    std::vector<std::string> names;
    for (const auto& one : missing) names.push_back(one.symbol);
    const bool host_is_newer = match_.library &&
                               match_.library->identity.family == install.identity.family &&
                               is_older(match_.library->identity.version, install.identity.version);
    return refuse(
        missing[0].user + " needs " + shortened(names) + ", which the host's " + host_name + " (" +
            install.library.path + ") does not export" +
            (match_.library ? "; the container's is " + describe(match_.library->identity) : ""),
        host_is_newer
            ? "newer versions have it no longer: use an older MPI on the host, or an image "
              "built with a newer one"
            : "use a newer MPI on the host, or an image built with an older one");
  }
  judge_copies(install);
  if (!match_.library) return true;
  const auto& theirs = match_.library->identity;
  if (theirs.family == install.identity.family &&
      is_older(install.identity.version, theirs.version))
    out_.warnings.push_back("the host's " + host_name + " is older than the container's " +
                            describe(theirs));
  const auto lost =
      lost_functions(inside_symbols_, match_.library->path, host_.symbols(), install.library.path);
  if (!lost.empty() && !stack_.needed_by_program)
    out_.warnings.push_back("the host's " + host_name + " lacks " + shortened(lost) + " of the " +
                            "container's: a program that calls one of them will end there");
  return true;
}

/// What programs that use `part` might miss with the host's; empty: nothing.
std::string Decider::lacks_of(const StackPart& part, const MpiInstall& install) {
  const auto host_name = describe(install.identity);
  if (part.identity.family.empty())
    return host_binding(part) != nullptr ? "" : "the host's " + host_name + " has no such bindings";
  const auto lost =
      lost_functions(inside_symbols_, part.path, host_.symbols(), install.library.path);
  return lost.empty() ? "" : "the host's " + host_name + " lacks " + shortened(lost);
}

/// Programs that nobody named use them: what these might miss with the host's is left to them.
void Decider::judge_copies(const MpiInstall& install) {
  stack_.note_swapped_folders(inside_.world());
  for (const auto& part : stack_.copies)
    if (auto why = lacks_of(part, install); !why.empty())
      stack_.leave(part, part.path + ": " + why);
}

Result<void> Decider::take_host_libraries() {
  const auto add = [&](const MpiInstall& install, const std::string& part) -> Result<void> {
    if (auto added = host_.add(install.library.path, part); !added) return added;
    folders_.insert(folders_.end(), install.plugin_folders.begin(), install.plugin_folders.end());
    return {};
  };
  if (match_.install != nullptr) {
    const auto& install = *match_.install;
    if (auto added = add(install, describe(install.identity)); !added) return added;
    for (const auto& binding : install.bindings) {
      const auto names = mpi_aliases(binding.soname, install.identity.abi);
      const auto is_it = [&](const StackPart& part) { return host_binding(part) == &binding; };
      const bool wanted = std::any_of(stack_.bindings.begin(), stack_.bindings.end(), is_it) ||
                          std::any_of(stack_.copies.begin(), stack_.copies.end(), is_it);
      const bool asked_for = std::any_of(names.begin(), names.end(), [&](const auto& name) {
        return holds(stack_.missing, name);
      });
      if (!wanted && !asked_for) continue;
      if (auto added = host_.add(binding.path, "bindings"); !added) return added;
    }
  }
  for (const auto& root : options_.roots)
    if (auto added = add(root, "asked for"); !added) return added;
  if (!host_.missing().empty())
    refuse("the host's MPI is not whole: " + host_.missing()[0],
           "ldd " + (out_.mpi ? out_.mpi->path : std::string("its library")));
  return {};
}

std::optional<ContainerFile> Decider::container_file(const std::vector<std::string>& names) {
  for (const auto& name : names)
    if (const auto* found = inside_.find(name)) return *found;
  return std::nullopt;
}

bool Decider::take_bindings(const MpiInstall& install, SideChoice& sides) {
  const auto force = [&](const MpiFile& file, std::vector<std::string> names) {
    sides.force(file.soname, names, container_file(names),
                "the host's " + describe(install.identity) + " is asked for");
  };
  auto names = install.aliases;
  for (const auto& part : stack_.libraries)
    if (part.identity.abi == install.identity.abi)
      names.insert(names.end(), part.names.begin(), part.names.end());
  for (const auto& part : stack_.copies)
    if (!part.identity.family.empty()) names.push_back(part.soname);
  for (const auto& name : stack_.missing)
    if (stands_for(install.aliases, install.identity.abi, name)) names.push_back(name);
  force(install.library, names);
  for (const auto& binding : install.bindings) {
    if (!host_.files().contains(binding.soname)) continue;
    auto asked_for = mpi_aliases(binding.soname, install.identity.abi);
    for (const auto* list : {&stack_.bindings, &stack_.copies})
      for (const auto& part : *list)
        if (host_binding(part) == &binding)
          asked_for.insert(asked_for.end(), part.names.begin(), part.names.end());
    force(binding, asked_for);
  }
  return true;
}

}  // namespace heddle
