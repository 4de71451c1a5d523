// SPDX-License-Identifier: MIT
#include "resolver/policy/placement.hpp"

#include <algorithm>

#include "resolver/policy/closure_checks.hpp"
#include "resolver/search/ld_so_cache.hpp"

namespace heddle {
namespace {

constexpr int kRounds = 8;
constexpr const char* kCache = "ld.so.cache";

}  // namespace

void Placement::write_cache() {
  const auto& loader = inside_.loader();
  std::vector<CacheLine> lines;
  std::set<std::string> known;
  for (const auto& [name, path] : names_.files) {
    if (name.find('/') != name.npos || name == loader.soname) continue;
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
    if (const auto at = names_.sonames.find(part->soname); at != names_.sonames.end()) {
      lines.push_back({name, mount_point_ + "/" + at->second});
      known.insert(name);
    }
  }
  cache_ = write_ld_so_cache(inside_.cache(), lines, loader);
}

SwappedWorld::Placed Placement::placed() const {
  SwappedWorld::Placed out{mount_point_, names_.files, {}, made_, cache_place_.path, cache_};
  for (const auto& [target, bind] : binds_)
    if (!made_.contains(target)) out.binds[target] = names_.files.at(bind.source);
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
  const auto old = unmet_needs(before);
  for (const auto& need : unmet_needs(after)) {
    if (host_can(need.soname)) return {need.soname, need.line, ""};
    const bool was_so = std::any_of(old.begin(), old.end(),
                                    [&](const UnmetNeed& one) { return one.line == need.line; });
    if (!was_so) return {"", "", need.line};
    warnings_.push_back("without heddle too, " + need.line);
  }
  return {};
}

/// What is known before ld.so's search is followed.
void Placement::begin(const SideChoice& sides, const GlibcChoice& glibc) {
  warnings_.clear();
  binds_.clear();
  made_.clear();
  found_by_tag_.clear();
  names_ = served_names(sides, glibc, glibc_);
  bind_known(sides, glibc);
  cache_place_ = find_cache_place(inside_, host_, glibc_, glibc, mount_point_);
  if (!cache_place_.loader) return;
  const auto target = inside_.world().real_path(inside_.loader().interpreter);
  made_[target] = *cache_place_.loader;
  binds_.insert_or_assign(
      target, FileBind{kOwnFolder + cache_place_.loader->name, target, cache_place_.why});
}

/// The programs as ld.so would load them now. What it finds without the cache gets the host's over
/// it: `more`.
std::string Placement::resolve_programs(SwappedWorld& world, const LoaderProfile& loader,
                                        std::vector<Closure>& after, bool& more) {
  after.clear();
  for (const auto& program : inside_.programs()) {
    auto closure = resolve(world, loader, program.path, search_);
    if (!closure) return closure.error().message();
    more |= bind_strays(*closure);
    after.push_back(std::move(*closure));
  }
  return {};
}

Placement::Trouble Placement::place(const SideChoice& sides, const GlibcChoice& glibc) {
  begin(sides, glibc);
  if (!cache_place_.conflict.empty()) return {"", "", cache_place_.conflict};
  std::vector<Closure> after;
  for (int round = 0; round < kRounds; ++round) {
    write_cache();
    SwappedWorld world(inside_.world(), host_, placed());
    auto loader = read_loader_profile(world, inside_.loader().interpreter);
    if (!loader) return {"", "", loader.error().message()};
    loader->cache_path = cache_place_.path;
    bool more = false;
    if (auto failed = resolve_programs(world, *loader, after, more); !failed.empty())
      return {"", "", std::move(failed)};
    more = more || bind_strays_of_plugins(world, *loader);
    const auto stayed = stack_.stays.size();
    more = more || bind_strays_of_copies(world, *loader, sides);
    if (stack_.stays.size() != stayed) return place(sides, glibc);  // once for each folder at most
    if (more || hide_strays(sides)) continue;
    if (auto found = judge(after, world, sides, glibc);
        !found.flip.empty() || !found.conflict.empty())
      return found;
    conclude(after[0], world, *loader, sides);
    return {};
  }
  return {"", "", "the container's libraries lead from one to another without end"};
}

/// Every file of the host is where it is found: whether the programs work so.
Placement::Trouble Placement::judge(const std::vector<Closure>& after, SwappedWorld& world,
                                    const SideChoice& sides, const GlibcChoice& glibc) {
  const auto& programs = inside_.programs();
  for (const auto& closure : after)
    if (auto part = stranded_part(closure, world, inside_.world(), host_, glibc_, glibc);
        !part.empty())
      return {"", "", std::move(part)};
  for (std::size_t i = 0; i < after.size(); ++i)
    if (auto found = check(programs[i].closure, after[i], sides);
        !found.flip.empty() || !found.conflict.empty())
      return found;
  return {};
}

void Placement::warn_of_copies() {
  for (const auto& [folder, why] : stack_.stays)
    warnings_.push_back("what of MPI is in " + folder +
                        " stays for programs that nobody named: " + why);
  for (const auto& [path, why] : stack_.mixed)
    warnings_.push_back(path + ": " + why +
                        ", and the host's MPI goes over what is beside it: a program that loads it "
                        "mixes both");
}

void Placement::conclude(const Closure& first, SwappedWorld& world, const LoaderProfile& loader,
                         const SideChoice& sides) {
  for (auto& line : plugins_that_fail(names_, world, loader, search_, mount_point_))
    warnings_.push_back(std::move(line));
  warn_of_copies();
  plugins_ =
      find_plugin_places(sides.folders(), binds_, names_, inside_.world(), host_, mount_point_);
  loads_.clear();
  for (std::size_t i = 1; i < first.objects.size(); ++i) {
    const auto& object = first.objects[i];
    loads_.emplace_back(object.file.elf.soname.value_or(object.requested_as), object.path);
  }
}

void Placement::write(Decision& decision) const {
  decision.names = plugins_.names;
  decision.ld_so_cache = cache_;
  for (const auto& [target, bind] : binds_) decision.binds.push_back(bind);
  for (const auto& [target, made] : made_) decision.made[kOwnFolder + made.name] = made.bytes;
  if (!cache_place_.target.empty())
    decision.binds.push_back({std::string(kOwnFolder) + kCache, cache_place_.target,
                              "the host's libraries are found by it, the container's as before"});
  decision.folders = plugins_.folders;
  decision.environment = plugins_.environment;
  decision.changed = plugins_.changed;
  decision.made.insert(plugins_.made.begin(), plugins_.made.end());
  decision.loads = loads_;
  decision.warnings.insert(decision.warnings.end(), warnings_.begin(), warnings_.end());
}

}  // namespace heddle
