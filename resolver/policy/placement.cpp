// SPDX-License-Identifier: MIT
//
// Placement: where the chosen files have to stand so that ld.so finds them. The mount holds the
// host's files, and a generated ld.so.cache leads to them. What ld.so finds before it asks the
// cache shadows them: the host's file is bound over it. SwappedWorld shows the container with all
// that in place; the programs are resolved in it until nothing more has to be bound.
#include "resolver/policy/placement.hpp"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "base/fd.hpp"
#include "base/try.hpp"
#include "resolver/policy/plugin_places.hpp"
#include "resolver/policy/swapped_world.hpp"
#include "resolver/policy/versions.hpp"
#include "resolver/search/ld_so_cache.hpp"

namespace heddle::policy {
namespace {

constexpr int kLibraryRounds = 64;                 // each takes one more library from the host
constexpr int kPlacementRounds = 8;                // each binds what the one before has led to
constexpr const char* kOwnDirectory = ".heddle/";  // docs/formats/map.md
constexpr const char* kCache = "ld.so.cache";
constexpr const char* kShortCache = ".ldc";  // the same: a path no longer than /etc/ld.so.cache
constexpr const char* kLoaderCopy = "ld.so";
constexpr const char* kOtherClass = "other-class";

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

/// What only the MPI itself uses, and is the host's with it.
bool is_of_mpi(const Pick* pick) {
  return pick != nullptr &&
         (pick->host.stack_part == "Open MPI" || pick->host.stack_part == "PRRTE");
}

/// A version that an object of a closure needs, and the file that it gets does not define.
struct UnmetNeed {
  std::string soname;  ///< of that file
  std::string line;    ///< "X needs V of Y, which Z lacks"
};

std::vector<UnmetNeed> unmet_needs(const Closure& closure) {
  const auto provider = [&](const std::string& name) {
    return std::find_if(closure.objects.begin(), closure.objects.end(), [&](const auto& object) {
      return object.file.elf.soname == name ||
             std::find(object.names.begin(), object.names.end(), name) != object.names.end();
    });
  };
  std::vector<UnmetNeed> out;
  for (const auto& object : closure.objects) {
    std::set<std::string> asked;
    for (const auto& need : object.file.elf.version_needs) {
      if (!asked.insert(need.file).second) continue;
      const auto found = provider(need.file);
      if (found == closure.objects.end()) continue;
      const auto missing = missing_versions(object.file.elf, need.file, found->file.elf);
      if (!missing.empty())
        out.push_back({need.file, object.path + " needs " + shortened(missing) + " of " +
                                      need.file + ", which " + found->path + " lacks"});
    }
  }
  return out;
}

/// The library that must be the host's after all, and why; none: all is in its place.
struct Flip {
  std::string name;
  std::string why;
};
using Placed = Result<std::optional<Flip>>;

class Placement {
 public:
  Placement(const PlacementFacts& facts, const SideChoice& sides)
      : in_(facts),
        sides_(sides),
        inside_(facts.inside),
        host_(facts.host.world()),
        stack_(facts.stack) {}

  Placed place(const GlibcChoice& glibc) {
    TRY(begin(glibc));
    std::vector<Closure> after;
    for (int round = 0; round < kPlacementRounds; ++round) {
      write_cache();
      SwappedWorld world(inside_.world(), host_, placed());
      auto loader = TRY(read_loader_profile(world, inside_.loader().interpreter));
      loader.cache_path = cache_path_;
      after.clear();
      bool more = false;
      for (const auto& program : inside_.programs()) {
        auto closure = TRY(resolve(world, loader, program.path, in_.search));
        more |= bind_shadowing(closure);
        after.push_back(std::move(closure));
      }
      more = more || bind_shadowing_of_plugins(world, loader);
      const auto stayed = stack_.stays.size();
      more = more || bind_shadowing_of_copies(world, loader);
      if (stack_.stays.size() != stayed) return place(glibc);  // once for each directory at most
      if (more || hide_shadowing()) continue;
      for (const auto& closure : after) TRY(check_glibc_parts(closure, world, glibc));
      for (std::size_t i = 0; i < after.size(); ++i) {
        auto flip = TRY(check(inside_.programs()[i].closure, after[i]));
        if (flip) return flip;
      }
      conclude(after[0], world, loader);
      return std::nullopt;
    }
    return fail("", "the container's libraries lead from one to another without end");
  }

  /// What place() found.
  void write(Decision& decision) {
    auto plugins = find_plugin_places(sides_.directories(), binds_, names_, inside_.world(), host_,
                                      in_.mount_point);
    decision.names = std::move(plugins.names);
    decision.ld_so_cache = cache_;
    for (const auto& [target, bind] : binds_) decision.binds.push_back(bind);
    decision.made = std::move(plugins.made);
    for (const auto& [target, made] : made_) decision.made[kOwnDirectory + made.name] = made.bytes;
    if (!cache_target_.empty())
      decision.binds.push_back({std::string(kOwnDirectory) + kCache, cache_target_,
                                "the host's libraries are found by it, the container's as before"});
    decision.directories = std::move(plugins.directories);
    decision.environment = std::move(plugins.environment);
    decision.changed = std::move(plugins.changed);
    decision.loads = std::move(loads_);
    decision.warnings.insert(decision.warnings.end(), warnings_.begin(), warnings_.end());
  }

 private:
  /// What is known before ld.so's search is followed.
  Result<void> begin(const GlibcChoice& glibc) {
    warnings_.clear();
    binds_.clear();
    made_.clear();
    found_by_tag_.clear();
    names_ = served_names(sides_, glibc, in_.glibc);
    bind_known(glibc);
    return find_cache_place(glibc);
  }

  /// The generated ld.so.cache goes over the one that ld.so reads. An image without one has no file
  /// to bind over, and none can be made there: ld.so is then served as a copy that reads the
  /// mount's.
  Result<void> find_cache_place(const GlibcChoice& glibc) {
    const bool of_host = glibc.taken == Side::host;
    const auto& loader = of_host ? in_.glibc.loader : inside_.loader();
    cache_path_ = loader.cache_path;
    cache_target_ = cache_path_.empty() ? "" : inside_.world().real_path(cache_path_);
    if (!cache_target_.empty()) return {};
    const auto origin =
        of_host ? in_.glibc.files.at(loader.soname).path : inside_.loader().interpreter;
    auto bytes = TRY((of_host ? host_ : inside_.world()).read(origin));
    const auto path = in_.mount_point + "/" + kShortCache;
    if (cache_path_.empty() || !replace_string(bytes, cache_path_, path))
      return fail("",
                  "the image has no ld.so.cache to put the host's libraries into, and in its "
                  "ld.so " +
                      origin + " there is no room for the path of another, " + path);
    const auto target = inside_.world().real_path(inside_.loader().interpreter);
    const auto why = "the image has no " + cache_path_ + ": this copy of ld.so reads " + path;
    made_[target] = {kLoaderCopy, std::move(bytes), origin, of_host};
    binds_[target] = {std::string(kOwnDirectory) + kLoaderCopy, target, why};
    cache_path_ = path;
    return {};
  }

  void write_cache() {
    const auto& loader = inside_.loader();
    std::vector<CacheLine> lines;
    std::set<std::string> known;
    for (const auto& [name, path] : names_.files) {
      if (name.find('/') != name.npos || name == loader.soname) continue;
      lines.push_back({name, in_.mount_point + "/" + name});
      known.insert(name);
    }
    // Other names of a file that is replaced: libmpi.so of a development package.
    std::size_t looked_at = 0;
    for (const auto& line : inside_.cache().lines()) {
      const std::string name(line.name);
      if (known.contains(name) || !may_be_mpi(name)) continue;
      if (++looked_at > kMostMpiLines) break;
      const auto file = inside_.world().facts(std::string(line.path));
      const auto* part = file ? stack_.part_of(file->stamp.id) : nullptr;
      if (part == nullptr) continue;
      if (const auto at = names_.sonames.find(part->soname); at != names_.sonames.end()) {
        lines.push_back({name, in_.mount_point + "/" + at->second});
        known.insert(name);
      }
    }
    cache_ = write_ld_so_cache(inside_.cache(), lines, loader);
  }

  SwappedWorld::Placed placed() const {
    SwappedWorld::Placed out{in_.mount_point, names_.files, {}, made_, cache_path_, cache_};
    for (const auto& [target, bind] : binds_)
      if (!made_.contains(target)) out.binds[target] = names_.files.at(bind.source);
    return out;
  }

  /// Every file of the host is where it is found: whether a program works so.
  Placed check(const Closure& before, const Closure& after) {
    const auto host_can = [&](const std::string& name) {
      const auto* pick = sides_.find(name);
      return pick != nullptr && pick->taken == Side::container && !pick->fixed;
    };
    for (const auto& missing : after.missing) {
      const auto& user = after.objects[missing.needed_by].path;
      const auto what = user + " needs " + missing.name + ": " + missing.reason;
      if (host_can(missing.name))
        return Flip{missing.name, "the container's is not where " + user + " looks for it"};
      if (std::none_of(before.missing.begin(), before.missing.end(),
                       [&](const auto& one) { return one.name == missing.name; }))
        return fail("", what);
      warnings_.push_back("without heddle too, " + what);
    }
    const auto old = unmet_needs(before);
    for (const auto& need : unmet_needs(after)) {
      if (host_can(need.soname)) return Flip{need.soname, need.line};
      if (std::none_of(old.begin(), old.end(),
                       [&](const UnmetNeed& one) { return one.line == need.line; }))
        return fail("", need.line);
      warnings_.push_back("without heddle too, " + need.line);
    }
    return std::nullopt;
  }

  /// A file of the container that is bound to its own glibc build wants GLIBC_PRIVATE symbols that
  /// the host's glibc may not have, which ld.so would say in its own words.
  Result<void> check_glibc_parts(const Closure& closure, SwappedWorld& world,
                                 const GlibcChoice& glibc) {
    constexpr const char* kPrivate = "GLIBC_PRIVATE";
    if (glibc.taken == Side::container) return {};
    std::set<std::string> offered;
    for (const auto& object : closure.objects) {
      if (!is_glibc_part(object.file.elf) || !world.host_file(object.path).empty()) continue;
      if (offered.empty())
        for (const auto& [soname, file] : in_.glibc.files)
          if (const auto* facts = in_.host.symbols().of(file.path))
            for (const auto& symbol : facts->exported_symbols)
              if (symbol.version == kPrivate) offered.insert(symbol.name);
      const auto facts = inside_.world().facts_with_symbols(object.path);
      if (!facts) continue;
      for (const auto& symbol : facts->elf.undefined_symbols)
        if (symbol.version == kPrivate && !symbol.weak && !offered.contains(symbol.name))
          return fail("", object.path + " belongs to the container's glibc " +
                              glibc.container_version + ", which cannot stay (" + glibc.why +
                              "): it needs " + symbol.name + ", which the host's glibc " +
                              in_.glibc.version + " does not have");
    }
    return {};
  }

  void conclude(const Closure& first, SwappedWorld& world, const LoaderProfile& loader) {
    for (const auto& [name, path] : names_.files) {
      if (!is_plugin_name(name)) continue;
      const auto closure = resolve(world, loader, in_.mount_point + "/" + name, in_.search);
      if (!closure) continue;
      const auto fails = path + ": this plugin will not load: ";
      for (const auto& missing : closure->missing)
        warnings_.push_back(fails + closure->objects[missing.needed_by].path + " needs " +
                            missing.name + ": " + missing.reason);
      for (const auto& need : unmet_needs(*closure)) warnings_.push_back(fails + need.line);
    }
    for (const auto& [directory, why] : stack_.stays)
      warnings_.push_back("what of MPI is in " + directory +
                          " stays for programs that nobody named: " + why);
    for (const auto& [path, why] : stack_.mixed)
      warnings_.push_back(path + ": " + why +
                          ", and the host's MPI goes over what is beside it: a program that loads "
                          "it mixes both");
    loads_.clear();
    for (std::size_t i = 1; i < first.objects.size(); ++i) {
      const auto& object = first.objects[i];
      loads_.emplace_back(object.file.elf.soname.value_or(object.requested_as), object.path);
    }
  }

  // Files that are found without ld.so.cache, and shadow what it leads to.

  void bind_over(const std::string& path, const std::string& source, const std::string& why) {
    const auto target = inside_.world().real_path(path);
    if (!target.empty()) binds_.try_emplace(target, FileBind{source, target, why});
  }

  /// The host's over each of the container's files that it stands for: also programs that nobody
  /// asked us about find it, whose RPATH names a system directory. A container's libc beside the
  /// host's ld.so would end them.
  void bind_known(const GlibcChoice& glibc) {
    const std::string why = "whoever finds this file without ld.so.cache gets the host's too";
    const auto& loader = inside_.loader();
    if (glibc.taken == Side::host) {
      bind_over(loader.interpreter, in_.glibc.loader.soname, "ld.so and libc are of one build");
      for (const auto& [soname, file] : in_.glibc.files)
        if (const auto* theirs = inside_.find(soname);
            theirs != nullptr && is_glibc_part(theirs->file.elf))
          bind_over(theirs->path, soname, why);
    }
    for (const auto* list : {&stack_.libraries, &stack_.bindings, &stack_.copies})
      for (const auto& part : *list)
        if (const auto at = names_.sonames.find(part.soname);
            at != names_.sonames.end() && !stack_.has_to_stay(part))
          bind_over(part.path, at->second, why);
    for (const auto* pick : sides_.picks())
      if (pick->taken == Side::host && pick->container)
        bind_over(pick->container->path, pick->host.soname, why);
  }

  /// Below the mount, or bound over a file of the container.
  bool is_hosts(const std::string& path) {
    return path.starts_with(in_.mount_point + "/") ||
           binds_.contains(inside_.world().real_path(path));
  }

  /// Files of the container that are found before the cache is asked (RPATH, RUNPATH,
  /// LD_LIBRARY_PATH, a name with a slash) get the host's bound over them.
  bool bind_shadowing(const Closure& closure) {
    bool more = false;
    for (std::size_t i = 1; i < closure.objects.size(); ++i) {
      const auto& object = closure.objects[i];
      if (object.path.starts_with(in_.mount_point + "/") || object.found_by == FoundBy::interpreter)
        continue;
      const auto target = inside_.world().real_path(object.path);
      if (target.empty()) continue;
      if (object.found_by == FoundBy::rpath || object.found_by == FoundBy::runpath)
        found_by_tag_.insert(target);
      if (binds_.contains(target)) continue;
      auto name = object.file.elf.soname.value_or("");
      if (const auto* part = stack_.part_of(object.file.stamp.id)) name = part->soname;
      auto at = names_.sonames.find(name);
      for (const auto& other : object.names)
        if (at == names_.sonames.end()) at = names_.sonames.find(other);
      if (at == names_.sonames.end()) continue;
      more = true;
      bind_over(
          object.path, at->second,
          object.path + " is found by " + to_string(object.found_by) + ", not by ld.so.cache");
    }
    return more;
  }

  /// A plugin's own libraries are looked for in the RPATH of the program that loads it too
  /// (elf/dl-load.c: the loaders' up to the program's), which resolving it alone does not show.
  bool bind_shadowing_of_plugins(SwappedWorld& world, const LoaderProfile& loader) {
    bool more = false;
    for (const auto& program : inside_.programs()) {
      const auto& elf = program.closure.objects[0].file.elf;
      if (!elf.rpath || elf.runpath) continue;
      for (const auto& [name, path] : names_.files) {
        const auto plugin = in_.mount_point + "/" + name;
        if (!is_plugin_name(name) || plugin.find_first_of(" :") != plugin.npos) continue;
        auto options = in_.search;
        options.ld_preload = plugin;
        if (const auto closure = resolve(world, loader, program.path, options))
          more |= bind_shadowing(*closure);
      }
    }
    return more;
  }

  // Directories of the image that the host's files must not simply go into: those of copies of MPI,
  // whose users nobody named, and those without a place for plugins.

  /// "X lacks Y of Z" for a file of a copy's directory that the host's would go over, whose users
  /// nobody has asked about: versions that the image's has, or symbols where it has none.
  std::string misfit_of_copies(const Closure& closure) {
    const auto versions_of = [](const ElfFacts& elf) {
      return std::set(elf.version_definitions.begin(), elf.version_definitions.end());
    };
    for (const auto& object : closure.objects) {
      if (object.found_by != FoundBy::ld_library_path || is_hosts(object.path)) continue;
      const auto& elf = object.file.elf;
      const auto at = names_.sonames.find(elf.soname.value_or(""));
      const auto host =
          at == names_.sonames.end() ? names_.files.end() : names_.files.find(at->second);
      if (host == names_.files.end() || is_of_mpi(sides_.find(at->first))) continue;
      const auto file = host_.facts(host->second);
      if (!file) return file.error().message();
      const auto lacking = elf.version_definitions.empty()
                               ? missing_offers(in_.inside_symbols.exports(object.path),
                                                in_.host.symbols().exports(host->second))
                               : missing_offers(versions_of(elf), versions_of(file->elf));
      if (!lacking.empty())
        return host->second + " lacks " + shortened(lacking) + " of " + object.path;
    }
    return {};
  }

  /// "X needs Y, which Z lacks" for a file of the host that would have Z from a copy's directory,
  /// and was decided on for another that has Y.
  std::string misfit_for_host(const Closure& closure, SwappedWorld& world) {
    for (const auto& object : closure.objects) {
      const auto host = world.host_file(object.path);
      const auto* facts = host.empty() ? nullptr : in_.host.symbols().of(host);
      if (facts == nullptr) continue;
      for (const auto next : object.needs) {
        const auto& found = closure.objects[next];
        const auto* pick = sides_.find(found.file.elf.soname.value_or(""));
        if (found.found_by != FoundBy::ld_library_path || is_hosts(found.path) || pick == nullptr)
          continue;
        const auto lost = lost_symbols(*facts, in_.host.symbols().exports(pick->host.path),
                                       in_.inside_symbols.exports(found.path));
        if (!lost.empty())
          return host + " needs " + shortened(lost) + ", which " + found.path + " lacks";
      }
    }
    return {};
  }

  /// A copy of MPI that only programs find that nobody named: most likely by RPATH, so the host's
  /// library that stands there looks for its own in that directory first, as by LD_LIBRARY_PATH.
  /// What it finds must be the host's too, or do for it; else nothing is bound in that directory.
  /// `why`: it does not.
  bool bind_shadowing_of_copy(const StackPart& part, SwappedWorld& world,
                              const LoaderProfile& loader, std::string& why) {
    const auto directory = directory_of(part.path);
    if (directory.find_first_of(":;$") != directory.npos)
      why = "its name is none for a search path";
    if (!why.empty()) return false;
    auto options = in_.search;
    options.ld_library_path = directory;
    options.ld_library_path_set = true;
    const auto closure = resolve(world, loader, part.path, options);
    why = closure ? misfit_of_copies(*closure) : closure.error().message();
    if (!why.empty()) return false;
    for (const auto& object : closure->objects)
      if (object.found_by == FoundBy::ld_library_path)
        found_by_tag_.insert(inside_.world().real_path(object.path));
    if (bind_shadowing(*closure)) return true;
    why = misfit_for_host(*closure, world);
    if (const auto lines = unmet_needs(*closure); !lines.empty()) why = lines[0].line;
    if (!closure->missing.empty()) why = closure->missing[0].name + " would not be found";
    return false;
  }

  bool bind_shadowing_of_copies(SwappedWorld& world, const LoaderProfile& loader) {
    bool more = false;
    for (const auto& part : stack_.copies) {
      if (stack_.stays.contains(directory_of(part.path))) continue;
      std::string why;
      more |= bind_shadowing_of_copy(part, world, loader, why);
      if (!why.empty() && stack_.leave(part, why)) return true;
    }
    return more;
  }

  /// A library that looks for its plugins beside itself, found by a tag in a directory of the image
  /// that has no place for them: it must come from the mount, where they stand. What is bound over
  /// the image's file is then no library for ld.so, but of another ELF class, which it passes over
  /// (elf/dl-load.c, open_verify: "not a fatal error"): the search goes on to the cache, whoever
  /// searches, and all else that the tag leads to is found as before.
  bool hide_shadowing() {
    bool more = false;
    for (const auto& directory : sides_.directories()) {
      if (!directory.beside) continue;
      for (auto& [target, bind] : binds_) {
        const auto at = names_.files.find(bind.source);
        if (at == names_.files.end() || at->second != directory.wanted_by ||
            !found_by_tag_.contains(target) ||
            !inside_.world().real_path(directory_of(target) + "/" + directory.view_name).empty())
          continue;
        made_[target] = {kOtherClass, of_another_class(inside_.loader()), "", false};
        bind.source = std::string(kOwnDirectory) + kOtherClass;
        bind.why = "hidden from RPATH and RUNPATH: found below " + in_.mount_point +
                   ", where its plugins are beside it";
        more = true;
      }
    }
    return more;
  }

  const PlacementFacts& in_;
  const SideChoice& sides_;
  ContainerSide& inside_;
  OsWorld& host_;
  ContainerStack stack_;  ///< with the directories that placing shows to stay
  ServedNames names_;
  std::string cache_path_;                          ///< that ld.so reads
  std::string cache_target_;                        ///< free of links; empty: the image has none
  std::string cache_;                               ///< bytes
  std::map<std::string, FileBind> binds_;           ///< by target
  std::map<std::string, SwappedWorld::Made> made_;  ///< by target, each bound too
  std::set<std::string> found_by_tag_;              ///< targets that an RPATH or RUNPATH leads to
  std::vector<std::pair<std::string, std::string>> loads_;
  std::vector<std::string> warnings_;
};

/// A line for each library of the container that stays and wants symbols of a library that becomes
/// the host's, which the container's has and the host's lacks. Mostly a part of the container's MPI
/// that its own launcher and tools load, and the swapped program no longer does (libopen-pal.so.80
/// of Open MPI 5, where the host has Open MPI 4 and an older PMIx): they fail from now on.
void warn_of_left_behind(const PlacementFacts& in, const SideChoice& sides,
                         std::vector<std::string>& warnings) {
  const auto is_hosts = [](const Pick* pick) {
    return pick != nullptr && pick->taken == Side::host;
  };
  for (const auto* object : in.inside.objects()) {
    const auto& elf = object->file.elf;
    if (in.stack.part_of(object->file.stamp.id) != nullptr ||
        is_hosts(sides.find(elf.soname.value_or(""))))
      continue;
    for (const auto& need : elf.dependencies) {
      const auto* pick = sides.find(need.name);
      if (!is_hosts(pick) || !pick->container ||
          in.stack.part_of(pick->container->file.stamp.id) != nullptr)
        continue;
      const auto* facts = in.inside_symbols.of(object->path);
      if (facts == nullptr) break;
      const auto lost = lost_symbols(*facts, in.inside_symbols.exports(pick->container->path),
                                     in.host.symbols().exports(pick->host.path));
      if (!lost.empty())
        warnings.push_back(object->path + " stays and needs " + shortened(lost) + " of " +
                           need.name + ", which the host's " + pick->host.path +
                           " lacks: programs of the container that call them through it (its MPI's "
                           "own launcher and tools) will end there");
    }
  }
}

}  // namespace

Result<void> solve(const PlacementFacts& facts, SideChoice& sides, Decision& out) {
  Placement placement(facts, sides);
  for (int round = 0; round < kLibraryRounds; ++round) {
    TRY(sides.settle(facts.directories));
    const auto glibc = TRY(choose_glibc(facts.glibc, facts.inside, sides.taken_files()));
    const auto flip = placement.place(glibc);
    if (!flip)
      return fail(
          "", flip.error().message() +
                  " (host: " + (out.mpi ? out.mpi->family + " " + out.mpi->version + ", " : "") +
                  "glibc " + out.host_glibc + "; container: glibc " + out.container_glibc + ")");
    if (*flip && sides.flip_to_host((*flip)->name, (*flip)->why)) continue;
    out.outcome = Outcome::swap;
    out.glibc = glibc.taken;
    out.glibc_why = glibc.why;
    out.verdicts = glibc.verdicts;
    for (const auto* pick : sides.picks())
      out.verdicts.push_back({pick->host.soname, pick->taken, pick->host.path,
                              pick->container ? pick->container->path : "", pick->rule, pick->why});
    std::sort(out.verdicts.begin(), out.verdicts.end(),
              [](const Verdict& a, const Verdict& b) { return a.soname < b.soname; });
    for (const auto* list : {&sides.warnings(), &glibc.warnings})
      out.warnings.insert(out.warnings.end(), list->begin(), list->end());
    warn_of_left_behind(facts, sides, out.warnings);
    placement.write(out);
    return {};
  }
  return fail("", "the libraries of host and container cannot be told apart in " +
                      std::to_string(kLibraryRounds) + " rounds");
}

}  // namespace heddle::policy
