// SPDX-License-Identifier: MIT
#include "compat/describe.hpp"

#include <elf.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "base/find_program.hpp"
#include "base/log.hpp"
#include "base/paths.hpp"
#include "base/try.hpp"
#include "resolver/build/app_inputs.hpp"
#include "resolver/mpi/mpi_family.hpp"

namespace heddle::compat {
namespace {

namespace fs = std::filesystem;

/// The programs of a directory in another root. Links are not followed: they may lead out of it.
Result<void> add_directory(NodeTarget& node, const std::string& directory,
                           std::vector<std::string>& out) {
  const auto real = node.world().real_path(directory);
  const auto outside = node.outside(directory);
  std::error_code error;
  std::vector<std::string> found;
  for (fs::recursive_directory_iterator it(outside, error), end; !error && it != end;
       it.increment(error))
    if (it->symlink_status().type() == fs::file_type::regular)
      found.push_back(real + it->path().string().substr(outside.size()));
  if (error) return fail_errno(directory, "cannot list", error.value());
  std::sort(found.begin(), found.end());
  node.world().prefetch(found);
  for (auto& path : found) {
    const auto file = node.world().facts(path);
    // libc and libcap have an interpreter too; on Debian they are not executable.
    if (file && file->elf.interp && (file->mode & 0111) != 0) out.push_back(std::move(path));
  }
  return {};
}

Result<void> add_in_root(NodeTarget& node, const std::string& name, std::vector<std::string>& out) {
  const auto outside = node.outside(name);
  if (outside.empty()) return fail_errno(name, "cannot describe", ENOENT);
  std::error_code error;
  if (fs::is_directory(outside, error)) return add_directory(node, name, out);
  out.push_back(name);
  return {};
}

Result<void> add_here(NodeTarget& node, const std::string& name, std::vector<std::string>& out) {
  const auto path = find_program(name);
  std::error_code error;
  const auto file = path ? fs::absolute(*path, error).string() : name;
  // A library is rarely executable; a file that is not ELF may be a script or a directory.
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
  TRY(add_app(inputs, name));
  for (const auto& note : inputs.notes) warn(note);
  for (const auto& root : inputs.roots)
    if (root.kind == RootIs::program) out.push_back(root.path);
  return {};
}

Library described(const Closure& closure, std::size_t index) {
  const auto& object = closure.objects[index];
  Library out;
  out.soname = shown_name(object);
  out.path = object.path;
  out.found_by = to_string(object.found_by);
  if (object.needed_by)
    out.needed_by = *object.needed_by == 0 ? base_name(closure.objects[0].path)
                                           : shown_name(closure.objects[*object.needed_by]);
  out.build_id = object.file.elf.build_id;
  out.hash = object.file.hash.hex();
  std::set<std::string> versions;
  for (const auto& other : closure.objects)
    for (const auto& need : other.file.elf.version_needs)
      if (need.file == out.soname ||
          std::find(object.names.begin(), object.names.end(), need.file) != object.names.end())
        versions.insert(need.version);
  out.versions.assign(versions.begin(), versions.end());
  return out;
}

void add_unresolved(Program& program, std::string soname, std::string needed_by,
                    std::string reason) {
  Library out;
  out.soname = std::move(soname);
  out.needed_by = std::move(needed_by);
  out.reason = std::move(reason);
  program.libraries.push_back(std::move(out));
}

/// The direct dependencies: without a loader there is no search.
void add_unsearched(Program& program, const std::string& reason) {
  add_unresolved(program, base_name(interpreter_of(program.elf)), "", reason);
  for (const auto& dependency : program.elf.dependencies)
    add_unresolved(program, dependency.name, program.name, "not searched: the loader is missing");
}

void add_closure(NodeTarget& node, const Closure& closure, Program& program) {
  const auto& objects = closure.objects;
  const auto loader = std::find_if(objects.begin(), objects.end(), [](const LoadedObject& object) {
    return object.found_by == FoundBy::interpreter;
  });
  if (loader != objects.end()) {
    program.libraries.push_back(
        described(closure, static_cast<std::size_t>(loader - objects.begin())));
  } else {  // the kernel maps it, also when no object needs it
    const auto path = interpreter_of(program.elf);
    Library out;
    out.path = path;
    out.found_by = to_string(FoundBy::interpreter);
    if (const auto file = node.world().facts(path)) {
      out.soname = file->elf.soname.value_or(base_name(path));
      out.build_id = file->elf.build_id;
      out.hash = file->hash.hex();
    }
    program.libraries.push_back(std::move(out));
  }
  program.interpreter_soname = program.libraries.back().soname;
  for (std::size_t i = 1; i < objects.size(); ++i)
    if (objects[i].found_by != FoundBy::interpreter)
      program.libraries.push_back(described(closure, i));
  for (const auto& missing : closure.missing)
    if (std::none_of(program.libraries.begin(), program.libraries.end(),
                     [&](const Library& known) { return known.soname == missing.name; }))
      add_unresolved(program, missing.name,
                     missing.needed_by == 0 ? program.name : shown_name(objects[missing.needed_by]),
                     missing.reason);
}

/// The first MPI library among the file's dependencies.
void add_mpi(Program& program) {
  const auto& elf = program.elf;
  for (const auto& dependency : elf.dependencies)
    for (const auto& [soname, family] : kMpiSonames)
      if (program.mpi_soname.empty() && dependency.name == soname) {
        program.mpi_soname = soname;
        program.mpi_family = family;
      }
  // libmpi.so.12 is MPICH's ABI or an Open MPI 1.10. Open MPI's predefined handles are the
  // addresses of such objects; MPICH's are numbers.
  if (!program.mpi_soname.empty() &&
      std::any_of(elf.undefined_symbols.begin(), elf.undefined_symbols.end(),
                  [](const DynamicSymbol& s) { return s.name.starts_with("ompi_mpi_"); }))
    program.mpi_family = "Open MPI";
}

/// The program without its libraries.
Result<Program> read_program(NodeTarget& node, FactsSource& facts, const std::string& path) {
  Program program;
  program.path = node.world().real_path(path);
  if (program.path.empty()) return fail_errno(path, "cannot describe", ENOENT);
  program.name = base_name(path);
  auto file = TRY(facts.facts(program.path, FactsDetail::symbols));
  if (file.elf.type != ET_EXEC && file.elf.type != ET_DYN)
    return fail(Error::with_code(ENOEXEC, path, "cannot describe", "neither program nor library"));
  program.elf = std::move(file.elf);
  program.hash = file.hash.hex();
  program.notes = node.notes(program.path);
  add_mpi(program);
  return program;
}

}  // namespace

Result<std::vector<std::string>> find_binaries(NodeTarget& node, const std::string& root,
                                               const std::vector<std::string>& names) {
  std::vector<std::string> out;
  for (const auto& name : names)
    TRY(root.empty() ? add_here(node, name, out) : add_in_root(node, name, out));
  if (out.empty()) return fail(names[0], "there is no dynamic program in it");
  return out;
}

Result<Program> describe(NodeTarget& node, FactsSource& facts, const std::string& path,
                         MapTarget* map) {
  auto program = TRY(read_program(node, facts, path));
  if (!program.elf.interp && program.elf.dependencies.empty()) return program;
  auto loaded = TRY(map != nullptr ? map->load(program) : node.load(program));
  if (loaded.refused) {
    add_unsearched(program, to_string(loaded.refused->kind));
    return program;
  }
  if (map != nullptr)
    for (auto& object : loaded.closure.objects)
      if (shown_name(object) == base_name(interpreter_of(program.elf)))
        object.found_by = FoundBy::interpreter;
  add_closure(node, loaded.closure, program);
  return program;
}

void add_dlopened(NodeTarget& node, Program& program, const std::vector<std::string>& paths) {
  std::set<std::string> known;
  for (const auto& library : program.libraries) {
    known.insert(node.world().real_path(library.path));
    known.insert(library.soname);
  }
  for (const auto& path : paths) {
    const auto real = node.world().real_path(path);
    if (!known.insert(real.empty() ? path : real).second) continue;
    Library out;
    out.dlopened = true;
    out.soname = base_name(path);
    if (real.empty()) {
      out.reason = "it is in the trace, but no longer here";
    } else {
      const auto file = node.world().facts(path);
      if (!file || file->elf.type != ET_DYN || !file->elf.dynamic || file->elf.interp) continue;
      if (file->elf.soname && !file->elf.soname->empty()) out.soname = *file->elf.soname;
      out.path = path;
      out.build_id = file->elf.build_id;
      out.hash = file->hash.hex();
    }
    if (!known.insert(out.soname).second && out.soname != base_name(path)) continue;
    program.libraries.push_back(std::move(out));
  }
}

}  // namespace heddle::compat
