// SPDX-License-Identifier: MIT
#include "container-hooks/cache/decision.hpp"

#include <algorithm>

#include "base/try.hpp"
#include "container-hooks/oci/json_text.hpp"

namespace heddle::hook {
namespace {

constexpr long kVersion = 1;
constexpr const char* kOwnDirectory = ".heddle/";

bool is_clean(const std::string& path) {
  if (path.empty() || path.find('\0') != std::string::npos) return false;
  for (std::size_t at = 0; at <= path.size();) {
    const auto end = std::min(path.find('/', at), path.size());
    if (path.compare(at, end - at, "..") == 0) return false;
    at = end + 1;
  }
  return true;
}

std::vector<const Json*> list(const Json& value, const char* key) {
  std::vector<const Json*> out;
  if (const Json* found = member(value, key); found && found->is_array())
    for (const auto& entry : *found) out.push_back(&entry);
  return out;
}

bool read_bind(const Json& entry, Bind& bind) {
  bind.source = text_member(entry, "source").value_or("");
  bind.target = text_member(entry, "target").value_or("");
  bind.why = text_member(entry, "why").value_or("");
  return is_clean(bind.source) && !bind.source.starts_with('/') && is_clean(bind.target) &&
         bind.target.starts_with('/');
}

std::string describe_mpi(const Json& value) {
  const Json* mpi = member(value, "mpi");
  if (!mpi || !mpi->is_object()) return {};
  return text_member(*mpi, "family").value_or("MPI") + " " +
         text_member(*mpi, "version").value_or("?");
}

/// ld.so and its cache as fs-resolve made them, and the glibc family where it is the host's: in the
/// mount's root under their sonames.
std::vector<KeptFile> kept_files(const Json& value, const std::vector<Bind>& binds) {
  std::vector<KeptFile> out;
  for (const auto& bind : binds)
    if (bind.source.starts_with(kOwnDirectory)) out.push_back({bind.source, {}});
  for (const Json* verdict : list(value, "verdict")) {
    const auto soname = text_member(*verdict, "soname").value_or("");
    if (text_member(*verdict, "rule") == "glibc" && text_member(*verdict, "taken") == "host" &&
        is_clean(soname) && soname.find('/') == soname.npos)
      out.push_back({soname, text_member(*verdict, "host").value_or("")});
  }
  return out;
}

/// The image's files that were compared or will be loaded, and all others that were looked for. As
/// ld.so spells them, with the `..` of $ORIGIN/../lib: they are only opened with the image as root.
std::vector<std::string> image_files(const Json& value, const std::string& mount_point) {
  std::vector<std::string> out{"/etc/ld.so.cache"};
  const auto add = [&](const std::optional<std::string>& path) {
    if (!path || !path->starts_with('/') || path->find('\0') != path->npos) return;
    if (mount_point.empty() || !path->starts_with(mount_point + "/")) out.push_back(*path);
  };
  for (const Json* program : list(value, "program"))
    if (program->is_string()) add(program->get<std::string>());
  if (const Json* interpreter = member(value, "interpreter"))
    add(text_member(*interpreter, "real_path"));
  for (const Json* verdict : list(value, "verdict")) add(text_member(*verdict, "container"));
  for (const Json* load : list(value, "loads")) add(text_member(*load, "path"));
  for (const Json* path : list(value, "asked"))
    if (path->is_string()) add(path->get<std::string>());
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace

Result<Decision> parse_decision(const std::string& text, const std::string& name) {
  const auto value = TRY(parse_json(text, name));
  const auto bad = [&](const std::string& what) { return fail(name, "cannot use it", what); };
  if (text_member(value, "format") != "heddle-container" ||
      number_member(value, "version") != kVersion)
    return bad("it is of another version");
  Decision out;
  const auto outcome = text_member(value, "outcome");
  if (outcome == "swap")
    out.outcome = Outcome::swap;
  else if (outcome == "incompatible")
    out.outcome = Outcome::incompatible;
  else if (outcome != "nothing")
    return bad("its outcome is unknown");
  out.reason = text_member(value, "reason").value_or("");
  out.hint = text_member(value, "hint").value_or("");
  for (const Json* line : list(value, "warnings"))
    if (line->is_string()) out.warnings.push_back(line->get<std::string>());
  out.image_files = image_files(value, text_member(value, "mount_point").value_or(""));
  out.contents = text_member(value, "image_contents").value_or("");
  out.map_id = text_member(value, "map_id").value_or("");
  if (out.outcome != Outcome::swap) return out;

  out.mount_point = text_member(value, "mount_point").value_or("");
  if (!out.mount_point.starts_with('/') || out.mount_point == "/" || !is_clean(out.mount_point))
    return bad("it has no mount_point");
  out.host_mpi = describe_mpi(value);
  for (const Json* program : list(value, "program"))
    if (program->is_string()) out.programs.push_back(program->get<std::string>());
  if (const Json* interpreter = member(value, "interpreter"))
    out.interpreter = text_member(*interpreter, "path").value_or("");
  for (const Json* entry : list(value, "binds")) {
    Bind bind;
    if (!read_bind(*entry, bind)) return bad("one of its binds has no source or target");
    out.binds.push_back(std::move(bind));
  }
  out.kept = kept_files(value, out.binds);
  for (const Json* entry : list(value, "directories")) {
    Bind bind;
    if (!read_bind(*entry, bind)) return bad("one of its directories has no source or target");
    if (flag_member(*entry, "exists"))
      out.directories.push_back(std::move(bind));
    else
      out.unreachable.push_back(std::move(bind.target));
  }
  if (const Json* environment = member(value, "environment");
      environment && environment->is_object())
    for (const auto& [key, text_value] : environment->items())
      if (text_value.is_string()) out.environment.emplace_back(key, text_value.get<std::string>());
  for (const Json* entry : list(value, "verdict"))
    out.verdicts.push_back({text_member(*entry, "soname").value_or(""),
                            text_member(*entry, "taken") == "host",
                            text_member(*entry, "why").value_or("")});
  return out;
}

}  // namespace heddle::hook
