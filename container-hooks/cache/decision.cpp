// SPDX-License-Identifier: MIT
#include "container-hooks/cache/decision.hpp"

#include <algorithm>

#include "base/try.hpp"

namespace heddle::hook {
namespace {

bool is_clean(const std::string& path) {
  return !path.empty() && path.find('\0') == path.npos &&
         ("/" + path + "/").find("/../") == path.npos;
}

bool is_bind(const std::string& source, const std::string& target) {
  return is_clean(source) && !source.starts_with('/') && is_clean(target) &&
         target.starts_with('/');
}

}  // namespace

Result<Decision> parse_decision(const std::string& text, const std::string& name) {
  auto out = TRY(parse_container_decision(text, name));
  if (out.outcome != Outcome::swap) return out;
  if (!is_bind("mount", out.mount_point) || out.mount_point == "/")
    return fail(name, "cannot use it", "it has no mount_point");
  const auto is_safe = [](const auto& bind) { return is_bind(bind.source, bind.target); };
  if (!std::ranges::all_of(out.binds, is_safe) || !std::ranges::all_of(out.directories, is_safe))
    return fail(name, "cannot use it", "a bind has an invalid source or target");
  return out;
}

/// As ld.so spells them: with the `..` of $ORIGIN/../lib, since they are only opened with the image
/// as root.
std::vector<std::string> image_files(const Decision& decision) {
  std::vector<std::string> out{"/etc/ld.so.cache"};
  const auto add = [&](const std::string& path) {
    if (!path.starts_with('/') || path.find('\0') != path.npos) return;
    if (decision.mount_point.empty() || !path.starts_with(decision.mount_point + "/"))
      out.push_back(path);
  };
  for (const auto* list : {&decision.programs, &decision.asked})
    for (const auto& path : *list) add(path);
  add(decision.interpreter_file);
  for (const auto& choice : decision.choices) add(choice.container);
  for (const auto& load : decision.loads) add(load.second);
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

std::string host_mpi(const Decision& decision) {
  if (!decision.mpi) return {};
  const auto& version = decision.mpi->version;
  return decision.mpi->family + " " + (version.empty() ? "?" : version);
}

}  // namespace heddle::hook
