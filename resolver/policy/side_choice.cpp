// SPDX-License-Identifier: MIT
#include "resolver/policy/solver.hpp"

#include <algorithm>

#include "base/try.hpp"

namespace heddle::policy {
namespace {

constexpr int kRounds = 256;  // each changes one side, and none twice

Side other(Side side) { return side == Side::host ? Side::container : Side::host; }

bool depends_on(const ElfFacts& elf, const std::string& soname) {
  return std::ranges::find(elf.dependencies, soname, &Dependency::name) != elf.dependencies.end();
}

}  // namespace

Pick* SideChoice::find(const std::string& name) {
  const auto known = sonames_.find(name);
  const auto pick = known == sonames_.end() ? picks_.end() : picks_.find(known->second);
  return pick == picks_.end() ? nullptr : &pick->second;
}

const Pick* SideChoice::find(const std::string& name) const {
  return const_cast<SideChoice*>(this)->find(name);
}

void SideChoice::force(const std::string& soname, std::vector<std::string> names,
                       const std::string& why) {
  const auto file = host_.files().find(soname);
  if (file == host_.files().end()) return;
  std::optional<SideFile> container;
  for (const auto& name : names)
    if (const auto* found = container ? nullptr : inside_.find(name)) container = *found;
  names.insert(names.begin(), soname);
  for (const auto& name : names) sonames_.emplace(name, soname);
  picks_[soname] = {
      file->second, std::move(container), std::move(names), Side::host, Rule::mpi_stack, why, true};
}

void SideChoice::compare(Pick& pick) {
  const auto decide = [&](Side side, Rule rule, std::string why) {
    pick.taken = side;
    pick.rule = rule;
    pick.why = std::move(why);
  };
  if (!pick.host.stack_part.empty())
    return decide(Side::host, Rule::mpi_stack,
                  "part of the host's MPI stack: " + pick.host.stack_part);
  if (!pick.container) return decide(Side::host, Rule::only_host, "the container has none");
  if (pick.host.file.hash == pick.container->file.hash)
    return decide(Side::container, Rule::versions, "both have the same file");
  const bool versioned = !pick.host.file.elf.version_definitions.empty() ||
                         !pick.container->file.elf.version_definitions.empty();
  const auto rule = versioned ? Rule::versions : Rule::symbols;
  const std::string what = versioned ? "versions" : "symbols";
  const auto offers = [&](Side side) {
    const auto& file = *pick.file(side);
    if (versioned) return defined_versions(file.file.elf);
    const auto* facts = symbols(side).of(file.path);
    return facts == nullptr ? std::set<std::string>() : exported_names(*facts);
  };
  switch (compare_offers(offers(Side::host), offers(Side::container))) {
    case Contains::equal:
      return decide(Side::container, rule, "both offer the same " + what);
    case Contains::first:
      return decide(Side::host, rule,
                    "the host's offers all " + what + " of the container's, and more");
    case Contains::second:
      return decide(Side::container, rule,
                    "the container's offers all " + what + " of the host's, and more");
    case Contains::neither:
      pick.open = true;
      return decide(Side::container, Rule::needs, "it has all that its users need");
  }
}

std::vector<PluginDirectory> SideChoice::directories() const {
  std::vector<PluginDirectory> out;
  for (const auto& directory : all_directories_) {
    const bool wanted = std::ranges::any_of(picks_, [&](const auto& entry) {
      return entry.second.host.path == directory.wanted_by && entry.second.taken == Side::host;
    });
    if (wanted && std::ranges::find(out, directory.path, &PluginDirectory::path) == out.end())
      out.push_back(directory);
  }
  return out;
}

/// Adds the host's libraries that are not decided yet. False: none.
bool SideChoice::add_new_libraries() {
  bool more = false;
  for (const auto& [soname, file] : host_.files()) {
    if (picks_.contains(soname) || is_glibc_part(file.file.elf)) continue;
    Pick pick{file, std::nullopt, {soname}};
    if (const auto* container = inside_.find(soname)) pick.container = *container;
    compare(pick);
    sonames_.emplace(soname, soname);
    picks_.emplace(soname, std::move(pick));
    more = true;
  }
  for (const auto& directory : directories()) more |= host_.add_plugins(directory);
  return more;
}

std::vector<const SideFile*> SideChoice::plugins() const {
  const auto served = directories();
  std::vector<const SideFile*> out;
  for (const auto& [name, plugin] : host_.plugins())
    if (std::ranges::any_of(served, [&, &file = name](const PluginDirectory& directory) {
          return file.starts_with(directory.view_name + "/");
        }))
      out.push_back(&plugin);
  return out;
}

std::vector<SideChoice::User> SideChoice::users() {
  std::vector<User> out;
  for (auto& [soname, pick] : picks_)
    if (const auto* file = pick.file(pick.taken))
      out.push_back({file->path, file->file.elf, &pick});
  for (const auto* plugin : plugins())
    out.push_back({plugin->path, plugin->file.elf, nullptr, true});
  for (const auto* object : inside_.objects())
    if (stack_.part_of(object->file.stamp.id) == nullptr &&
        find(object->file.elf.soname.value_or("")) == nullptr)
      out.push_back({object->path, object->file.elf});
  return out;
}

void SideChoice::flip(Pick& pick, Side side, const std::string& why) {
  pick.taken = side;
  pick.rule = Rule::needs;
  pick.why = why;
  pick.fixed = true;
  if (side == Side::host && pick.container && pick.open)
    warnings_.push_back(pick.host.soname + ": the host's is taken (" + why +
                        ") and lacks some of what the container's offers: other programs of the "
                        "container may miss it");
}

bool SideChoice::flip_to_host(const std::string& name, const std::string& why) {
  auto* pick = find(name);
  if (pick == nullptr || pick->fixed || pick->taken == Side::host) return false;
  flip(*pick, Side::host, why);
  return true;
}

Result<bool> SideChoice::check_versions() {
  for (const auto& user : users()) {
    for (const auto& need : user.elf.version_needs) {
      auto* pick = find(need.file);
      if (pick == nullptr || pick == user.pick) continue;
      const auto missing = [&](Side side) {
        const auto* file = pick->file(side);
        return file == nullptr ? std::vector<std::string>{need.version}
                               : missing_versions(user.elf, need.file, file->file.elf);
      };
      const auto lacking = missing(pick->taken);
      if (lacking.empty()) continue;
      if (!pick->fixed && missing(other(pick->taken)).empty()) {
        flip(*pick, other(pick->taken), user.path + " needs " + shortened(lacking));
        return true;
      }
      if (user.pick != nullptr && !user.pick->fixed && user.pick->container &&
          user.pick->host.stack_part.empty()) {
        flip(*user.pick, other(user.pick->taken),
             need.file + " of the other side lacks " + shortened(lacking));
        return true;
      }
      const auto line = user.path + " needs " + shortened(lacking) + " of " + need.file +
                        ", which neither the host's " + pick->host.path + " nor " +
                        (pick->container ? "the container's " + pick->container->path
                                         : std::string("the container")) +
                        " provides";
      if (!user.is_plugin) return fail("", line);
      if (!holds(warnings_, line)) warnings_.push_back(line);
    }
  }
  return false;
}

/// By symbols, for a library without versions.
Result<bool> SideChoice::check_open(Pick& pick) {
  if (!pick.open || pick.fixed || !pick.host.file.elf.version_definitions.empty() ||
      !pick.container || !pick.container->file.elf.version_definitions.empty())
    return false;
  /// Symbols that a file of `side` needs of that side's library and the other side's lacks.
  const auto needs_of = [&](Side side, const std::string& path, const ElfFacts& elf) {
    const auto* facts = depends_on(elf, pick.host.soname) ? symbols(side).of(path) : nullptr;
    if (facts == nullptr) return std::string();
    const auto names = lost_symbols(*facts, symbols(side).exports(pick.file(side)->path),
                                    symbols(other(side)).exports(pick.file(other(side))->path));
    return names.empty() ? "" : path + " needs " + shortened(names);
  };
  std::string host_wants;
  for (const auto* file : taken_files())
    if (auto needs = needs_of(Side::host, file->path, file->file.elf); !needs.empty())
      host_wants = std::move(needs);
  if (host_wants.empty()) return false;
  for (const auto* object : inside_.objects()) {
    if (stack_.part_of(object->file.stamp.id) != nullptr ||
        find(object->file.elf.soname.value_or("")) != nullptr)
      continue;
    const auto needs = needs_of(Side::container, object->path, object->file.elf);
    if (!needs.empty())
      return fail("", pick.host.soname + ": the host's " + host_wants +
                          ", which the container's lacks; the container's " + needs +
                          ", which the host's lacks");
  }
  flip(pick, Side::host, host_wants);
  return true;
}

Result<void> SideChoice::settle() {
  for (int round = 0; round < kRounds; ++round) {
    while (add_new_libraries()) {
    }
    bool changed = TRY(check_versions());
    for (auto& [soname, pick] : picks_) {
      if (changed) break;
      changed = TRY(check_open(pick));
    }
    if (!changed) break;
  }
  return {};
}

std::vector<const Pick*> SideChoice::picks() const {
  std::set<std::string> reached;
  std::vector<const ElfFacts*> work;
  const auto reach = [&](const Pick& pick) {
    if (reached.insert(pick.host.soname).second && pick.taken == Side::host)
      work.push_back(&pick.host.file.elf);
  };
  for (const auto& [soname, pick] : picks_)
    if (pick.fixed && pick.rule == Rule::mpi_stack) reach(pick);
  for (const auto* plugin : plugins()) work.push_back(&plugin->file.elf);
  while (!work.empty()) {
    const auto* elf = work.back();
    work.pop_back();
    for (const auto& need : elf->dependencies)
      if (const auto* pick = find(need.name)) reach(*pick);
  }
  std::vector<const Pick*> out;
  for (const auto& soname : reached) out.push_back(&picks_.at(soname));
  return out;
}

std::vector<const SideFile*> SideChoice::taken_files() const {
  std::vector<const SideFile*> out;
  for (const auto* pick : picks())
    if (pick->taken == Side::host) out.push_back(&pick->host);
  const auto served = plugins();
  out.insert(out.end(), served.begin(), served.end());
  return out;
}

}  // namespace heddle::policy
