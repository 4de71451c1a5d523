// SPDX-License-Identifier: MIT
#include "compat/target.hpp"

#include <elf.h>
#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/elf_file.hpp"
#include "base/fd.hpp"
#include "base/open_regular.hpp"
#include "base/paths.hpp"
#include "base/try.hpp"
#include "resolver/map/map_reader.hpp"
#include "resolver/search/search.hpp"
#include "resolver/search/search_path.hpp"

namespace heddle::compat {
namespace {

constexpr const char* kPackageDatabase = "/var/lib/dpkg";
constexpr std::size_t kMostRefused = 8;

/// `path` without `.`, `..` and doubled slashes; empty when it is not absolute.
std::string normal_path(std::string_view path) {
  if (!path.starts_with('/') || path.find('\0') != path.npos) return {};
  return std::filesystem::path(path).lexically_normal().string();
}

std::string with_slash(const std::string& directory) {
  auto name = normal_path(directory);
  while (name.ends_with('/')) name.pop_back();
  return name + "/";
}

/// Calls LibraryDirectories::on_look at the begin and end of an access.
class Access {
 public:
  Access(const LibraryDirectories* allowed, std::string_view directory) : allowed_(allowed) {
    notify(directory);
  }
  ~Access() { notify({}); }
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;

 private:
  void notify(std::string_view directory) const {
    if (allowed_ != nullptr && allowed_->on_look) allowed_->on_look(directory);
  }
  const LibraryDirectories* allowed_;
};

/// A machine's files, and one program that is known by an artifact's facts alone.
class ProgramWorld final : public World {
 public:
  /// Files outside `allowed` (nullptr: there are none) are absent, and not accessed.
  ProgramWorld(World& base, const LibraryDirectories* allowed, const std::string& path,
               FileFacts file)
      : base_(base), allowed_(allowed), path_(path), file_(std::move(file)) {}

  DirId directory(std::string_view path) override {
    if (allowed_ == nullptr) return base_.directory(path);
    if (refuse(std::string(path))) return kRefused;
    const auto name = with_slash(std::string(path));
    const Access access(allowed_, name);
    return base_.directory(name);
  }
  DirId subdirectory(DirId base, std::string_view relative) override {
    return base == kRefused ? kRefused : base_.subdirectory(base, relative);
  }
  DirState state(DirId dir) override {
    return dir == kRefused ? DirState{ENOENT, false} : base_.state(dir);
  }
  Presence entry(DirId dir, const EntryName& name) override {
    return dir == kRefused ? Presence::absent : base_.entry(dir, name);
  }
  Result<FileFacts> facts(const std::string& path) override {
    if (path == path_) return file_;
    if (!may_open(path)) {
      refuse(directory_of(path));
      return fail_errno(path, "not looked at", ENOENT);
    }
    // Opens it. The parse is no access to the directory: a slow one does not mean that it hangs.
    if (allowed_ != nullptr) prefetch({path});
    return base_.facts(name_of(path));
  }
  void prefetch(const std::vector<std::string>& paths) override {
    if (allowed_ == nullptr) return base_.prefetch(paths);
    for (const auto& path : paths) {
      if (!may_open(path)) continue;
      const auto name = normal_path(path);
      const Access access(allowed_, directory_of(name));
      base_.prefetch({name});
    }
  }
  using World::read;
  Result<std::string> read(const std::string& path, Part part) override {
    if (part == Part::whole) return base_.read(path, part);
    if (!may_open(path)) return fail_errno(path, "not looked at", ENOENT);
    return base_.read(name_of(path), part);
  }
  /// The program's path with its directory resolved; unchanged when there is no such directory.
  std::string real_path(const std::string& path) override {
    if (path != path_) return real(path);
    const auto slash = path_.rfind('/');
    if (slash == path_.npos || slash == 0) return path_;
    const Access access(allowed_, path_.substr(0, slash));
    const auto directory = real(path_.substr(0, slash));
    return directory.empty() ? path_ : (directory == "/" ? "" : directory) + path_.substr(slash);
  }

  /// The first kMostRefused directories that were not opened.
  std::set<std::string> refused;

 private:
  /// Any directory that may not be opened.
  static constexpr DirId kRefused = ~DirId{0};
  bool may_open(const std::string& path) const {
    return allowed_ == nullptr || allowed_->contain(path);
  }
  std::string name_of(const std::string& path) const {
    return allowed_ == nullptr ? path : normal_path(path);
  }
  bool refuse(const std::string& path) {
    if (may_open(path)) return false;
    if (refused.size() < kMostRefused) refused.insert(path);
    return true;
  }
  std::string real(const std::string& path) {
    return may_open(path) ? base_.real_path(name_of(path)) : "";
  }

  World& base_;
  const LibraryDirectories* allowed_;
  const std::string& path_;
  FileFacts file_;
};

bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text + "\n").find("\n" + line + "\n") != std::string::npos;
}

constexpr std::uint32_t kIsaNeeded = 0xc0008002;  // GNU_PROPERTY_X86_ISA_1_NEEDED, binutils 2.36
constexpr std::uint32_t kIsaUsed = 0xc0010002;

std::uint32_t word_at(std::string_view bytes, std::size_t at) {
  std::uint32_t value = 0;
  if (at + sizeof value <= bytes.size()) std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::size_t padded(std::size_t size, std::size_t align) {
  return (size + align - 1) / align * align;
}

/// The properties of an NT_GNU_PROPERTY_TYPE_0 note (Linux Extensions to gABI): type, size, data
/// padded to the class's word.
void read_properties(std::string_view text, std::size_t align, ElfNotes& notes) {
  for (std::size_t at = 0; at + 8 <= text.size();) {
    const auto type = word_at(text, at);
    const std::size_t size = word_at(text, at + 4);
    if (size > text.size() - at - 8) return;
    if (type == kIsaNeeded && size == 4) notes.isa_needed |= word_at(text, at + 8);
    if (type == kIsaUsed && size == 4) notes.isa_used |= word_at(text, at + 8);
    at += 8 + padded(size, align);
  }
}

/// A map's object as an object of a closure.
LoadedObject loaded(const MapObject& object) {
  LoadedObject out;
  out.path = object.path;
  out.file.stamp = object.stamp;
  out.file.hash = object.hash;
  out.found_by = FoundBy::path;
  auto& elf = out.file.elf;
  if (!object.soname.empty()) elf.soname = object.soname;
  for (const auto& name : object.needed)
    elf.dependencies.push_back({Dependency::Kind::needed, name});
  elf.version_definitions = object.version_definitions;
  for (const auto& need : object.version_needs)
    if (const auto colon = need.rfind(':'); colon != need.npos)
      elf.version_needs.push_back({need.substr(0, colon), need.substr(colon + 1), false});
  return out;
}

}  // namespace

Result<ElfNotes> read_elf_notes(int fd, const std::string& path) {
  static_assert(std::endian::native == std::endian::little);
  ElfNotes notes;
  const FileBytes bytes = file_bytes(fd);
  const auto elf = ElfFile::read(bytes);
  if (!elf && elf.error().code() == ENOEXEC)
    return fail(Error::with_code(ENOEXEC, path, "not an ELF file"));
  if (!elf || elf->is_swapped()) return notes;
  elf->visit_notes([&](std::uint32_t type, std::string_view owner, std::string_view text) {
    if (owner != "GNU") return false;
    if (type == NT_GNU_PROPERTY_TYPE_0) read_properties(text, elf->is_64() ? 8 : 4, notes);
    if (type == NT_GNU_ABI_TAG && text.size() >= 16 && word_at(text, 0) == ELF_NOTE_OS_LINUX)
      notes.kernel = fmt::format("{}.{}.{}", word_at(text, 4), word_at(text, 8), word_at(text, 12));
    return false;
  });
  return notes;
}

bool runs_here(std::uint16_t machine) {
#if defined(__x86_64__)
  return machine == EM_X86_64 || machine == EM_386;
#elif defined(__aarch64__)
  return machine == EM_AARCH64 || machine == EM_ARM;
#else
  static_cast<void>(machine);
  return true;
#endif
}

std::string interpreter_of(const ElfFacts& elf) {
  if (elf.interp) return *elf.interp;
  if (elf.machine == EM_386) return "/lib/ld-linux.so.2";
  if (elf.machine == EM_AARCH64) return "/lib/ld-linux-aarch64.so.1";
  return LoaderProfile{}.interpreter;
}

std::string shown_name(const LoadedObject& object) {
  if (object.file.elf.soname && !object.file.elf.soname->empty()) return *object.file.elf.soname;
  return object.path.substr(object.path.rfind('/') + 1);
}

std::uint32_t Target::isa_levels() {
  static const auto kLevels = read_cpu_levels().isa_levels;
  return kLevels;
}

std::string Target::kernel() {
  utsname name{};
  return ::uname(&name) == 0 ? name.release : "";
}

void LibraryDirectories::add(const std::string& directory) {
  if (auto name = with_slash(directory); name != "/") added_.insert(std::move(name));
}

void LibraryDirectories::leave_out(const std::string& directory) {
  if (auto name = with_slash(directory); name != "/") left_out_.insert(std::move(name));
}

bool LibraryDirectories::contain(const std::string& path) const {
  const auto name = normal_path(path) + "/";
  bool found = false;
  // A path has few directories above it, and many may have been added.
  for (auto end = name.find('/', 1); end != name.npos; end = name.find('/', end + 1)) {
    const auto above = name.substr(0, end + 1);
    if (left_out_.contains(above)) return false;
    found = found || added_.contains(above);
  }
  return found;
}

Result<NodeTarget> NodeTarget::open(FactsSource& source, const std::string& root,
                                    SearchOptions search) {
  if (root.empty()) return NodeTarget(source, OsWorld(source), {}, std::move(search));
  const std::unique_ptr<char, decltype(&std::free)> real(::realpath(root.c_str(), nullptr),
                                                         &std::free);
  if (!real) return fail_errno(root, "cannot open the root file system");
  std::string directory = real.get();
  auto world = TRY(OsWorld::below(source, directory));
  if (directory == "/") directory.clear();
  return NodeTarget(source, std::move(world), std::move(directory), std::move(search));
}

std::string NodeTarget::name_of(const std::string& path) const {
  return allowed_ ? normal_path(path) : path;
}

std::string NodeTarget::outside(const std::string& path) {
  const auto name = name_of(path);
  if (root_.empty()) return name;
  const auto real = world_.real_path(name);
  return real.empty() ? std::string() : root_ + real;
}

Result<const LoaderProfile*> NodeTarget::loader(const std::string& interpreter) {
  const auto known = loaders_.find(interpreter);
  if (known != loaders_.end()) return &known->second;
  auto profile = TRY(read_loader_profile(world_, interpreter));
  return &loaders_.emplace(interpreter, std::move(profile)).first->second;
}

Result<Target::Loaded> NodeTarget::load(const Program& program) {
  Loaded out;
  const auto& elf = program.elf;
  const auto refuse = [&](Reason::Kind kind, std::string subject, std::string detail) {
    out.refused = Reason{.kind = kind, .subject = std::move(subject), .detail = std::move(detail)};
    return out;
  };
  if (root_.empty() && !runs_here(elf.machine))
    return refuse(Reason::Kind::machine_differs, machine_name(elf.machine), {});
  const auto interpreter = name_of(interpreter_of(elf));
  if (!may_open(interpreter))
    return fail(interpreter_of(elf), "its loader is not judged",
                "it lies outside the library directories");
  const auto file = world_.facts(interpreter);
  if (!file && (file.error().code() == ENOENT || file.error().code() == ENOTDIR))
    return refuse(Reason::Kind::interpreter_missing, interpreter, {});
  if (!file) return fail(file.error());
  if (file->elf.machine != elf.machine || file->elf.elf_class != elf.elf_class)
    return refuse(Reason::Kind::machine_differs, machine_name(elf.machine),
                  fmt::format("{} is of {}", interpreter, machine_name(file->elf.machine)));
  if ((file->mode & 0111) == 0)
    return refuse(Reason::Kind::interpreter_missing, interpreter, "it may not be executed");
  const auto& profile = *TRY(loader(interpreter));
  FileFacts facts;
  facts.elf = elf;
  // Not used by ld.so's search.
  facts.elf.undefined_symbols.clear();
  facts.elf.exported_symbols.clear();
  ProgramWorld world(world_, allowed_.get(), program.path, std::move(facts));
  out.closure = TRY(resolve(world, profile, program.path, search_));
  out.not_searched = std::move(world.refused);
  // The closure is cached for programs with the same key: it must not contain facts that come from
  // an untrusted artifact.
  for (std::size_t i = 1; elf.interp && i < out.closure.objects.size(); ++i)
    if (out.closure.objects[i].path == program.path)
      return fail(program.path, "damaged artifact", "the program's path is that of a library");
  out.glibc_minor = profile.glibc_minor;
  return out;
}

std::string NodeTarget::closure_key(const Program& program) {
  const auto& elf = program.elf;
  std::string key = fmt::format("{} {} {} {};", elf.machine, elf.elf_class, elf.flags, elf.flags_1);
  bool tokens = has_token(search_.ld_library_path) || has_token(search_.ld_preload);
  const auto put = [&](const char* kind, const std::string& text) {
    key += fmt::format("{}{}:{}", kind, text.size(), text);
    tokens = tokens || has_token(text);
  };
  put("", interpreter_of(elf));
  put("", elf.soname.value_or(""));
  put(elf.rpath ? "r" : "-", elf.rpath.value_or(""));
  put(elf.runpath ? "r" : "-", elf.runpath.value_or(""));
  for (const auto& dependency : elf.dependencies)
    put(dependency.kind == Dependency::Kind::needed      ? "n"
        : dependency.kind == Dependency::Kind::auxiliary ? "a"
                                                         : "f",
        dependency.name);
  // A library's own path is one of its names; a program's matters only for $ORIGIN.
  if (tokens || !elf.interp) put("", program.path);
  return key;
}

std::optional<ElfFacts> NodeTarget::symbols(const std::string& path) {
  auto file = source_->facts(path, FactsDetail::symbols);
  if (!file) return std::nullopt;
  return std::move(file->elf);
}

ElfNotes NodeTarget::notes(const std::string& path) {
  const auto file = world_.open_regular(path);
  if (!file) return {};
  return read_elf_notes(file->get(), path).value_or(ElfNotes{});
}

std::string NodeTarget::find_library(const Program& program, const std::string& soname) {
  Program asking = program;
  asking.elf.dependencies = {{Dependency::Kind::needed, soname}};
  const auto [known, is_new] = found_.try_emplace(closure_key(asking));
  if (!is_new) return known->second;
  const auto loaded = load(asking);
  if (!loaded || loaded->refused) return {};
  for (const auto& object : loaded->closure.objects)
    if (object.requested_as == soname) known->second = object.path;
  return known->second;
}

bool NodeTarget::has_file(const std::string& path) {
  return may_open(path) && !world_.real_path(name_of(path)).empty();
}

/// An image's database is untrusted: its links are resolved within the root.
Result<std::string> NodeTarget::read_database(const std::string& file) {
  const auto path = kPackageDatabase + ("/" + file);
  return read_all(TRY(world_.open_regular(path)).get(), path, std::size_t{256} << 20);
}

std::string NodeTarget::search_package(const std::string& path) {
  // Merged /usr (a link /lib -> usr/lib): the database may have either name.
  const auto other = path.starts_with("/usr/") ? path.substr(4) : "/usr" + path;
  std::error_code error;
  std::filesystem::directory_iterator entry(root_ + kPackageDatabase + "/info", error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (entry->path().extension() != ".list") continue;
    const auto list = read_database("info/" + entry->path().filename().string());
    if (!list || (!has_line(*list, path) && !has_line(*list, other))) continue;
    const auto package = entry->path().stem().string();
    const auto status = "\n" + read_database("status").value_or("");
    const auto start = status.find("\nPackage: " + package.substr(0, package.find(':')) + "\n");
    const auto field = status.find("\nVersion: ", start);
    if (start == status.npos || field == status.npos || field > status.find("\n\n", start))
      return package;
    const auto version = status.substr(field + 10);
    return package + " " + version.substr(0, version.find('\n'));
  }
  return {};
}

std::string NodeTarget::package_of(const std::string& path) {
  if (path.empty()) return {};
  const auto [slot, is_new] = packages_.try_emplace(path);
  if (!is_new) return slot->second;
  slot->second = search_package(path);
  if (slot->second.empty() && may_open(path))
    if (const auto real = world_.real_path(name_of(path)); !real.empty())
      slot->second = search_package(real);
  return slot->second;
}

MapTarget::MapTarget(FactsSource& source, MapContent content)
    : Target(&source), content_(std::move(content)) {
  for (ObjectId id = 0; id < content_.objects.size(); ++id)
    by_path_.emplace(content_.objects[id].path, id);
}

Result<MapTarget> MapTarget::open(FactsSource& source, const std::string& path) {
  const auto reader = TRY(MapReader::open(path));
  return MapTarget(source, TRY(reader.read_all()));
}

const MapObject* MapTarget::find(const Program& program, const std::string& name) const {
  const auto in = [&](const std::vector<std::pair<std::string, ObjectId>>& names) {
    const auto at =
        std::lower_bound(names.begin(), names.end(), name,
                         [](const auto& one, const auto& key) { return one.first < key; });
    return at != names.end() && at->first == name ? &content_.objects[at->second] : nullptr;
  };
  for (const auto& known : content_.programs)
    if (known.path == program.path) {
      if (const auto* object = in(known.guided)) return object;
      return in(content_.views[known.view].names);
    }
  for (const auto& view : content_.views)
    if (const auto* object = in(view.names)) return object;
  const auto path = by_path_.find(name);
  return path == by_path_.end() ? nullptr : &content_.objects[path->second];
}

Result<Target::Loaded> MapTarget::load(const Program& program) {
  Loaded out;
  auto& objects = out.closure.objects;
  auto& main = objects.emplace_back();
  main.path = program.path;
  main.file.elf.dependencies = program.elf.dependencies;
  main.file.elf.version_needs = program.elf.version_needs;
  std::unordered_map<std::string, std::size_t> seen;  // by path
  for (std::size_t i = 0; i < objects.size(); ++i) {
    const auto dependencies = objects[i].file.elf.dependencies;
    for (const auto& dependency : dependencies) {
      const auto* object = find(program, dependency.name);
      if (object == nullptr) {
        if (dependency.kind == Dependency::Kind::needed)
          out.closure.missing.push_back({dependency.name, i, "not found"});
        continue;
      }
      const auto [known, is_new] = seen.try_emplace(object->path, objects.size());
      if (is_new) {
        objects.push_back(loaded(*object));
        objects.back().requested_as = dependency.name;
        objects.back().needed_by = i;
      }
      objects[known->second].names.push_back(dependency.name);
      objects[i].needs.push_back(known->second);
    }
  }
  return out;
}

std::string MapTarget::closure_key(const Program& program) {
  std::string key;
  for (const auto& known : content_.programs)
    if (known.path == program.path) key = program.path;
  key += '\0';
  for (const auto& dependency : program.elf.dependencies) key += dependency.name + '\0';
  return key;
}

std::optional<ElfFacts> MapTarget::symbols(const std::string& path) {
  const auto known = by_path_.find(path);
  if (known == by_path_.end()) return std::nullopt;
  auto file = source_->facts(path, FactsDetail::symbols);
  // The origin has changed or is missing.
  if (!file || file->hash != content_.objects[known->second].hash) return std::nullopt;
  return std::move(file->elf);
}

ElfNotes MapTarget::notes(const std::string& path) {
  const auto file = symbols(path) ? open_regular(path) : fail_errno(path, "changed", ESTALE);
  if (!file) return {};
  return read_elf_notes(file->get(), path).value_or(ElfNotes{});
}

std::string MapTarget::find_library(const Program& program, const std::string& soname) {
  const auto* object = find(program, soname);
  return object == nullptr ? std::string() : object->path;
}

}  // namespace heddle::compat
