// SPDX-License-Identifier: MIT
//
// Placement: the paths at which ld.so finds the chosen files. The mount has the host's files, and a
// generated ld.so.cache leads to them. A file that ld.so finds before the cache shadows them: the
// host's is bound over it. The programs are resolved in SwappedWorld, which is the container with
// mount and binds, until no new bind is needed.
#include "base/paths.hpp"
#include "resolver/policy/solver.hpp"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "base/fd.hpp"
#include "base/try.hpp"
#include "resolver/map/served_names.hpp"
#include "resolver/policy/swapped_world.hpp"

namespace heddle::policy {
namespace {

namespace fs = std::filesystem;

constexpr int kLibraryRounds = 64;   // each takes one more library from the host
constexpr int kPlacementRounds = 8;  // each binds files that the one before has found
constexpr std::size_t kMaxDirectoryFiles = 10'000;
constexpr const char* kCache = ".heddle/ld.so.cache";  // docs/formats/map.md
constexpr const char* kLoaderCopy = ".heddle/ld.so";
constexpr const char* kOtherClass = ".heddle/other-class";

/// A file that ld.so skips in its search: an ELF header of the other class.
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

/// Whether only the MPI itself uses it, and it is the host's with it.
bool is_of_mpi(const Pick* pick) {
  return pick != nullptr &&
         (pick->host.stack_part == "Open MPI" || pick->host.stack_part == "PRRTE");
}

/// An unsatisfied need of a closure's object.
struct UnmetNeed {
  std::string soname;  ///< of the library that is missing, or lacks a version
  std::string line;    ///< "X needs Y: not found", "X needs V of Y, which Z lacks"
  std::string key;     ///< equal for the same need in another closure
};

std::vector<UnmetNeed> unmet_needs(const Closure& closure) {
  std::vector<UnmetNeed> out;
  for (const auto& missing : closure.missing)
    out.push_back(
        {missing.name,
         closure.objects[missing.needed_by].path + " needs " + missing.name + ": " + missing.reason,
         missing.name});
  for (const auto& object : closure.objects) {
    std::set<std::string> asked;
    for (const auto& need : object.file.elf.version_needs) {
      if (!asked.insert(need.file).second) continue;
      const auto found = std::ranges::find_if(closure.objects, [&](const LoadedObject& one) {
        return one.file.elf.soname == need.file || holds(one.names, need.file);
      });
      if (found == closure.objects.end()) continue;
      const auto missing = missing_versions(object.file.elf, need.file, found->file.elf);
      const auto line = object.path + " needs " + shortened(missing) + " of " + need.file +
                        ", which " + found->path + " lacks";
      if (!missing.empty()) out.push_back({need.file, line, line});
    }
  }
  return out;
}

/// Replaces each string `from` of `bytes` by `to`, and with `more` also paths below it. Result: the
/// old and new strings; none if `to` is longer. (A linker may have merged another string with its
/// end, as "openmpi" with "${libdir}/openmpi": a label at most.)
std::vector<std::pair<std::string, std::string>> replace_strings(std::string& bytes,
                                                                 const std::string& from,
                                                                 const std::string& to, bool more) {
  std::vector<std::pair<std::string, std::string>> out;
  const auto wanted = '\0' + from;
  if (to.size() > from.size()) return out;
  for (auto at = bytes.find(wanted); at != bytes.npos; at = bytes.find(wanted, at + 1)) {
    const auto end = at + wanted.size();
    if (end >= bytes.size() || (bytes[end] != '\0' && !(more && bytes[end] == '/'))) continue;
    const std::string was = bytes.c_str() + at + 1;
    auto now = to + was.substr(from.size());
    out.emplace_back(was, now);
    now.resize(was.size());
    bytes.replace(at + 1, was.size(), now);
  }
  return out;
}

/// Whether a name below the mount is a plugin's.
bool is_plugin_name(const std::string& name) {
  return name.find('/') != name.npos && name.find(".so") != name.npos;
}

/// A need that the host's library satisfies, which must be taken then; none: the placement works.
using Verified = Result<std::optional<UnmetNeed>>;

class Placement {
 public:
  Placement(const PlacementFacts& facts, const SideChoice& sides)
      : in_(facts),
        sides_(sides),
        inside_(facts.inside),
        host_(facts.host.world()),
        directories_(sides.directories()),
        stack_(facts.stack) {}

  Verified place(const GlibcChoice& glibc) {
    TRY(begin(glibc));
    std::vector<Closure> after;
    for (int round = 0; round < kPlacementRounds; ++round) {
      write_cache();
      SwappedWorld world(inside_.world(), host_, placed_);
      auto loader = TRY(read_loader_profile(world, inside_.loader().interpreter));
      loader.cache_path = placed_.cache_path;
      after.clear();
      bool more = false;
      for (const auto& program : inside_.programs()) {
        auto closure = TRY(resolve(world, loader, program.path, in_.search));
        more |= bind_shadowing(closure);
        after.push_back(std::move(closure));
      }
      more = more || bind_shadowing_of_plugins(world, loader);
      const auto preserved = stack_.preserved.size();
      more = more || bind_shadowing_of_copies(world, loader);
      if (stack_.preserved.size() != preserved) return place(glibc);  // at most once a directory
      if (more || hide_shadowing()) continue;
      for (const auto& closure : after) TRY(check_glibc_parts(closure, world, glibc));
      for (std::size_t i = 0; i < after.size(); ++i) {
        auto flip = TRY(check(inside_.programs()[i].closure, after[i]));
        if (flip) return flip;
      }
      conclude(after[0], world, loader);
      return std::nullopt;
    }
    return fail("", "no placement of the host's libraries found");
  }

  /// Writes the result of place().
  void write(Decision& decision) {
    decision.names = placed_.names;
    decision.ld_so_cache = placed_.cache;
    for (const auto& [target, bound] : placed_.binds) {
      decision.binds.push_back({bound.source, target, bound.why});
      if (!bound.bytes.empty()) decision.made[bound.source] = bound.bytes;
    }
    if (!cache_target_.empty())
      decision.binds.push_back({kCache, cache_target_,
                                "the host's libraries are found by it, the container's as before"});
    for (const auto& directory : directories_) write_directory(directory, decision);
    std::ranges::sort(decision.changed, {},
                      [](const ChangedPath& one) { return std::tie(one.library, one.was); });
    decision.loads = std::move(loads_);
    decision.warnings.insert(decision.warnings.end(), warnings_.begin(), warnings_.end());
  }

 private:
  /// Places the files that no search is needed for.
  Result<void> begin(const GlibcChoice& glibc) {
    warnings_.clear();
    found_by_tag_.clear();
    sonames_.clear();
    placed_ = {in_.mount_point, {}, {}, {}, {}};
    for (const auto* pick : sides_.picks())
      if (pick->taken == Side::host) serve(pick->host, pick->names);
    if (glibc.taken == Side::host)
      for (const auto& [soname, file] : in_.glibc.files) serve(file, {soname});
    for (const auto& directory : directories_) serve_directory(directory);
    bind_known(glibc);
    return find_cache_place(glibc);
  }

  void serve(const SideFile& file, const std::vector<std::string>& names) {
    for (const auto& name : names) {
      if (name.empty() || name.find('/') != name.npos) continue;
      placed_.names[name] = file.path;
      sonames_[name] = file.soname;
    }
  }

  void serve_directory(const PluginDirectory& directory) {
    std::error_code error;
    std::size_t count = 0;
    for (fs::recursive_directory_iterator walk(directory.path, error), end; !error && walk != end;
         walk.increment(error)) {
      std::error_code none;
      if (!walk->is_regular_file(none) || is_excluded_plugin(walk->path().filename().string()) ||
          ++count > kMaxDirectoryFiles)
        continue;
      const auto below = walk->path().lexically_relative(directory.path).string();
      const auto real = fs::canonical(walk->path(), none).string();
      if (!none) placed_.names.emplace(directory.view_name + "/" + below, real);
    }
  }

  /// The generated ld.so.cache is bound over the one that ld.so reads. In an image without one,
  /// where none can be made, a copy of ld.so that reads the mount's is bound over ld.so.
  Result<void> find_cache_place(const GlibcChoice& glibc) {
    const bool of_host = glibc.taken == Side::host;
    const auto& loader = of_host ? in_.glibc.loader : inside_.loader();
    auto& cache_path = placed_.cache_path = loader.cache_path;
    cache_target_ = cache_path.empty() ? "" : inside_.world().real_path(cache_path);
    if (!cache_target_.empty()) return {};
    const auto origin =
        of_host ? in_.glibc.files.at(loader.soname).path : inside_.loader().interpreter;
    auto bytes = TRY((of_host ? host_ : inside_.world()).read(origin));
    const auto path = in_.mount_point + "/" + std::string(kShortCache);
    if (cache_path.empty() || replace_strings(bytes, cache_path, path, false).empty())
      return fail("",
                  "the image has no ld.so.cache to put the host's libraries into, and in its "
                  "ld.so " +
                      origin + " there is no room for the path of another, " + path);
    const auto why = "the image has no " + cache_path + ": this copy of ld.so reads " + path;
    placed_.binds[inside_.world().real_path(inside_.loader().interpreter)] = {
        kLoaderCopy, why, of_host ? origin : "", of_host ? "" : origin, std::move(bytes)};
    cache_path = path;
    return {};
  }

  void write_cache() {
    const auto& loader = inside_.loader();
    std::vector<CacheLine> lines;
    for (const auto& [name, path] : placed_.names)
      if (name.find('/') == name.npos && name != loader.soname)
        lines.push_back({name, in_.mount_point + "/" + name});
    // Other names of a replaced file: libmpi.so of a development package.
    for (const auto& line : inside_.mpi_lines()) {
      const auto file = inside_.world().facts(std::string(line.path));
      const auto* part = file ? stack_.part_of(file->stamp.id) : nullptr;
      const auto at = part == nullptr ? sonames_.end() : sonames_.find(part->soname);
      if (at != sonames_.end())
        lines.push_back({std::string(line.name), in_.mount_point + "/" + at->second});
    }
    placed_.cache = write_ld_so_cache(inside_.cache(), lines, loader);
  }

  /// Whether a program works with the placement.
  Verified check(const Closure& before, const Closure& after) {
    const auto old = unmet_needs(before);
    for (const auto& lack : unmet_needs(after)) {
      const auto* pick = sides_.find(lack.soname);
      if (pick != nullptr && pick->taken == Side::container && !pick->fixed) return lack;
      if (std::ranges::find(old, lack.key, &UnmetNeed::key) == old.end())
        return fail("", lack.line);
      warnings_.push_back("without heddle too, " + lack.line);
    }
    return std::nullopt;
  }

  /// Refuses a remaining file of the container's glibc that needs GLIBC_PRIVATE symbols which the
  /// host's glibc lacks, before ld.so does.
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
          return fail("", object.path + " belongs to the container's glibc " + inside_.glibc() +
                              ", which cannot stay (" + glibc.why + "): it needs " + symbol.name +
                              ", which the host's glibc " + in_.glibc.version + " does not have");
    }
    return {};
  }

  void conclude(const Closure& first, SwappedWorld& world, const LoaderProfile& loader) {
    for (const auto& [name, path] : placed_.names) {
      if (!is_plugin_name(name)) continue;
      // LD_PRELOAD's libraries may be found by the program's RPATH alone.
      auto search = in_.search;
      search.ld_preload.clear();
      const auto closure = resolve(world, loader, in_.mount_point + "/" + name, search);
      if (!closure) continue;
      for (const auto& lack : unmet_needs(*closure))
        warnings_.push_back(path + ": this plugin will not load: " + lack.line);
    }
    for (const auto& [directory, why] : stack_.preserved)
      warnings_.push_back("the MPI in " + directory +
                          " is not replaced for programs that were not named: " + why);
    for (const auto& [path, why] : stack_.mixed)
      warnings_.push_back(path + ": " + why +
                          ", and the host's MPI replaces the files beside it: a program that loads "
                          "it mixes both MPIs");
    loads_.clear();
    for (std::size_t i = 1; i < first.objects.size(); ++i) {
      const auto& object = first.objects[i];
      loads_.emplace_back(object.file.elf.soname.value_or(object.requested_as), object.path);
    }
  }

  // Files that are found without ld.so.cache and shadow the mount's.

  void bind_over(const std::string& path, const std::string& source, const std::string& why) {
    const auto target = inside_.world().real_path(path);
    if (!target.empty())
      placed_.binds.try_emplace(target, Bound{source, why, placed_.names.at(source)});
  }

  /// Binds the host's file over each file that it replaces, for programs whose RPATH has a system
  /// directory: with the container's libc and the host's ld.so they would not start.
  void bind_known(const GlibcChoice& glibc) {
    const std::string why = "programs that find this file without ld.so.cache get the host's too";
    const auto& loader = inside_.loader();
    if (glibc.taken == Side::host) {
      bind_over(loader.interpreter, in_.glibc.loader.soname, "ld.so and libc are of one build");
      for (const auto& [soname, file] : in_.glibc.files)
        if (const auto* theirs = inside_.find(soname);
            theirs != nullptr && is_glibc_part(theirs->file.elf))
          bind_over(theirs->path, soname, why);
    }
    for (const auto& part : stack_.parts)
      if (const auto at = sonames_.find(part.soname);
          at != sonames_.end() && !stack_.is_preserved(part))
        bind_over(part.path, at->second, why);
    for (const auto* pick : sides_.picks())
      if (pick->taken == Side::host && pick->container)
        bind_over(pick->container->path, pick->host.soname, why);
  }

  /// Below the mount, or bound over a file of the container.
  bool is_hosts(const std::string& path) {
    return path.starts_with(in_.mount_point + "/") ||
           placed_.binds.contains(inside_.world().real_path(path));
  }

  /// Binds the host's over files of the container that are found before the cache: by RPATH,
  /// RUNPATH, LD_LIBRARY_PATH or a name with a slash.
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
      if (placed_.binds.contains(target)) continue;
      auto name = object.file.elf.soname.value_or("");
      if (const auto* part = stack_.part_of(object.file.stamp.id)) name = part->soname;
      auto at = sonames_.find(name);
      for (const auto& other : object.names)
        if (at == sonames_.end()) at = sonames_.find(other);
      if (at == sonames_.end()) continue;
      more = true;
      bind_over(
          object.path, at->second,
          object.path + " is found by " + to_string(object.found_by) + ", not by ld.so.cache");
    }
    return more;
  }

  /// A plugin's libraries are searched in the RPATH of the program that loads it too
  /// (elf/dl-load.c: the loaders' up to the program's), which resolving the plugin alone does not
  /// show.
  bool bind_shadowing_of_plugins(SwappedWorld& world, const LoaderProfile& loader) {
    bool more = false;
    for (const auto& program : inside_.programs()) {
      const auto& elf = program.closure.objects[0].file.elf;
      if (!elf.rpath || elf.runpath) continue;
      for (const auto& [name, path] : placed_.names) {
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

  // Directories of the image that need care: those of copies of MPI, whose users are unknown, and
  // those without a target for plugins.

  /// "X lacks Y of Z" for a file of a copy's directory with versions (without any: symbols) that
  /// the host's replacement lacks, and that unknown users may need.
  std::string misfit_of_copies(const Closure& closure) {
    for (const auto& object : closure.objects) {
      if (object.found_by != FoundBy::ld_library_path || is_hosts(object.path)) continue;
      const auto& elf = object.file.elf;
      const auto at = sonames_.find(elf.soname.value_or(""));
      const auto host = at == sonames_.end() ? placed_.names.end() : placed_.names.find(at->second);
      if (host == placed_.names.end() || is_of_mpi(sides_.find(at->first))) continue;
      const auto file = host_.facts(host->second);
      if (!file) return file.error().message();
      const auto lacking = elf.version_definitions.empty()
                               ? missing_offers(inside_.symbols().exports(object.path),
                                                in_.host.symbols().exports(host->second))
                               : missing_offers(defined_versions(elf), defined_versions(file->elf));
      if (!lacking.empty())
        return host->second + " lacks " + shortened(lacking) + " of " + object.path;
    }
    return {};
  }

  /// "X needs Y, which Z lacks" for a file of the host that would load Z from a copy's directory
  /// instead of the decided file, which has Y.
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
                                       inside_.symbols().exports(found.path));
        if (!lost.empty())
          return host + " needs " + shortened(lost) + ", which " + found.path + " lacks";
      }
    }
    return {};
  }

  /// A copy of MPI is most likely found by a program's RPATH, so the host's library in its place
  /// searches that directory first, as with LD_LIBRARY_PATH. The libraries there must be replaced
  /// too, or satisfy it; else (`why`) nothing is bound in that directory.
  bool bind_shadowing_of_copy(const StackPart& part, SwappedWorld& world,
                              const LoaderProfile& loader, std::string& why) {
    const auto directory = directory_of(part.path);
    if (directory.find_first_of(":;$") != directory.npos)
      why = "its name cannot be in a search path";
    if (!why.empty()) return false;
    auto options = in_.search;
    options.ld_library_path = directory;
    const auto closure = resolve(world, loader, part.path, options);
    why = closure ? misfit_of_copies(*closure) : closure.error().message();
    if (!why.empty()) return false;
    for (const auto& object : closure->objects)
      if (object.found_by == FoundBy::ld_library_path)
        found_by_tag_.insert(inside_.world().real_path(object.path));
    if (bind_shadowing(*closure)) return true;
    why = misfit_for_host(*closure, world);
    if (const auto lacks = unmet_needs(*closure); !lacks.empty()) why = lacks[0].line;
    return false;
  }

  bool bind_shadowing_of_copies(SwappedWorld& world, const LoaderProfile& loader) {
    bool more = false;
    for (const auto& part : stack_.parts) {
      if (!part.is_copy || stack_.is_preserved(part)) continue;
      std::string why;
      more |= bind_shadowing_of_copy(part, world, loader, why);
      if (!why.empty() && stack_.preserve(part, why)) return true;
    }
    return more;
  }

  /// A library that searches plugins beside itself, found by RPATH or RUNPATH in a directory of the
  /// image without a target for them, must be loaded from the mount. A file of another ELF class is
  /// bound over the image's: ld.so skips it (elf/dl-load.c, open_verify: "not a fatal error") and
  /// searches on to the cache.
  bool hide_shadowing() {
    bool more = false;
    for (const auto& directory : directories_) {
      if (!directory.beside) continue;
      for (auto& [target, bound] : placed_.binds) {
        if (bound.host != directory.wanted_by || !found_by_tag_.contains(target) ||
            !inside_.world().real_path(directory_of(target) + "/" + directory.view_name).empty())
          continue;
        bound = {kOtherClass,
                 "hidden from RPATH and RUNPATH: found below " + in_.mount_point +
                     ", where its plugins are beside it",
                 "", "", of_another_class(inside_.loader())};
        more = true;
      }
    }
    return more;
  }

  // Plugin directories of the host's libraries.

  void write_directory(const PluginDirectory& directory, Decision& decision) {
    std::vector<std::string> targets;
    if (directory.beside) {
      // Beside the library by its path in ld.so; the mount has it already.
      for (const auto& [target, bound] : placed_.binds)
        if (bound.host == directory.wanted_by)
          targets.push_back(directory_of(target) + "/" + directory.view_name);
    } else if (!lead_to_mount(directory, decision)) {
      targets.push_back(directory.path);
    }
    for (const auto& target : targets) {
      const auto real = inside_.world().real_path(target);
      decision.directories.push_back({directory.view_name, real.empty() ? target : real,
                                      !real.empty(),
                                      fs::path(directory.wanted_by).filename().string() +
                                          " looks there for its plugins and data"});
    }
    if (!targets.empty())
      for (const auto& variable : directory.environment)
        decision.environment[variable] = in_.mount_point + "/" + directory.view_name;
  }

  /// Changes the library's strings for the directory to the mount's, in a copy that is served.
  /// False: it has none, they have no room, or it has several names, which must be one inode.
  bool lead_to_mount(const PluginDirectory& directory, Decision& decision) {
    if (!directory.is_data && !inside_.world().real_path(directory.path).empty()) return false;
    std::vector<std::string> served_as;
    for (const auto& [name, path] : decision.names)
      if (path == directory.wanted_by && name.find('/') == name.npos) served_as.push_back(name);
    if (served_as.size() != 1) return false;
    const auto made = decision.made.find(served_as[0]);
    auto copy = made == decision.made.end() ? host_.read(directory.wanted_by)
                                            : Result<std::string>(made->second);
    if (!copy) return false;
    const auto name = directory.short_name.value_or(directory.view_name);
    const auto place = name.empty() ? in_.mount_point : in_.mount_point + "/" + name;
    const auto before = decision.changed.size();
    for (const auto& start : directory.built_in) {
      // libibverbs has "DIRECTORY/lib%s-rdmav34.so".
      const bool more = !directory.is_data && start == directory.path;
      for (auto& [was, now] : replace_strings(*copy, start, place, more))
        decision.changed.push_back({directory.wanted_by, std::move(was), std::move(now)});
    }
    if (decision.changed.size() == before) return false;
    decision.made[served_as[0]] = std::move(*copy);
    if (directory.short_name) shorten(directory, decision.names);
    return true;
  }

  /// Moves the files below the short name, or those with the prefix `only` to the mount's root: the
  /// directory may have files of others (/usr/local/etc).
  static void shorten(const PluginDirectory& directory, std::map<std::string, std::string>& names) {
    const auto prefix = directory.view_name + "/";
    for (auto it = names.lower_bound(prefix); it != names.end() && it->first.starts_with(prefix);) {
      const auto name = it->first.substr(prefix.size());
      const auto path = it->second;
      it = names.erase(it);
      if (!directory.short_name->empty())
        names.emplace(*directory.short_name + "/" + name, path);
      else if (name.starts_with(directory.only) && name.find('/') == name.npos)
        names.emplace(name, path);
    }
  }

  const PlacementFacts& in_;
  const SideChoice& sides_;
  ContainerSide& inside_;
  OsWorld& host_;
  const std::vector<PluginDirectory> directories_;
  ContainerStack& stack_;
  Placed placed_;
  std::map<std::string, std::string> sonames_;  ///< name in DT_NEEDED -> name below the mount
  std::string cache_target_;                    ///< canonical; empty: the image has none
  std::set<std::string> found_by_tag_;          ///< targets found by RPATH or RUNPATH
  std::vector<std::pair<std::string, std::string>> loads_;
  std::vector<std::string> warnings_;
};

/// A line for each remaining library of the container that needs symbols which the host's
/// replacement of a library lacks. Mostly a part of the container's MPI that only its launcher and
/// tools load (libopen-pal.so.80 of Open MPI 5 with a host's Open MPI 4 and older PMIx). Fails if
/// the container's program is such a launcher or tool.
Result<void> check_left_behind(const PlacementFacts& in, const SideChoice& sides,
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
      const auto* facts = in.inside.symbols().of(object->path);
      if (facts == nullptr) break;
      const auto lost = lost_symbols(*facts, in.inside.symbols().exports(pick->container->path),
                                     in.host.symbols().exports(pick->host.path));
      if (lost.empty()) continue;
      const auto line = object->path + " stays and needs " + shortened(lost) + " of " + need.name +
                        ", which the host's " + pick->host.path + " lacks: ";
      if (object == &in.inside.programs()[0].closure.objects[0])
        return fail("", line + "it would abort", "",
                    "start the program's ranks by the host's launcher, one container a rank");
      warnings.push_back(line +
                         "programs of the container that call them through it (its MPI's own "
                         "launcher and tools) will abort");
    }
  }
  return {};
}

}  // namespace

Result<void> solve(const PlacementFacts& facts, SideChoice& sides, Decision& out) {
  for (int round = 0; round < kLibraryRounds; ++round) {
    TRY(sides.settle());
    const auto glibc = TRY(choose_glibc(facts.glibc, facts.inside, sides.taken_files()));
    Placement placement(facts, sides);
    const auto flip = placement.place(glibc);
    if (!flip)
      return fail(
          "", flip.error().message() +
                  " (host: " + (out.mpi ? out.mpi->family + " " + out.mpi->version + ", " : "") +
                  "glibc " + out.host_glibc + "; container: glibc " + out.container_glibc + ")");
    if (*flip && sides.flip_to_host((*flip)->soname, (*flip)->line)) continue;
    out.outcome = Outcome::swap;
    out.glibc = glibc.taken;
    out.glibc_why = glibc.why;
    out.choices = glibc.choices;
    for (const auto* pick : sides.picks())
      out.choices.push_back({pick->host.soname, pick->taken, pick->host.path,
                             pick->container ? pick->container->path : "", pick->rule, pick->why});
    std::ranges::sort(out.choices, {}, &SonameChoice::soname);
    for (const auto* list : {&sides.warnings(), &glibc.warnings})
      out.warnings.insert(out.warnings.end(), list->begin(), list->end());
    TRY(check_left_behind(facts, sides, out.warnings));
    placement.write(out);
    return {};
  }
  return fail("", "no choice between the host's and the container's libraries found in " +
                      std::to_string(kLibraryRounds) + " rounds");
}

}  // namespace heddle::policy
