// SPDX-License-Identifier: MIT
#include "resolver/policy/side_choice.hpp"

#include <algorithm>

#include "base/try.hpp"
#include "resolver/policy/versions.hpp"

namespace heddle::policy {
namespace {

constexpr int kRounds = 16;  // each changes a mind, and no mind changes twice

bool depends_on(const ElfFacts& elf, const std::string& soname) {
  return std::any_of(elf.dependencies.begin(), elf.dependencies.end(),
                     [&](const Dependency& need) { return need.name == soname; });
}

}  // namespace

Pick* SideChoice::find(const std::string& name) {
  const auto known = by_name_.find(name);
  if (known == by_name_.end()) return nullptr;
  const auto pick = picks_.find(known->second);
  return pick == picks_.end() ? nullptr : &pick->second;
}

const Pick* SideChoice::find(const std::string& name) const {
  return const_cast<SideChoice*>(this)->find(name);
}

void SideChoice::force(const std::string& soname, std::vector<std::string> names,
                       std::optional<ContainerFile> container, const std::string& why) {
  const auto file = host_.files().find(soname);
  if (file == host_.files().end()) return;
  names.insert(names.begin(), soname);
  for (const auto& name : names) by_name_.emplace(name, soname);
  picks_[soname] = {file->second, std::move(container), Side::host, Rule::mpi_stack,
                    why,          std::move(names),     true,       false};
}

void SideChoice::compare(Pick& pick) {
  const auto& host = pick.host.file.elf;
  const auto decide = [&](Side side, Rule rule, std::string why) {
    pick.taken = side;
    pick.rule = rule;
    pick.why = std::move(why);
  };
  if (!pick.host.stack_part.empty())
    return decide(Side::host, Rule::mpi_stack,
                  "part of the host's MPI stack: " + pick.host.stack_part);
  if (!pick.container) return decide(Side::host, Rule::only_host, "the container has none");
  const auto& container = pick.container->file.elf;
  if (pick.host.file.hash == pick.container->file.hash)
    return decide(Side::container, Rule::versions, "both have the same file");
  const bool versioned =
      !host.version_definitions.empty() || !container.version_definitions.empty();
  const auto rule = versioned ? Rule::versions : Rule::symbols;
  const char* what = versioned ? "versions" : "symbols";
  const auto offers = [&](SymbolReader& reader, const std::string& path, const ElfFacts& elf) {
    if (versioned) return elf.version_definitions;
    const auto* facts = reader.of(path);
    return facts == nullptr ? std::vector<std::string>() : exported_names(*facts);
  };
  auto host_offers = offers(host_.symbols(), pick.host.path, host);
  auto container_offers = offers(inside_symbols_, pick.container->path, container);
  switch (compare_offers(host_offers, container_offers)) {
    case Contains::equal:
      return decide(Side::container, rule, std::string("both offer the same ") + what);
    case Contains::first:
      return decide(Side::host, rule,
                    std::string("the host's offers all ") + what + " of the container's, and more");
    case Contains::second:
      return decide(Side::container, rule,
                    std::string("the container's offers all ") + what + " of the host's, and more");
    case Contains::neither:
      pick.open = true;
      return decide(Side::container, Rule::needs, "it offers all that is asked of it");
  }
}

bool SideChoice::add_directories(const std::vector<PluginDirectory>& directories) {
  bool more = false;
  for (const auto& [soname, file] : host_.files()) {
    if (picks_.contains(soname) || is_glibc_part(file.file.elf)) continue;
    Pick pick;
    pick.host = file;
    pick.names = {soname};
    if (const auto* container = inside_.find(soname)) pick.container = *container;
    compare(pick);
    by_name_.emplace(soname, soname);
    picks_.emplace(soname, std::move(pick));
    more = true;
  }
  for (const auto& directory : directories) {
    const bool known =
        std::any_of(directories_.begin(), directories_.end(),
                    [&](const PluginDirectory& one) { return one.path == directory.path; });
    const bool wanted = std::any_of(picks_.begin(), picks_.end(), [&](const auto& entry) {
      return entry.second.host.path == directory.wanted_by && entry.second.taken == Side::host;
    });
    if (known || !wanted) continue;
    directories_.push_back(directory);
    host_.add_plugins(directory);
    more = true;
  }
  return more;
}

std::vector<SideChoice::User> SideChoice::users() {
  std::vector<User> out;
  for (auto& [soname, pick] : picks_) {
    if (pick.taken == Side::host)
      out.push_back({pick.host.path, &pick.host.file.elf, &pick, false});
    else if (pick.container)
      out.push_back({pick.container->path, &pick.container->file.elf, &pick, false});
  }
  for (const auto& [name, plugin] : host_.plugins())
    if (is_served(name)) out.push_back({plugin.path, &plugin.file.elf, nullptr, true});
  for (const auto* object : inside_.objects())
    if (stack_.part_of(object->file.stamp.id) == nullptr &&
        find(object->file.elf.soname.value_or("")) == nullptr)
      out.push_back({object->path, &object->file.elf, nullptr, false});
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
    for (const auto& need : user.elf->version_needs) {
      auto* pick = find(need.file);
      if (pick == nullptr || pick == user.pick) continue;
      const auto missing = [&](Side side) {
        const ElfFacts* elf = side == Side::host ? &pick->host.file.elf
                              : pick->container  ? &pick->container->file.elf
                                                 : nullptr;
        return elf == nullptr ? std::vector<std::string>{need.version}
                              : missing_versions(*user.elf, need.file, *elf);
      };
      const auto lacking = missing(pick->taken);
      if (lacking.empty()) continue;
      const auto other = pick->taken == Side::host ? Side::container : Side::host;
      if (!pick->fixed && missing(other).empty()) {
        flip(*pick, other, user.path + " needs " + shortened(lacking));
        return true;
      }
      if (user.pick != nullptr && !user.pick->fixed && user.pick->container &&
          user.pick->host.stack_part.empty()) {
        flip(*user.pick, user.pick->taken == Side::host ? Side::container : Side::host,
             need.file + " of the other side lacks " + shortened(lacking));
        return true;
      }
      const auto line = user.path + " needs " + shortened(lacking) + " of " + need.file +
                        ", which neither the host's " + pick->host.path + " nor " +
                        (pick->container ? "the container's " + pick->container->path
                                         : std::string("the container")) +
                        " can give it";
      if (!user.is_plugin) return fail("", line);
      if (std::find(warnings_.begin(), warnings_.end(), line) == warnings_.end())
        warnings_.push_back(line);
    }
  }
  return false;
}

/// Symbols in place of versions, for a library without them.
Result<bool> SideChoice::check_open(Pick& pick) {
  if (!pick.open || pick.fixed || !pick.host.file.elf.version_definitions.empty() ||
      !pick.container || !pick.container->file.elf.version_definitions.empty())
    return false;
  const auto& host_has = host_.symbols().exports(pick.host.path);
  const auto& container_has = inside_symbols_.exports(pick.container->path);
  std::string host_wants;
  for (const auto* file : taken_files()) {
    if (!depends_on(file->file.elf, pick.host.soname)) continue;
    const auto* facts = host_.symbols().of(file->path);
    if (facts == nullptr) continue;
    if (const auto names = lost_symbols(*facts, host_has, container_has); !names.empty())
      host_wants = file->path + " needs " + shortened(names);
  }
  if (host_wants.empty()) return false;
  for (const auto* object : inside_.objects()) {
    if (stack_.part_of(object->file.stamp.id) != nullptr ||
        !depends_on(object->file.elf, pick.host.soname) ||
        find(object->file.elf.soname.value_or("")) != nullptr)
      continue;
    const auto* facts = inside_symbols_.of(object->path);
    if (facts == nullptr) continue;
    if (const auto names = lost_symbols(*facts, container_has, host_has); !names.empty())
      return fail("", pick.host.soname + ": the host's " + host_wants +
                          ", which the container's lacks; the container's " + object->path +
                          " needs " + shortened(names) + ", which the host's lacks");
  }
  flip(pick, Side::host, host_wants);
  return true;
}

Result<void> SideChoice::settle(const std::vector<PluginDirectory>& directories) {
  for (int round = 0; round < kRounds * 16; ++round) {
    while (add_directories(directories)) {
    }
    bool changed = TRY(check_versions());
    for (auto& [soname, pick] : picks_) {
      if (changed) break;
      changed = TRY(check_open(pick));
    }
    if (!changed) break;
  }
  // A library whose mind changed takes its plugins with it.
  std::erase_if(directories_, [&](const PluginDirectory& directory) {
    return std::none_of(picks_.begin(), picks_.end(), [&](const auto& entry) {
      return entry.second.host.path == directory.wanted_by && entry.second.taken == Side::host;
    });
  });
  return {};
}

bool SideChoice::is_served(const std::string& plugin) const {
  return std::any_of(directories_.begin(), directories_.end(),
                     [&](const PluginDirectory& directory) {
                       return plugin.starts_with(directory.view_name + "/");
                     });
}

std::set<std::string> SideChoice::reachable() const {
  std::set<std::string> out;
  std::vector<const ElfFacts*> work;
  const auto reach = [&](const std::string& soname) {
    const auto pick = picks_.find(soname);
    if (pick == picks_.end() || !out.insert(soname).second) return;
    if (pick->second.taken == Side::host) work.push_back(&pick->second.host.file.elf);
  };
  for (const auto& [soname, pick] : picks_)
    if (pick.fixed && pick.rule == Rule::mpi_stack) reach(soname);
  for (const auto& [name, plugin] : host_.plugins())
    if (is_served(name)) work.push_back(&plugin.file.elf);
  while (!work.empty()) {
    const auto* elf = work.back();
    work.pop_back();
    for (const auto& need : elf->dependencies)
      if (const auto known = by_name_.find(need.name); known != by_name_.end())
        reach(known->second);
  }
  return out;
}

std::vector<const Pick*> SideChoice::picks() const {
  std::vector<const Pick*> out;
  for (const auto& soname : reachable()) out.push_back(&picks_.at(soname));
  return out;
}

std::vector<const HostFile*> SideChoice::taken_files() const {
  std::vector<const HostFile*> out;
  for (const auto* pick : picks())
    if (pick->taken == Side::host) out.push_back(&pick->host);
  for (const auto& [name, plugin] : host_.plugins())
    if (is_served(name)) out.push_back(&plugin);
  return out;
}

}  // namespace heddle::policy
