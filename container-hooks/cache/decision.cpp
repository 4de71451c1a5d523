// SPDX-License-Identifier: MIT
#include "container-hooks/cache/decision.hpp"

#include <algorithm>

#include "base/try.hpp"
#include "container-hooks/oci/json_text.hpp"

namespace heddle::hook {
namespace {

constexpr long kVersion = 1;

bool is_clean(const std::string& path) {
  return !path.empty() && path.find('\0') == path.npos &&
         ("/" + path + "/").find("/../") == path.npos;
}

Result<Bind> read_bind(const Json& entry, const std::string& name) {
  Bind bind{text_member(entry, "source"), text_member(entry, "target")};
  if (!is_clean(bind.source) || bind.source.starts_with('/') || !is_clean(bind.target) ||
      !bind.target.starts_with('/'))
    return fail(name, "cannot use it", "a bind has an invalid source or target");
  return bind;
}

std::string describe_mpi(const Json& mpi) {
  const auto version = text_member(mpi, "version");
  return mpi.is_object() ? text_member(mpi, "family") + " " + (version.empty() ? "?" : version)
                         : "";
}

/// The image's files that were compared, will be loaded, or were probed, as ld.so spells them: with
/// the `..` of $ORIGIN/../lib, since they are only opened with the image as root.
std::vector<std::string> image_files(const Json& value) {
  const auto mount_point = text_member(value, "mount_point");
  std::vector<std::string> out{"/etc/ld.so.cache"};
  const auto add = [&](const std::string& path) {
    if (!path.starts_with('/') || path.find('\0') != path.npos) return;
    if (mount_point.empty() || !path.starts_with(mount_point + "/")) out.push_back(path);
  };
  for (const char* list : {"program", "asked"})
    for (const auto& path : texts_member(value, list)) add(path);
  add(text_member(member(value, "interpreter"), "real_path"));
  for (const Json& verdict : list_member(value, "verdict")) add(text_member(verdict, "container"));
  for (const Json& load : list_member(value, "loads")) add(text_member(load, "path"));
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace

Result<Decision> parse_decision(const std::string& text, const std::string& name) {
  const auto value = TRY(parse_json(text, name));
  const auto bad = [&](const char* what) { return fail(name, "cannot use it", what); };
  if (text_member(value, "format") != "heddle-container" ||
      number_member(value, "version") != kVersion)
    return bad("it is of another version");
  Decision out;
  const auto outcome = text_member(value, "outcome");
  if (outcome != "swap" && outcome != "nothing" && outcome != "incompatible")
    return bad("its outcome is unknown");
  out.outcome = outcome == "swap"      ? Outcome::swap
                : outcome == "nothing" ? Outcome::nothing
                                       : Outcome::incompatible;
  out.reason = text_member(value, "reason");
  out.hint = text_member(value, "hint");
  out.warnings = texts_member(value, "warnings");
  out.image_files = image_files(value);
  out.contents = text_member(value, "image_contents");
  out.map_id = text_member(value, "map_id");
  if (out.outcome != Outcome::swap) return out;

  out.mount_point = text_member(value, "mount_point");
  if (!out.mount_point.starts_with('/') || out.mount_point == "/" || !is_clean(out.mount_point))
    return bad("it has no mount_point");
  out.host_mpi = describe_mpi(member(value, "mpi"));
  out.loads_mpi = member(value, "loads_mpi") != false;
  out.programs = texts_member(value, "program");
  out.interpreter = text_member(member(value, "interpreter"), "path");
  for (const Json& entry : list_member(value, "binds")) {
    auto bind = TRY(read_bind(entry, name));
    out.binds.push_back(std::move(bind));
  }
  for (const Json& entry : list_member(value, "directories")) {
    auto bind = TRY(read_bind(entry, name));
    if (member(entry, "exists") == true)
      out.directories.push_back(std::move(bind));
    else
      out.unreachable.push_back(std::move(bind.target));
  }
  out.environment = pairs_member(value, "environment");
  for (const Json& entry : list_member(value, "verdict"))
    out.verdicts.push_back({text_member(entry, "soname"), text_member(entry, "taken") == "host",
                            text_member(entry, "why")});
  return out;
}

}  // namespace heddle::hook
