// SPDX-License-Identifier: MIT
#include "compat/describe.hpp"

#include <elf.h>

#include <algorithm>
#include <set>

#include "compat/loaded_set.hpp"
#include "compat/mpi_family.hpp"

namespace heddle::compat {
namespace {

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

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

void add_missing(const Closure& closure, Program& program) {
  for (const auto& missing : closure.missing) {
    const auto known = std::any_of(program.libraries.begin(), program.libraries.end(),
                                   [&](const Library& l) { return l.soname == missing.name; });
    if (known) continue;
    Library out;
    out.soname = missing.name;
    out.needed_by =
        missing.needed_by == 0 ? program.name : shown_name(closure.objects[missing.needed_by]);
    out.reason = missing.reason;
    program.libraries.push_back(std::move(out));
  }
}

/// Without the loader no search can be told: what the file names itself is all there is.
void add_unsearched(Program& program, const std::string& reason) {
  Library loader;
  loader.soname = base_name(interpreter_of(program.elf));
  loader.reason = reason;
  program.libraries.push_back(std::move(loader));
  for (const auto& dependency : program.elf.dependencies) {
    Library out;
    out.soname = dependency.name;
    out.needed_by = program.name;
    out.reason = "not searched: the loader is missing";
    program.libraries.push_back(std::move(out));
  }
}

void add_closure(NodeTarget& node, const Closure& closure, Program& program) {
  const auto& objects = closure.objects;
  const auto loader = std::find_if(objects.begin(), objects.end(), [](const LoadedObject& object) {
    return object.found_by == FoundBy::interpreter;
  });
  if (loader != objects.end()) {
    program.libraries.push_back(
        described(closure, static_cast<std::size_t>(loader - objects.begin())));
    program.interpreter_soname = program.libraries.back().soname;
  } else {  // nothing needs it, so that it stands in no list; the kernel maps it all the same
    const auto path = interpreter_of(program.elf);
    Library out;
    out.path = path;
    out.found_by = to_string(FoundBy::interpreter);
    if (const auto file = node.world().facts(path)) {
      out.soname = file->elf.soname.value_or(base_name(path));
      out.build_id = file->elf.build_id;
      out.hash = file->hash.hex();
    }
    program.interpreter_soname = out.soname;
    program.libraries.push_back(std::move(out));
  }
  for (std::size_t i = 1; i < objects.size(); ++i)
    if (objects[i].found_by != FoundBy::interpreter)
      program.libraries.push_back(described(closure, i));
  add_missing(closure, program);
}

/// The file itself, without its libraries.
Result<Program> read_program(NodeTarget& node, FactsSource& facts, const std::string& path) {
  Program program;
  program.path = node.world().real_path(path);
  if (program.path.empty()) return fail_errno(path, "cannot describe", ENOENT);
  program.name = base_name(path);
  auto file = facts.facts(program.path, FactsDetail::symbols);
  if (!file) return fail(std::move(file.error()));
  if (file->elf.type != ET_EXEC && file->elf.type != ET_DYN)
    return fail(Error::with_code(ENOEXEC, path, "cannot describe", "neither program nor library"));
  program.elf = std::move(file->elf);
  program.hash = file->hash.hex();
  program.notes = node.notes(program.path);
  const auto mpi = mpi_use(program.elf);
  program.mpi_family = mpi.family;
  program.mpi_soname = mpi.soname;
  return program;
}

bool stands_alone(const ElfFacts& elf) { return !elf.interp && elf.dependencies.empty(); }

}  // namespace

Result<Program> describe(NodeTarget& node, FactsSource& facts, const std::string& path) {
  auto program = read_program(node, facts, path);
  if (!program || stands_alone(program->elf)) return program;
  auto loaded = node.load(*program);
  if (!loaded) return fail(std::move(loaded.error()));
  if (loaded->refused)
    add_unsearched(*program, to_string(loaded->refused->kind));
  else
    add_closure(node, loaded->closure, *program);
  return program;
}

Result<Program> describe(NodeTarget& node, FactsSource& facts, MapTarget& map,
                         const std::string& path) {
  auto program = read_program(node, facts, path);
  if (!program || stands_alone(program->elf)) return program;
  auto loaded = map.load(*program);
  if (!loaded) return fail(std::move(loaded.error()));
  const auto loader = base_name(interpreter_of(program->elf));
  for (auto& object : loaded->closure.objects)
    if (shown_name(object) == loader) object.found_by = FoundBy::interpreter;
  add_closure(node, loaded->closure, *program);
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
      out.reason = "it is in the trace, and not here any more";
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
