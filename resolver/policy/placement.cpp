// SPDX-License-Identifier: MIT
#include "resolver/policy/placement.hpp"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "resolver/policy/versions.hpp"
#include "resolver/search/ld_so_cache_writer.hpp"

namespace heddle {
namespace {

namespace fs = std::filesystem;

constexpr int kRounds = 8;
constexpr std::size_t kMaxFolderFiles = 10'000;
constexpr const char* kPrivate = "GLIBC_PRIVATE";
// What the mount serves besides the host's files (docs/formats/map.md).
constexpr const char* kOwnFolder = ".heddle/";
constexpr const char* kCache = "ld.so.cache";
constexpr const char* kShortCache = ".ldc";  // the same: a path no longer than /etc/ld.so.cache
constexpr const char* kLoaderCopy = "ld.so";
constexpr const char* kOtherClass = "other-class";

std::string parent(const std::string& path) { return path.substr(0, path.rfind('/')); }

/// Writes `to` over each string `from` of `bytes`, NUL and all. False: there is none, or no room.
bool replace_string(std::string& bytes, const std::string& from, const std::string& to) {
  if (to.size() > from.size()) return false;
  const auto whole = '\0' + from + '\0';
  auto other = '\0' + to;
  other.resize(whole.size());
  bool any = false;
  for (auto at = bytes.find(whole); at != bytes.npos; at = bytes.find(whole, at + 1)) {
    bytes.replace(at, whole.size(), other);
    any = true;
  }
  return any;
}

/// A file that ld.so passes over in its search: an ELF header of the class that it does not load.
std::string of_another_class(const LoaderProfile& loader) {
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = loader.elf_class == ELFCLASS64 ? ELFCLASS32 : ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_type = ET_DYN;
  header.e_version = EV_CURRENT;
  return {reinterpret_cast<const char*>(&header), sizeof(header)};
}

const LoadedObject* provider(const Closure& closure, const std::string& name) {
  for (const auto& object : closure.objects)
    if (object.file.elf.soname == name ||
        std::find(object.names.begin(), object.names.end(), name) != object.names.end())
      return &object;
  return nullptr;
}

/// "X needs V of Y" for each need that the closure does not meet.
std::vector<std::pair<std::string, std::string>> unmet(const Closure& closure) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const auto& object : closure.objects) {
    std::set<std::string> asked;
    for (const auto& need : object.file.elf.version_needs) {
      if (!asked.insert(need.file).second) continue;
      const auto* found = provider(closure, need.file);
      if (found == nullptr) continue;
      const auto missing = missing_versions(object.file.elf, need.file, found->file.elf);
      if (!missing.empty())
        out.emplace_back(need.file, object.path + " needs " + shortened(missing) + " of " +
                                        need.file + ", which " + found->path + " lacks");
    }
  }
  return out;
}

}  // namespace

void Placement::take_folder(const PluginFolder& folder) {
  std::error_code error;
  std::size_t count = 0;
  for (fs::recursive_directory_iterator walk(folder.path, error), end; !error && walk != end;
       walk.increment(error)) {
    std::error_code none;
    if (!walk->is_regular_file(none) || ++count > kMaxFolderFiles) continue;
    const auto below = walk->path().lexically_relative(folder.path).string();
    const auto real = fs::canonical(walk->path(), none).string();
    if (!none) names_.emplace(folder.view_name + "/" + below, real);
  }
}

void Placement::take_names(const SideChoice& sides, const GlibcChoice& glibc) {
  names_.clear();
  sonames_.clear();
  const auto take = [&](const HostFile& file, const std::vector<std::string>& asked_for) {
    for (const auto& name : asked_for) {
      if (name.empty() || name.find('/') != name.npos) continue;
      names_[name] = file.path;
      sonames_[name] = file.soname;
    }
  };
  for (const auto* pick : sides.picks())
    if (pick->taken == Side::host) take(pick->host, pick->names);
  if (glibc.taken == Side::host)
    for (const auto& [soname, file] : glibc_.files) take(file, {soname});
  for (const auto& folder : sides.folders()) take_folder(folder);
}

/// Where the generated cache goes: over the one that ld.so reads. An image without one has no file
/// to bind over, and none can be made there: ld.so is then served as a copy that reads another.
Placement::Trouble Placement::place_cache(const GlibcChoice& glibc) {
  const bool of_host = glibc.taken == Side::host;
  const auto& loader = of_host ? glibc_.loader : inside_.loader();
  const auto target = inside_.world().real_path(inside_.loader().interpreter);
  cache_path_ = loader.cache_path;
  cache_target_ = cache_path_.empty() ? "" : inside_.world().real_path(cache_path_);
  if (!cache_target_.empty()) return {};
  const auto origin =
      of_host ? glibc_.files.at(glibc_.loader.soname).path : inside_.loader().interpreter;
  auto bytes = (of_host ? host_ : inside_.world()).read(origin);
  if (!bytes) return {"", "", bytes.error().message()};
  const auto path = mount_point_ + "/" + kShortCache;
  if (cache_path_.empty() || !replace_string(*bytes, cache_path_, path))
    return {"", "",
            "the image has no ld.so.cache to put the host's libraries into, and in its ld.so " +
                origin + " there is no room for the path of another, " + path};
  made_[target] = {kLoaderCopy, std::move(*bytes), origin, of_host};
  binds_.insert_or_assign(
      target, FileBind{std::string(kOwnFolder) + kLoaderCopy, target,
                       "the image has no " + cache_path_ + ": this copy of ld.so reads " + path});
  cache_path_ = path;
  return {};
}

void Placement::write_cache() {
  const auto& loader = inside_.loader();
  std::vector<CacheLine> lines;
  std::set<std::string> known;
  for (const auto& [name, path] : names_) {
    if (name.find('/') != name.npos || name == loader.soname) continue;
    if (changes_ && changes_->is_alone(name)) continue;
    lines.push_back({name, mount_point_ + "/" + name});
    known.insert(name);
  }
  // Other names of a file that is replaced: libmpi.so of a development package.
  for (const auto& line : inside_.cache().lines()) {
    const std::string name(line.name);
    if (known.contains(name) || !may_be_mpi(name)) continue;
    const auto file = inside_.world().facts(std::string(line.path));
    const auto* part = file ? stack_.part_of(file->stamp.id) : nullptr;
    if (part == nullptr) continue;
    if (const auto at = sonames_.find(part->soname); at != sonames_.end()) {
      lines.push_back({name, mount_point_ + "/" + at->second});
      known.insert(name);
    }
  }
  cache_ = write_ld_so_cache(inside_.cache(), lines, loader);
}

void Placement::bind_over(const std::string& path, const std::string& source,
                          const std::string& why) {
  const auto target = inside_.world().real_path(path);
  if (!target.empty()) binds_.try_emplace(target, FileBind{source, target, why});
}

/// The host's over each of the container's files that it stands for: also programs that nobody
/// asked us about find it, whose RPATH names a system folder. A container's libc beside the host's
/// ld.so would end them.
void Placement::bind_known(const SideChoice& sides, const GlibcChoice& glibc) {
  const std::string why = "whoever finds this file without ld.so.cache gets the host's too";
  const auto& loader = inside_.loader();
  if (glibc.taken == Side::host) {
    bind_over(loader.interpreter, glibc_.loader.soname, "ld.so and libc are of one build");
    for (const auto& [soname, file] : glibc_.files)
      if (const auto* theirs = inside_.find(soname);
          theirs != nullptr && is_glibc_part(theirs->file.elf))
        bind_over(theirs->path, soname, why);
  }
  for (const auto* list : {&stack_.libraries, &stack_.bindings, &stack_.copies})
    for (const auto& part : *list)
      if (const auto at = sonames_.find(part.soname); at != sonames_.end() &&
                                                      !is_left_alone(part.path, part.soname) &&
                                                      !stack_.has_to_stay(part))
        bind_over(part.path, at->second, why);
  for (const auto* pick : sides.picks())
    if (pick->taken == Side::host && pick->container &&
        !is_left_alone(pick->container->path, pick->host.soname))
      bind_over(pick->container->path, pick->host.soname, why);
}

/// With changed tags: the container's file that they alone lead to.
bool Placement::is_left_alone(const std::string& path, const std::string& soname) {
  if (!changes_) return false;
  const auto target = inside_.world().real_path(path);
  if (const std::string cached(inside_.cache().lookup(soname));
      !cached.empty() && inside_.world().real_path(cached) == target)
    return false;
  for (const auto& program : inside_.programs())
    for (const auto& object : program.closure.objects)
      if ((object.found_by == FoundBy::rpath || object.found_by == FoundBy::runpath) &&
          inside_.world().real_path(object.path) == target)
        return true;
  return false;
}

/// Below the mount, or bound over a file of the container.
bool Placement::is_hosts(const std::string& path) {
  return path.starts_with(mount_point_ + "/") || binds_.contains(inside_.world().real_path(path));
}

/// Has the tags that led to `strays`, by the object that has them, lead to the mount. Empty: done;
/// else why they cannot.
std::string Placement::change_tags(const Closure& closure, const StraysByOwner& strays) {
  for (const auto& [owner, found] : strays) {
    if (auto why = changes_->change(closure.objects[owner], found, names_); !why.empty())
      return why;
    for (const auto& stray : found)
      left_alone_.insert(inside_.world().real_path(stray.object->path));
  }
  return {};
}

/// A search path of the host's own files may lead to the image's, which the host's go over. Not
/// into a folder that is left alone: who uses that would get a part of each.
std::string Placement::mixed_folder() const {
  std::set<std::string> folders;
  for (const auto& path : left_alone_) folders.insert(folder_of(path));
  for (const auto& [target, bind] : binds_)
    if (folders.contains(folder_of(target)))
      return "the host's files lead to the image's " + target;
  return {};
}

/// What is the container's must be the file that it was: "X: Y in place of Z", or empty.
std::string Placement::moved_file(const Closure& before, const Closure& after,
                                  SwappedWorld& world) {
  for (const auto& object : after.objects) {
    const bool by_host =
        object.needed_by && !world.host_file(after.objects[*object.needed_by].path).empty();
    if (by_host || !world.host_file(object.path).empty() || object.requested_as.empty()) continue;
    const auto* was = provider(before, object.requested_as);
    if (was != nullptr && was->file.stamp.id != object.file.stamp.id)
      return object.requested_as + ": " + object.path + " would be found in place of " + was->path;
  }
  return {};
}

/// Files of the container that are found before the cache is asked (RPATH, RUNPATH,
/// LD_LIBRARY_PATH, a name with a slash) get the host's bound over them.
bool Placement::bind_strays(const Closure& closure) {
  bool more = false;
  StraysByOwner by_owner;
  for (std::size_t i = 1; i < closure.objects.size(); ++i) {
    const auto& object = closure.objects[i];
    if (object.path.starts_with(mount_point_ + "/") || object.found_by == FoundBy::interpreter)
      continue;
    const auto target = inside_.world().real_path(object.path);
    if (target.empty()) continue;
    if (object.found_by == FoundBy::rpath || object.found_by == FoundBy::runpath)
      found_by_tag_.insert(target);
    if (binds_.contains(target)) continue;
    auto name = object.file.elf.soname.value_or("");
    if (const auto* part = stack_.part_of(object.file.stamp.id)) name = part->soname;
    auto at = sonames_.find(name);
    for (const auto& other : object.names)
      if (at == sonames_.end()) at = sonames_.find(other);
    if (at == sonames_.end()) continue;
    more = true;
    if (changes_ && object.searched_by && !is_hosts(closure.objects[*object.searched_by].path)) {
      by_owner[*object.searched_by].push_back({&object, at->second});
      continue;
    }
    bind_over(object.path, at->second,
              object.path + " is found by " + to_string(object.found_by) + ", not by ld.so.cache");
  }
  if (changes_ && not_changed_.empty()) not_changed_ = change_tags(closure, by_owner);
  return more;
}

/// A plugin's own libraries are looked for in the RPATH of the program that loads it too
/// (elf/dl-load.c: the loaders' up to the program's), which resolving it alone does not show.
bool Placement::bind_strays_of_plugins(SwappedWorld& world, const LoaderProfile& loader) {
  bool more = false;
  for (const auto& program : inside_.programs()) {
    const auto& elf = program.closure.objects[0].file.elf;
    if (!elf.rpath || elf.runpath) continue;
    for (const auto& [name, path] : names_) {
      const auto plugin = mount_point_ + "/" + name;
      if (name.find('/') == name.npos || name.find(".so") == name.npos ||
          plugin.find_first_of(" :") != plugin.npos)
        continue;
      auto options = search_;
      options.ld_preload = plugin;
      if (const auto closure = resolve(world, loader, program.path, options))
        more |= bind_strays(*closure);
    }
  }
  return more;
}

/// "X lacks Y of Z" for a file of a copy's folder that the host's would go over, whose users nobody
/// has asked about.
std::string Placement::misfit_of_copies(const Closure& closure) const {
  for (const auto& object : closure.objects) {
    if (object.found_by != FoundBy::ld_library_path ||
        object.path.starts_with(mount_point_ + "/") ||
        binds_.contains(inside_.world().real_path(object.path)))
      continue;
    const auto at = sonames_.find(object.file.elf.soname.value_or(""));
    const auto host = at == sonames_.end() ? names_.end() : names_.find(at->second);
    if (host == names_.end()) continue;
    const auto file = host_.facts(host->second);
    const auto& offered = file ? file->elf.version_definitions : std::vector<std::string>();
    for (const auto& version : object.file.elf.version_definitions)
      if (std::find(offered.begin(), offered.end(), version) == offered.end())
        return host->second + " lacks " + version + " of " + object.path;
  }
  return {};
}

/// A copy of MPI that only programs find that nobody named: most likely by RPATH, so the host's
/// library that stands there looks for its own in that folder first, as by LD_LIBRARY_PATH. What
/// it finds must be the host's too, or do for it; else nothing is bound in that folder.
bool Placement::bind_strays_of_copies(SwappedWorld& world, const LoaderProfile& loader) {
  bool more = false;
  for (const auto& part : stack_.copies) {
    const auto folder = folder_of(part.path);
    if (stack_.stays.contains(folder)) continue;
    auto options = search_;
    options.ld_library_path = folder;
    options.ld_library_path_set = true;
    std::string why;
    if (folder.find_first_of(":;$") != folder.npos) why = "its name is none for a search path";
    const auto closure = resolve(world, loader, part.path, options);
    if (why.empty()) why = closure ? misfit_of_copies(*closure) : closure.error().message();
    if (!why.empty()) {
      stack_.stays[folder] = why;
      return true;
    }
    for (const auto& object : closure->objects)
      if (object.found_by == FoundBy::ld_library_path)
        found_by_tag_.insert(inside_.world().real_path(object.path));
    const bool bound = bind_strays(*closure);
    more |= bound;
    if (bound) continue;
    if (const auto lines = unmet(*closure); !lines.empty()) why = lines[0].second;
    if (!closure->missing.empty()) why = closure->missing[0].name + " would not be found";
    if (!why.empty()) {
      stack_.stays[folder] = why;
      return true;
    }
  }
  return more;
}

/// A library that looks for its plugins beside itself, found by a tag in a folder of the image that
/// has no place for them: it must come from the mount, where they stand. What is bound over the
/// image's file is then no library for ld.so, but of another ELF class, which it passes over
/// (elf/dl-load.c, open_verify: "not a fatal error"): the search goes on to the cache, whoever
/// searches, and all else that the tag leads to is found as before.
bool Placement::hide_strays(const SideChoice& sides) {
  bool more = false;
  for (const auto& folder : sides.folders()) {
    if (!folder.beside) continue;
    for (auto& [target, bind] : binds_) {
      const auto at = names_.find(bind.source);
      if (at == names_.end() || at->second != folder.wanted_by || !found_by_tag_.contains(target) ||
          !inside_.world().real_path(parent(target) + "/" + folder.view_name).empty())
        continue;
      made_[target] = {kOtherClass, of_another_class(inside_.loader()), "", false};
      bind.source = std::string(kOwnFolder) + kOtherClass;
      bind.why = "hidden from RPATH and RUNPATH: found below " + mount_point_ +
                 ", where its plugins are beside it";
      more = true;
    }
  }
  return more;
}

SwappedWorld::Placed Placement::placed() const {
  SwappedWorld::Placed out{mount_point_, names_, {}, made_, cache_path_, cache_, {}};
  if (changes_) out.tags = changes_->tags();
  for (const auto& [target, bind] : binds_)
    if (!made_.contains(target)) out.binds[target] = names_.at(bind.source);
  return out;
}

Placement::Trouble Placement::check(const Closure& before, const Closure& after,
                                    const SideChoice& sides) {
  const auto host_can = [&](const std::string& name) {
    const auto* pick = sides.find(name);
    return pick != nullptr && pick->taken == Side::container && !pick->fixed;
  };
  for (const auto& missing : after.missing) {
    const auto& user = after.objects[missing.needed_by].path;
    const auto what = user + " needs " + missing.name + ": " + missing.reason;
    if (host_can(missing.name))
      return {missing.name, "the container's is not where " + user + " looks for it", ""};
    const bool was_so = std::any_of(before.missing.begin(), before.missing.end(),
                                    [&](const auto& one) { return one.name == missing.name; });
    if (!was_so) return {"", "", what};
    warnings_.push_back("without heddle too, " + what);
  }
  const auto old = unmet(before);
  for (const auto& [name, line] : unmet(after)) {
    if (host_can(name)) return {name, line, ""};
    const bool was_so = std::any_of(
        old.begin(), old.end(), [&, &line = line](const auto& one) { return one.second == line; });
    if (!was_so) return {"", "", line};
    warnings_.push_back("without heddle too, " + line);
  }
  return {};
}

/// A file of the container that is bound to its own glibc build: it wants GLIBC_PRIVATE symbols
/// that the host's glibc does not have, which ld.so would say in its own words. Empty: none.
std::string Placement::stranded_part(SwappedWorld& world, const Closure& closure,
                                     const GlibcChoice& glibc) {
  if (glibc.taken == Side::container) return {};
  std::set<std::string> offered;
  for (const auto& object : closure.objects) {
    if (!is_glibc_part(object.file.elf) || !world.host_file(object.path).empty()) continue;
    if (offered.empty())
      for (const auto& [soname, file] : glibc_.files)
        if (const auto facts = host_.facts_with_symbols(file.path))
          for (const auto& symbol : facts->elf.exported_symbols)
            if (symbol.version == kPrivate) offered.insert(symbol.name);
    const auto facts = inside_.world().facts_with_symbols(object.path);
    if (!facts) continue;
    for (const auto& symbol : facts->elf.undefined_symbols)
      if (symbol.version == kPrivate && !symbol.weak && !offered.contains(symbol.name))
        return object.path + " belongs to the container's glibc " + glibc.container_version +
               ", which cannot stay (" + glibc.why + "): it needs " + symbol.name +
               ", which the host's glibc " + glibc_.version + " does not have";
  }
  return {};
}

void Placement::check_plugins(SwappedWorld& world, const LoaderProfile& loader) {
  for (const auto& [name, path] : names_) {
    if (name.find('/') == name.npos || name.find(".so") == name.npos) continue;
    const auto closure = resolve(world, loader, mount_point_ + "/" + name, search_);
    if (!closure) continue;
    for (const auto& missing : closure->missing)
      warnings_.push_back(
          path + ": this plugin will not load: " + closure->objects[missing.needed_by].path +
          " needs " + missing.name + ": " + missing.reason);
    for (const auto& [soname, line] : unmet(*closure))
      warnings_.push_back(path + ": this plugin will not load: " + line);
  }
}

void Placement::place_folders(const SideChoice& sides) {
  folders_.clear();
  environment_.clear();
  for (const auto& folder : sides.folders()) {
    std::vector<std::string> targets;
    if (folder.beside) {
      // Beside the library as ld.so names it: below the mount it is there already.
      for (const auto& [target, bind] : binds_)
        if (const auto at = names_.find(bind.source);
            at != names_.end() && at->second == folder.wanted_by)
          targets.push_back(parent(target) + "/" + folder.view_name);
    } else {
      targets.push_back(folder.path);
    }
    for (const auto& target : targets) {
      const auto real = inside_.world().real_path(target);
      folders_.push_back({folder.view_name, real.empty() ? target : real, !real.empty(),
                          fs::path(folder.wanted_by).filename().string() +
                              " looks there for its plugins and data"});
    }
    if (!targets.empty())
      for (const auto& variable : folder.environment)
        environment_[variable] = mount_point_ + "/" + folder.view_name;
  }
}

Placement::Trouble Placement::place(const SideChoice& sides, const GlibcChoice& glibc) {
  if (rpath_ == RpathWay::neutralise && not_changed_.empty()) {
    changes_.emplace(inside_, mount_point_);
    auto trouble = try_to_place(sides, glibc);
    if (trouble.conflict.empty()) return trouble;
    changes_.reset();
    not_changed_ = trouble.conflict;
  }
  auto trouble = try_to_place(sides, glibc);
  if (!not_changed_.empty())
    warnings_.push_back("no search path is neutralised, the host's files are bound: " +
                        not_changed_);
  return trouble;
}

Placement::Trouble Placement::try_to_place(const SideChoice& sides, const GlibcChoice& glibc) {
  warnings_.clear();
  left_alone_.clear();
  binds_.clear();
  made_.clear();
  found_by_tag_.clear();
  take_names(sides, glibc);
  bind_known(sides, glibc);
  if (auto trouble = place_cache(glibc); !trouble.conflict.empty()) return trouble;
  const auto& interpreter = inside_.loader().interpreter;
  std::vector<Closure> after;
  for (int round = 0; round < kRounds; ++round) {
    if (changes_) changes_->settle();
    write_cache();
    SwappedWorld world(inside_.world(), host_, placed());
    auto loader = read_loader_profile(world, interpreter);
    if (!loader) return {"", "", loader.error().message()};
    loader->cache_path = cache_path_;
    after.clear();
    bool more = false;
    for (const auto& program : inside_.programs()) {
      auto closure = resolve(world, *loader, program.path, search_);
      if (!closure) return {"", "", closure.error().message()};
      more |= bind_strays(*closure);
      after.push_back(std::move(*closure));
    }
    if (changes_ && !not_changed_.empty()) return {"", "", not_changed_};
    more = more || bind_strays_of_plugins(world, *loader);
    const auto stayed = stack_.stays.size();
    more = more || bind_strays_of_copies(world, *loader);
    if (stack_.stays.size() != stayed)
      return try_to_place(sides, glibc);  // once for each folder at most
    if (changes_ && !not_changed_.empty()) return {"", "", not_changed_};
    if (more || hide_strays(sides)) continue;
    for (std::size_t i = 0; changes_ && i < after.size(); ++i)
      if (auto moved = moved_file(inside_.programs()[i].closure, after[i], world); !moved.empty())
        return {"", "", std::move(moved)};
    if (auto mixed = mixed_folder(); !mixed.empty()) return {"", "", std::move(mixed)};
    for (const auto& closure : after)
      if (auto part = stranded_part(world, closure, glibc); !part.empty())
        return {"", "", std::move(part)};
    for (std::size_t i = 0; i < after.size(); ++i)
      if (auto found = check(inside_.programs()[i].closure, after[i], sides);
          !found.flip.empty() || !found.conflict.empty())
        return found;
    check_plugins(world, *loader);
    for (const auto& [folder, why] : stack_.stays)
      warnings_.push_back("what of MPI is in " + folder +
                          " stays for programs that nobody named: " + why);
    place_folders(sides);
    loads_.clear();
    for (std::size_t i = 1; i < after[0].objects.size(); ++i) {
      const auto& object = after[0].objects[i];
      loads_.emplace_back(object.file.elf.soname.value_or(object.requested_as), object.path);
    }
    return {};
  }
  return {"", "", "the container's libraries lead from one to another without end"};
}

void Placement::write_changes(Decision& decision) const {
  decision.rpath = RpathWay::neutralise;
  for (const auto& [target, file] : changes_->files()) {
    decision.binds.push_back(
        {served_as(file), target,
         "its search path " + file.tags + " leads to the image's copy of what is the host's: " +
             (file.now.empty() ? "served without" : "served with " + file.now)});
    decision.served.push_back(file);
  }
  for (const auto& path : left_alone_)
    decision.warnings.push_back(path + ": stays for programs that nobody asked about");
}

void Placement::write(Decision& decision) const {
  decision.names = names_;
  decision.ld_so_cache = cache_;
  for (const auto& [target, bind] : binds_) decision.binds.push_back(bind);
  if (changes_) write_changes(decision);
  for (const auto& [target, made] : made_) decision.made[made.name] = made.bytes;
  if (!cache_target_.empty())
    decision.binds.push_back({std::string(kOwnFolder) + kCache, cache_target_,
                              "the host's libraries are found by it, the container's as before"});
  decision.folders = folders_;
  decision.environment = environment_;
  decision.loads = loads_;
  decision.warnings.insert(decision.warnings.end(), warnings_.begin(), warnings_.end());
}

}  // namespace heddle
