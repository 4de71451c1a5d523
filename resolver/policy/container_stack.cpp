// SPDX-License-Identifier: MIT
#include "resolver/policy/container_stack.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <set>
#include <utility>

#include "base/fd.hpp"
#include "base/open_regular.hpp"
#include "resolver/search/search_path.hpp"

namespace heddle::policy {
namespace {

/// Where in an image files that may be an MPI library are.
struct FoundCopies {
  std::vector<std::string> paths;  ///< sorted; files and links to them
  bool complete = true;            ///< false: it has more than is looked at, or can be
  /// Directories in which one that is added later most likely shows: those next to the root, where
  /// a prefix of its own begins, and those with libraries. Each ends in a slash.
  std::vector<std::string> watched;
};

// Debian with an MPI has 14,000 names, a large conda environment 200,000. Listing takes 1 us a name
// and 10 us a directory when they are cached.
constexpr std::size_t kMostNames = 300'000;
constexpr std::size_t kMostFound = 64;
constexpr int kDeepest = 40;
// Each costs a cached start 7 us. Debian with an MPI has 100 that have libraries or are no deeper
// than this.
constexpr std::size_t kMostWatched = 128;
constexpr int kShallow = 2;

/// Directories of the root that change with each container or hold data.
bool may_be_watched(const std::string& name) {
  for (const char* other : {"etc", "tmp", "run", "var", "boot"})
    if (name == other) return false;
  return true;
}

bool is_data(const std::string& path) {
  return path == "/usr/share/" || path == "/usr/include/" || path == "/usr/src/";
}

/// Whether opening a directory failed for what it is: no directory, one of a volume, gone, or one
/// that whoever asks may not look into, and so has no programs from there.
bool is_none_of_ours(int code) {
  return code == ENOTDIR || code == ELOOP || code == EXDEV || code == ENOENT || code == EACCES;
}

class Walk {
 public:
  explicit Walk(FoundCopies& out) : out_(out) {}

  /// `path` ends in '/'.
  void enter(Fd directory, const std::string& path, int depth, bool watched = true) {
    const std::unique_ptr<DIR, int (*)(DIR*)> list(
        depth > kDeepest ? nullptr : ::fdopendir(directory.get()), &::closedir);
    if (!list) {
      out_.complete = false;
      return;
    }
    const int fd = directory.release();  // the list's
    bool libraries = false;
    for (;;) {
      errno = 0;
      const dirent* entry = ::readdir(list.get());
      if (entry == nullptr) {
        if (errno != 0) out_.complete = false;
        break;
      }
      const std::string name = entry->d_name;
      if (name == "." || name == "..") continue;
      if (++names_ > kMostNames || out_.paths.size() >= kMostFound) {
        out_.complete = false;
        break;
      }
      libraries |= name.find(".so") != name.npos;
      const bool may_be_directory = entry->d_type == DT_DIR || entry->d_type == DT_UNKNOWN;
      if (!may_be_directory || depth > 0 || (name != "proc" && name != "sys" && name != "dev"))
        look_at(fd, path + name, name, may_be_directory, depth,
                watched && (depth > 0 || may_be_watched(name)));
    }
    if (watched && (depth <= kShallow || libraries)) watched_.emplace(depth, path);
  }

  /// Those nearest to the root first, when there are too many.
  std::vector<std::string> watched() const {
    std::vector<std::string> out;
    for (const auto& [depth, path] : watched_)
      if (out.size() < kMostWatched) out.push_back(path);
    return out;
  }

 private:
  void look_at(int fd, const std::string& path, const std::string& name, bool may_be_directory,
               int depth, bool watched) {
    if (may_be_directory) {
      // A device's number does not tell a volume: one bound from the same disk has the image's.
      auto below = open_resolved(fd, name, O_RDONLY | O_DIRECTORY | O_NONBLOCK,
                                 RESOLVE_NO_XDEV | RESOLVE_NO_SYMLINKS);
      if (below)
        return enter(std::move(*below), path + "/", depth + 1, watched && !is_data(path + "/"));
      if (!is_none_of_ours(below.error().code())) out_.complete = false;
    }
    if (may_be_mpi(name)) out_.paths.push_back(path);
  }

  FoundCopies& out_;
  std::size_t names_ = 0;
  std::set<std::pair<int, std::string>> watched_;
};

/// Walks the image's own file system: no volume, nothing below /proc, /sys and /dev, no link to a
/// directory. Bounded, since a container waits for it.
FoundCopies find_copies(OsWorld& world) {
  FoundCopies out;
  auto root = world.open("/", O_RDONLY | O_DIRECTORY);
  if (root) {
    Walk walk(out);
    walk.enter(std::move(*root), "/", 0);
    out.watched = walk.watched();
  } else {
    out.complete = false;
  }
  std::sort(out.paths.begin(), out.paths.end());
  return out;
}

/// The kernel's word of a program (/proc/self/exe) is free of links, ld.so's of a library is as it
/// was found (elf/dl-object.c; of what it was itself asked to load: until 2.42).
std::string origin_of(const LoadedObject& object, OsWorld& world, const LoaderProfile& loader) {
  const bool resolved = object.found_by == FoundBy::program &&
                        (object.file.elf.interp.has_value() || loader.glibc_minor >= 42);
  auto path = resolved ? world.real_path(object.path) : object.path;
  path.resize(std::max<std::size_t>(path.rfind('/'), 1));
  return path;
}

/// The absolute directories that an object's RPATH or RUNPATH names, a slash at the end.
std::vector<std::string> tagged_directories(const LoadedObject& object, OsWorld& world,
                                            const LoaderProfile& loader) {
  const auto& elf = object.file.elf;
  const auto text = elf.runpath ? *elf.runpath : elf.rpath.value_or("");
  std::vector<std::string> out;
  if (text.empty()) return out;
  SearchDirs dirs(world, loader);
  SearchList list;
  dirs.fill(list, text, ":", {origin_of(object, world, loader), loader.platform, loader.lib});
  for (const auto* dir : list.dirs)
    if (dir->name.starts_with('/')) out.push_back(dir->name);
  return out;
}

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

/// Besides kMpiSonames what a program may ask for that loads its MPI late.
constexpr const char* kBindings[] = {
    "libmpifort.so.12",   "libmpichfort.so.12", "libmpicxx.so.12",       "libmpichcxx.so.12",
    "libmpi_mpifh.so.40", "libmpi_cxx.so.40",   "libmpi_usempif08.so.40"};

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
  return stays.contains(directory_of(part.path)) && is_copy(part);
}

void ContainerStack::note_swapped_directories(OsWorld& inside) {
  for (const auto* list : {&libraries, &bindings})
    for (const auto& part : *list)
      if (const auto real = inside.real_path(part.path); !real.empty() && !is_copy(part))
        swapped.insert(directory_of(real));
}

bool ContainerStack::leave(const StackPart& copy, const std::string& why) {
  const auto directory = directory_of(copy.path);
  if (!swapped.contains(directory)) return stays.try_emplace(directory, why).second;
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
    std::size_t looked_at = 0;
    for (const auto& line : inside.cache().lines())
      if (may_be_mpi(line.name) && ++looked_at <= kMostMpiLines)
        files_.insert(world.real_path(std::string(line.path)));
    for (const auto& directory : inside.loader().default_directories)
      directories_.insert(world.real_path(directory));
  }
  bool has(const std::string& real) const {
    return files_.contains(real) || directories_.contains(directory_of(real));
  }

 private:
  std::set<std::string> files_, directories_;
};

}  // namespace

bool find_stack_copies(ContainerSide& inside, SymbolReader& symbols, ContainerStack& stack) {
  auto found = find_copies(inside.world());
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
  std::size_t looked_at = 0;
  for (const auto& line : inside.cache().lines()) {
    if (may_be_mpi(line.name) && ++looked_at > kMostMpiLines) break;
    if (!may_be_mpi(line.name) || line.flags != cache_flags(inside.loader())) continue;
    const std::string path(line.path);
    const auto file = inside.world().facts(path);
    if (!file || file->elf.machine != inside.loader().machine) continue;
    if (!out.needed_by_program || out.part_of(file->stamp.id) != nullptr ||
        needs_any(needs_of(file->elf), out.libraries))
      finder.consider(path, *file, {std::string(line.name)});
  }
  // An interpreter in a prefix of its own (conda, Spack): its modules load the MPI beside it.
  if (!out.needed_by_program) {
    std::vector<std::string> names(std::begin(kBindings), std::end(kBindings));
    for (const auto& library : kMpiSonames) names.emplace_back(library.soname);
    for (const auto* object : inside.objects())
      for (const auto& directory : tagged_directories(*object, inside.world(), inside.loader()))
        for (const auto& name : names) {
          const auto path = directory + name;
          if (inside.world().real_path(path).empty()) continue;
          const auto file = inside.world().facts(path);
          if (file && file->elf.machine == inside.loader().machine)
            finder.consider(path, *file, {name});
        }
  }
  return finder.take();
}

}  // namespace heddle::policy
