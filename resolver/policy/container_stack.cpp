// SPDX-License-Identifier: MIT
#include "resolver/policy/container_stack.hpp"

#include <algorithm>
#include <set>

#include "base/folder_of.hpp"
#include "resolver/policy/find_copies.hpp"
#include "resolver/policy/tagged_folders.hpp"

namespace heddle {
namespace {

std::string file_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::vector<std::string> needs_of(const ElfFacts& elf) {
  std::vector<std::string> out;
  for (const auto& need : elf.dependencies) out.push_back(need.name);
  return out;
}

bool needs_any(const std::vector<std::string>& needs, const std::vector<StackPart>& parts) {
  return std::any_of(needs.begin(), needs.end(), [&](const std::string& need) {
    return std::any_of(parts.begin(), parts.end(), [&](const StackPart& part) {
      return std::find(part.names.begin(), part.names.end(), need) != part.names.end();
    });
  });
}

/// Moves what needs the libraries, or other bindings (libmpi_usempif08 needs libmpi_mpifh).
std::vector<StackPart> bindings_among(std::vector<StackPart> candidates,
                                      const std::vector<StackPart>& libraries) {
  std::vector<StackPart> out;
  for (bool more = true; more;) {
    more = false;
    for (auto part = candidates.begin(); part != candidates.end(); ++part) {
      if (!needs_any(part->needs, libraries) && !needs_any(part->needs, out)) continue;
      out.push_back(std::move(*part));
      candidates.erase(part);
      more = true;
      break;
    }
  }
  return out;
}

/// What a program may ask for that loads its MPI late: mpi_aliases() of all families and bindings.
constexpr const char* kNames[] = {"libmpi.so.12",     "libmpich.so.12",        "libmpi.so.40",
                                  "libmpi_abi.so.0",  "libmpifort.so.12",      "libmpichfort.so.12",
                                  "libmpicxx.so.12",  "libmpichcxx.so.12",     "libmpi_mpifh.so.40",
                                  "libmpi_cxx.so.40", "libmpi_usempif08.so.40"};

class Finder {
 public:
  Finder(ContainerSide& inside, SymbolReader& symbols) : inside_(inside), symbols_(symbols) {}

  void consider(const std::string& path, const FileFacts& file,
                const std::vector<std::string>& names) {
    const auto soname = file.elf.soname.value_or(file_name(path));
    std::vector<std::string> asked_for = names;
    asked_for.push_back(soname);
    if (std::none_of(asked_for.begin(), asked_for.end(),
                     [](const std::string& name) { return may_be_mpi(file_name(name)); }) &&
        !may_be_mpi(file_name(path)))
      return;
    for (auto* list : {&out_.libraries, &rest_})
      for (auto& part : *list)
        if (part.id == file.stamp.id) {
          add_names(part, asked_for);
          return;
        }
    StackPart part{soname, path, file.stamp.id, {}, {}, needs_of(file.elf)};
    add_names(part, asked_for);
    if (const auto* facts = symbols_.of(path)) {
      const auto bytes = inside_.world().read_data(path);
      part.identity = identify_mpi(*facts, bytes ? *bytes : std::string());
    }
    (part.identity.family.empty() ? rest_ : out_.libraries).push_back(std::move(part));
  }

  /// `known`: further libraries that bindings may be of.
  ContainerStack take(const std::vector<StackPart>& known = {}) {
    auto libraries = out_.libraries;
    libraries.insert(libraries.end(), known.begin(), known.end());
    out_.bindings = bindings_among(std::move(rest_), libraries);
    return std::move(out_);
  }
  ContainerStack& out() { return out_; }

 private:
  static void add_names(StackPart& part, const std::vector<std::string>& names) {
    for (const auto& name : names)
      if (name.find('/') == name.npos &&
          std::find(part.names.begin(), part.names.end(), name) == part.names.end())
        part.names.push_back(name);
  }

  ContainerSide& inside_;
  SymbolReader& symbols_;
  ContainerStack out_;
  std::vector<StackPart> rest_;
};

}  // namespace

const StackPart* ContainerStack::part_of(const FileId& id) const {
  for (const auto* list : {&libraries, &bindings})
    for (const auto& part : *list)
      if (part.id == id) return &part;
  return nullptr;
}

bool ContainerStack::is_copy(const StackPart& part) const {
  return std::any_of(copies.begin(), copies.end(),
                     [&](const StackPart& copy) { return copy.id == part.id; });
}

bool ContainerStack::has_to_stay(const StackPart& part) const {
  return stays.contains(folder_of(part.path)) && is_copy(part);
}

void ContainerStack::note_swapped_folders(OsWorld& inside) {
  for (const auto* list : {&libraries, &bindings})
    for (const auto& part : *list)
      if (const auto real = inside.real_path(part.path); !real.empty() && !is_copy(part))
        swapped.insert(folder_of(real));
}

bool ContainerStack::leave(const StackPart& copy, const std::string& why) {
  const auto folder = folder_of(copy.path);
  if (!swapped.contains(folder)) return stays.try_emplace(folder, why).second;
  mixed.try_emplace(copy.path, why);
  return false;
}

void ContainerStack::take_copies() {
  for (const auto& part : copies)
    (part.identity.family.empty() ? bindings : libraries).push_back(part);
}

namespace {

/// What every program finds.
class SystemFiles {
 public:
  explicit SystemFiles(ContainerSide& inside) {
    auto& world = inside.world();
    for (const auto& line : inside.cache().lines())
      if (may_be_mpi(line.name)) files_.insert(world.real_path(std::string(line.path)));
    for (const auto& folder : inside.loader().default_directories)
      folders_.insert(world.real_path(folder));
  }
  bool has(const std::string& real) const {
    return files_.contains(real) || folders_.contains(folder_of(real));
  }

 private:
  std::set<std::string> files_, folders_;
};

}  // namespace

bool find_stack_copies(ContainerSide& inside, SymbolReader& symbols, ContainerStack& stack) {
  auto found =
      find_copies(inside.world(), [](const std::string& name) { return may_be_mpi(name); });
  stack.watched = found.watched;
  const SystemFiles system(inside);
  Finder finder(inside, symbols);
  for (const auto& path : found.paths) {
    const auto file = inside.world().facts(path);
    if (!file || file->elf.machine != inside.loader().machine ||
        file->elf.elf_class != inside.loader().elf_class ||
        stack.part_of(file->stamp.id) != nullptr)
      continue;
    const auto real = inside.world().real_path(path);
    if (!real.empty() && !system.has(real)) finder.consider(real, *file, {});
  }
  auto copies = finder.take(stack.libraries);
  stack.copies = std::move(copies.libraries);
  stack.copies.insert(stack.copies.end(), copies.bindings.begin(), copies.bindings.end());
  return found.complete;
}

void ContainerStack::keep(const std::string& abi) {
  std::erase_if(libraries, [&](const StackPart& part) { return part.identity.abi != abi; });
  if (!libraries.empty()) bindings = bindings_among(std::move(bindings), libraries);
  std::erase_if(copies, [&](const StackPart& part) {
    return !part.identity.family.empty() && part.identity.abi != abi;
  });
}

ContainerStack find_container_stack(ContainerSide& inside, SymbolReader& symbols) {
  Finder finder(inside, symbols);
  auto& out = finder.out();
  for (const auto& program : inside.programs()) {
    const auto& objects = program.closure.objects;
    for (std::size_t i = 1; i < objects.size(); ++i)
      finder.consider(objects[i].path, objects[i].file, objects[i].names);
    for (const auto& missing : program.closure.missing)
      if (may_be_mpi(missing.name) &&
          std::find(out.missing.begin(), out.missing.end(), missing.name) == out.missing.end())
        out.missing.push_back(missing.name);
  }
  out.needed_by_program = !out.empty();
  // What else the image has: further bindings, or the MPI of the programs that a script starts.
  for (const auto& line : inside.cache().lines()) {
    if (!may_be_mpi(line.name) || line.flags != cache_flags(inside.loader())) continue;
    const std::string path(line.path);
    const auto file = inside.world().facts(path);
    if (!file || file->elf.machine != inside.loader().machine) continue;
    if (!out.needed_by_program || out.part_of(file->stamp.id) != nullptr ||
        needs_any(needs_of(file->elf), out.libraries))
      finder.consider(path, *file, {std::string(line.name)});
  }
  // An interpreter in a prefix of its own (conda, Spack): its modules load the MPI beside it.
  if (!out.needed_by_program)
    for (const auto* object : inside.objects())
      for (const auto& folder : tagged_folders(*object, inside.world(), inside.loader()).folders)
        for (const std::string name : kNames) {
          const auto path = folder + name;
          if (inside.world().real_path(path).empty()) continue;
          const auto file = inside.world().facts(path);
          if (file && file->elf.machine == inside.loader().machine)
            finder.consider(path, *file, {name});
        }
  return finder.take();
}

}  // namespace heddle
