// SPDX-License-Identifier: MIT
#include "resolver/policy/container_side.hpp"

#include <dirent.h>
#include <elf.h>
#include <fcntl.h>
#include <linux/openat2.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <sstream>
#include <utility>

#include "base/elf_file.hpp"
#include "base/fd.hpp"
#include "base/find_program.hpp"
#include "base/open_regular.hpp"
#include "base/paths.hpp"
#include "base/try.hpp"
#include "resolver/search/search_path.hpp"

namespace heddle::policy {
namespace {

/// A real ld.so.cache has some dozens of MPI's lines, a hostile one millions.
constexpr std::size_t kMostMpiLines = 4096;

/// Whether it is loaded, not started: an interpreter's module (mpi4py's MPI.so).
bool is_library(const ElfFacts& elf) {
  return elf.dynamic && !elf.dependencies.empty() && (elf.flags_1 & DF_1_PIE) == 0;
}

}  // namespace

Result<std::string> ContainerSide::locate(const std::string& name) {
  if (name.find('/') != name.npos) return name.starts_with('/') ? name : "/" + name;
  std::istringstream directories(path_);
  for (std::string directory; std::getline(directories, directory, ':');)
    // Relative ones are the working directory's, which is unknown.
    if (directory.starts_with('/') && !world_.real_path(directory + "/" + name).empty())
      return directory + "/" + name;
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
    const auto named = env_program(*bytes);
    path = locate(named.empty() ? next : named).value_or(next);
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
  library_path_ = options.ld_library_path;
  objects_.clear();
  for (const auto& program : programs_) objects_.push_back(&program.closure.objects[0]);
  for (const auto& program : programs_)
    for (std::size_t i = 1; i < program.closure.objects.size(); ++i) {
      const auto& object = program.closure.objects[i];
      if (std::ranges::none_of(objects_, [&](const LoadedObject* known) {
            return known->file.stamp.id == object.file.stamp.id;
          }))
        objects_.push_back(&object);
    }
  return true;
}

std::optional<FileFacts> ContainerSide::library(const std::string& path) {
  auto file = world_.facts(path);
  if (!file || file->elf.machine != loader_.machine || file->elf.elf_class != loader_.elf_class)
    return std::nullopt;
  return std::move(*file);
}

const SideFile* ContainerSide::find(const std::string& soname) {
  const auto [slot, is_new] = found_.try_emplace(soname);
  if (!is_new) return slot->second ? &*slot->second : nullptr;
  std::vector<std::string> candidates;
  if (soname == loader_.soname) candidates.push_back(loader_.interpreter);
  for (const auto* object : objects_)
    if (object->found_by != FoundBy::program &&
        (object->file.elf.soname == soname || holds(object->names, soname)))
      candidates.push_back(object->path);
  if (const auto cached = cache_.lookup(soname); !cached.empty()) candidates.emplace_back(cached);
  for (const auto& directory : loader_.default_directories)
    candidates.push_back(directory + soname);
  for (const auto& path : candidates)
    if (auto file = library(path)) {
      slot->second = SideFile{soname, path, std::move(*file)};
      return &*slot->second;
    }
  return nullptr;
}

std::vector<std::string> ContainerSide::library_path() {
  SearchDirs dirs(world_, loader_);
  SearchList list;
  // ld.so ignores an empty value.
  if (!library_path_.empty())
    dirs.fill(list, library_path_, ":;", {"", loader_.platform, loader_.lib});
  std::vector<std::string> out;
  for (const auto* dir : list.dirs)
    if (dir->name.starts_with('/')) out.push_back(dir->name);
  return out;
}

std::vector<LdSoCache::Line> ContainerSide::mpi_lines() const {
  auto out = cache_.lines();
  std::erase_if(out, [](const LdSoCache::Line& line) { return !may_be_mpi(line.name); });
  if (out.size() > kMostMpiLines) out.resize(kMostMpiLines);
  return out;
}

bool ContainerSide::has_python() const {
  return std::ranges::any_of(programs_, [](const ContainerProgram& program) {
    return program.path.find("/python", program.path.rfind('/')) != std::string::npos ||
           std::ranges::any_of(program.closure.objects, [](const LoadedObject& object) {
             return object.requested_as.starts_with("libpython");
           });
  });
}

const StackPart* ContainerStack::own_library() const {
  const auto at = std::ranges::find_if(
      parts, [](const StackPart& part) { return part.is_own && part.is_library(); });
  return at == parts.end() ? nullptr : &*at;
}

const StackPart* ContainerStack::part_of(const FileId& id) const {
  const auto at = std::ranges::find_if(
      parts, [&](const StackPart& part) { return part.is_own && part.id == id; });
  return at == parts.end() ? nullptr : &*at;
}

bool ContainerStack::is_preserved(const StackPart& part) const {
  return part.is_copy && preserved.contains(directory_of(part.path));
}

void ContainerStack::note_swapped_directories(OsWorld& inside) {
  for (const auto& part : parts)
    if (const auto real = inside.real_path(part.path); !real.empty() && !part.is_copy)
      swapped.insert(directory_of(real));
}

bool ContainerStack::preserve(const StackPart& copy, const std::string& why) {
  const auto directory = directory_of(copy.path);
  if (!swapped.contains(directory)) return preserved.try_emplace(directory, why).second;
  mixed.try_emplace(copy.path, why);
  return false;
}

void ContainerStack::consider(ContainerSide& inside, const std::string& path, const FileFacts& file,
                              const std::vector<std::string>& names, bool is_copy) {
  const auto file_name = [](const std::string& of) { return of.substr(of.rfind('/') + 1); };
  const auto soname = file.elf.soname.value_or(file_name(path));
  std::vector<std::string> asked_for = names;
  asked_for.push_back(soname);
  if (!may_be_mpi(file_name(path)) && std::ranges::none_of(asked_for, may_be_mpi, file_name))
    return;
  auto known = std::ranges::find(parts, file.stamp.id, &StackPart::id);
  if (known == parts.end()) {
    StackPart part{soname, path, file.stamp.id, {}, {}, needed_names(file.elf), !is_copy, is_copy};
    if (const auto* facts = inside.symbols().of(path)) {
      const auto bytes = inside.world().read_data(path);
      part.identity = identify_mpi(*facts, bytes ? *bytes : std::string());
    }
    known = parts.insert(parts.end(), std::move(part));
  }
  for (const auto& name : asked_for)
    if (name.find('/') == name.npos && !holds(known->names, name)) known->names.push_back(name);
}

void ContainerStack::drop_unrelated() {
  std::vector<StackPart> kept;
  std::vector<StackPart> rest;
  std::set<std::string> names;
  for (auto& part : parts) {
    if (part.is_library()) names.insert(part.names.begin(), part.names.end());
    (part.is_library() ? kept : rest).push_back(std::move(part));
  }
  take_users(rest, std::move(names), [&](const StackPart& part) {
    kept.push_back(part);
    return part.names;
  });
  parts = std::move(kept);
}

void ContainerStack::keep(const std::string& abi) {
  std::erase_if(
      parts, [&](const StackPart& part) { return part.is_library() && part.identity.abi != abi; });
  if (own_library() != nullptr) drop_unrelated();
}

namespace {

// Debian with an MPI has 14,000 names, a large conda environment 200,000. Listing takes 1 us a name
// and 10 us a directory when they are cached.
constexpr std::size_t kMostNames = 300'000;
constexpr std::size_t kMostFound = 64;    // libraries, and modules
constexpr std::size_t kLongestName = 64;  // of an MPI library
// A linker's has 1 KiB.
constexpr std::uint64_t kLongestDynamic = 64 << 10;
// Read of modules, each with a page at least: 20,000 take 0.6 s.
constexpr std::uint64_t kLeastOfModule = 4096;
constexpr std::uint64_t kMostOfModules = 20'000 * kLeastOfModule;
constexpr int kDeepest = 40;
// Each costs a decided start 7 us. Debian with an MPI has 100.
constexpr std::size_t kMostWatched = 128;
constexpr int kShallow = 2;

/// Not the root's directories that change with each container or hold data.
bool may_be_watched(const std::string& name) {
  for (const char* other : {"etc", "tmp", "run", "var", "boot"})
    if (name == other) return false;
  return true;
}

bool is_data(const std::string& path) {
  return path == "/usr/share/" || path == "/usr/include/" || path == "/usr/src/";
}

/// The error of openat2() for no directory, a volume, a directory that is gone or, since programs
/// cannot read there either, unreadable.
bool may_be_skipped(int code) {
  return code == ENOTDIR || code == ELOOP || code == EXDEV || code == ENOENT || code == EACCES;
}

/// Whether a name in DT_NEEDED may be an MPI library's. Reads only headers and names, and takes
/// their size from `budget`: the image chooses the number of files and their tables.
bool needs_mpi(const Fd& place, std::uint64_t& budget) {
  const auto file = open_regular_at(place.get(), "");
  const auto bytes = file_bytes(file ? file->get() : -1);
  const auto elf = ElfFile::read(bytes);
  const auto* dynamic = elf ? elf->filled_segment(PT_DYNAMIC) : nullptr;
  const auto size = dynamic != nullptr ? dynamic->p_filesz : 0;
  const bool is_readable = size > 0 && size <= kLongestDynamic;
  const auto names = size / sizeof(Elf32_Dyn) * kLongestName;
  const auto cost =
      (elf ? elf->segments.size() * sizeof(Elf64_Phdr) : 0) + (is_readable ? names : 0);
  budget -= std::min(budget, std::max(cost, kLeastOfModule));
  if (!is_readable) return false;
  const auto entries = elf->dynamic_entries();
  if (!entries) return false;
  const auto strings = std::ranges::find(*entries, DT_STRTAB, &Elf64_Dyn::d_tag);
  const auto table = strings == entries->end() ? std::nullopt : elf->place(strings->d_un.d_ptr);
  return table && std::ranges::any_of(*entries, [&](const Elf64_Dyn& entry) {
           if (entry.d_tag != DT_NEEDED || entry.d_un.d_val >= table->left) return false;
           const auto left = std::min<std::uint64_t>(table->left - entry.d_un.d_val, kLongestName);
           const auto name = bytes.text(table->offset + entry.d_un.d_val, left);
           return name && may_be_mpi(name->c_str());
         });
}

/// No volumes, nothing below /proc, /sys and /dev, no links to directories. Bounded, since a
/// container's start waits.
class Walk {
 public:
  explicit Walk(ContainerSide& inside) : modules_(inside.has_python()) {
    if (auto root = inside.world().open("/", O_RDONLY | O_DIRECTORY))
      enter(std::move(*root), "/", 0, true);
    else
      out.complete = false;
    for (const auto& [depth, path] : watched_)
      if (out.watched.size() < kMostWatched) out.watched.push_back(path);
    std::ranges::sort(out.libraries);
    std::ranges::sort(out.modules);
  }

  ImageSearch out;

 private:
  /// `path` ends in '/'.
  void enter(Fd directory, const std::string& path, int depth, bool watched) {
    const std::unique_ptr<DIR, int (*)(DIR*)> list(
        depth > kDeepest ? nullptr : ::fdopendir(directory.get()), &::closedir);
    if (!list) {
      out.complete = false;
      return;
    }
    const int fd = directory.release();  // the list's
    const bool modules = path.ends_with("/site-packages/") || path.ends_with("/dist-packages/");
    bool libraries = modules && modules_;
    for (;;) {
      errno = 0;
      const dirent* entry = ::readdir(list.get());
      if (entry == nullptr) {
        if (errno != 0) out.complete = false;
        break;
      }
      const std::string name = entry->d_name;
      if (name == "." || name == "..") continue;
      if (++names_ > kMostNames) {
        out.complete = false;
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

  void look_at(int fd, const std::string& path, const std::string& name, bool may_be_directory,
               int depth, bool watched) {
    if (may_be_directory) {
      // Not by the device's number: a volume of the same disk has the image's.
      auto below = open_resolved(fd, name, O_RDONLY | O_DIRECTORY | O_NONBLOCK,
                                 RESOLVE_NO_XDEV | RESOLVE_NO_SYMLINKS);
      if (below)
        return enter(std::move(*below), path + "/", depth + 1, watched && !is_data(path + "/"));
      if (!may_be_skipped(below.error().code())) out.complete = false;
    }
    if (may_be_mpi(name)) add(out.libraries, path);
    if (modules_ && name.ends_with(".so") && is_in_packages(path)) look_at_module(fd, path, name);
  }

  void look_at_module(int fd, const std::string& path, const std::string& name) {
    if (budget_ == 0) {
      out.complete = false;
      return;
    }
    if (const auto file = open_resolved(fd, name, O_PATH | O_NOFOLLOW, RESOLVE_NO_XDEV);
        file && needs_mpi(*file, budget_))
      add(out.modules, path);
  }

  void add(std::vector<std::string>& list, const std::string& path) {
    if (list.size() < kMostFound)
      list.push_back(path);
    else
      out.complete = false;
  }

  static bool is_in_packages(const std::string& path) {
    return path.find("/site-packages/") != path.npos || path.find("/dist-packages/") != path.npos;
  }

  const bool modules_;  ///< whether to search modules
  std::uint64_t budget_ = kMostOfModules;
  std::size_t names_ = 0;
  std::set<std::pair<int, std::string>> watched_;
};

/// The absolute directories in an object's RPATH or RUNPATH, with a trailing slash.
std::vector<std::string> tagged_directories(const LoadedObject& object, OsWorld& world,
                                            const LoaderProfile& loader) {
  const auto& elf = object.file.elf;
  const auto text = elf.runpath ? *elf.runpath : elf.rpath.value_or("");
  if (text.empty()) return {};
  // $ORIGIN: a program's path is canonical (/proc/self/exe), a library's as it was found
  // (elf/dl-object.c; up to 2.41 also that of ld.so's argument).
  const bool resolved =
      object.found_by == FoundBy::program && (elf.interp.has_value() || loader.glibc_minor >= 42);
  auto origin = resolved ? world.real_path(object.path) : object.path;
  origin.resize(std::max<std::size_t>(origin.rfind('/'), 1));
  SearchDirs dirs(world, loader);
  SearchList list;
  dirs.fill(list, text, ":", {origin, loader.platform, loader.lib});
  std::vector<std::string> out;
  for (const auto* dir : list.dirs)
    if (dir->name.starts_with('/')) out.push_back(dir->name);
  return out;
}

/// Besides kMpiSonames, the sonames that a program may dlopen.
constexpr const char* kBindings[] = {
    "libmpifort.so.12",   "libmpichfort.so.12", "libmpicxx.so.12",       "libmpichcxx.so.12",
    "libmpi_mpifh.so.40", "libmpi_cxx.so.40",   "libmpi_usempif08.so.40"};

}  // namespace

ContainerStack find_container_stack(ContainerSide& inside) {
  ContainerStack out;
  for (const auto& program : inside.programs()) {
    const auto& objects = program.closure.objects;
    for (std::size_t i = 1; i < objects.size(); ++i)
      out.consider(inside, objects[i].path, objects[i].file, objects[i].names, false);
    for (const auto& missing : program.closure.missing)
      if (may_be_mpi(missing.name) && !holds(out.missing, missing.name))
        out.missing.push_back(missing.name);
  }
  out.needed_by_program = !out.empty();
  // Also further bindings, or the MPI of programs that a script starts.
  for (const auto& line : inside.mpi_lines()) {
    if (line.flags != cache_flags(inside.loader())) continue;
    const std::string path(line.path);
    const auto file = inside.library(path);
    if (!file) continue;
    const auto is_user = [&](const StackPart& part) {
      return part.is_library() &&
             std::ranges::any_of(file->elf.dependencies,
                                 [&](const auto& need) { return holds(part.names, need.name); });
    };
    if (!out.needed_by_program || out.part_of(file->stamp.id) != nullptr ||
        std::ranges::any_of(out.parts, is_user))
      out.consider(inside, path, *file, {std::string(line.name)}, false);
  }
  // What programs that are not known find by LD_LIBRARY_PATH, or without ld.so.cache; and an
  // interpreter in a prefix of its own (conda, Spack), whose modules load the MPI beside it. An
  // image chooses all of them: the worst is time, which the limit of a container's start ends.
  if (!out.needed_by_program) {
    auto searched = inside.library_path();
    if (inside.mpi_lines().empty())
      for (const auto& directory : inside.loader().default_directories)
        searched.push_back(directory);
    std::vector<std::string> names(std::begin(kBindings), std::end(kBindings));
    for (const auto& library : kMpiSonames) names.emplace_back(library.soname);
    for (const auto* object : inside.objects())
      for (auto& directory : tagged_directories(*object, inside.world(), inside.loader()))
        searched.push_back(std::move(directory));
    for (const auto& directory : searched)
      for (const auto& name : names)
        if (!inside.world().real_path(directory + name).empty())
          if (const auto file = inside.library(directory + name))
            out.consider(inside, directory + name, *file, {name}, false);
  }
  out.drop_unrelated();
  return out;
}

ImageSearch search_image(ContainerSide& inside) { return std::move(Walk(inside).out); }

void add_stack_copies(ContainerSide& inside, ContainerStack& stack,
                      const std::vector<std::string>& libraries) {
  auto& world = inside.world();
  // Found by every program.
  std::set<std::string> files;
  std::set<std::string> directories;
  for (const auto& line : inside.mpi_lines()) files.insert(world.real_path(std::string(line.path)));
  for (const auto& directory : inside.loader().default_directories)
    directories.insert(world.real_path(directory));
  for (const auto& path : libraries) {
    const auto file = inside.library(path);
    const auto real = file ? world.real_path(path) : std::string();
    if (real.empty() || stack.part_of(file->stamp.id) != nullptr || files.contains(real) ||
        directories.contains(directory_of(real)))
      continue;
    stack.consider(inside, real, *file, {}, true);
  }
  stack.drop_unrelated();
}

}  // namespace heddle::policy
