// SPDX-License-Identifier: MIT
#include "resolver/policy/left_behind.hpp"

#include "resolver/policy/versions.hpp"

namespace heddle {
namespace {

bool is_hosts(const Pick* pick) { return pick != nullptr && pick->taken == Side::host; }

}  // namespace

std::vector<std::string> left_behind(ContainerSide& inside, SymbolReader& inside_symbols,
                                     SymbolReader& host_symbols, const SideChoice& sides,
                                     const ContainerStack& stack) {
  std::vector<std::string> out;
  for (const auto* object : inside.objects()) {
    const auto& elf = object->file.elf;
    if (stack.part_of(object->file.stamp.id) != nullptr ||
        is_hosts(sides.find(elf.soname.value_or(""))))
      continue;
    for (const auto& need : elf.dependencies) {
      const auto* pick = sides.find(need.name);
      if (!is_hosts(pick) || !pick->container ||
          stack.part_of(pick->container->file.stamp.id) != nullptr)
        continue;
      const auto* facts = inside_symbols.of(object->path);
      if (facts == nullptr) break;
      const auto lost = lost_symbols(*facts, inside_symbols.exports(pick->container->path),
                                     host_symbols.exports(pick->host.path));
      if (!lost.empty())
        out.push_back(object->path + " stays and needs " + shortened(lost) + " of " + need.name +
                      ", which the host's " + pick->host.path +
                      " lacks: programs of the container that call them through it (its MPI's own "
                      "launcher and tools) will end there");
    }
  }
  return out;
}

}  // namespace heddle
