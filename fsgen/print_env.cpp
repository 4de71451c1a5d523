// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/fd.hpp"
#include "base/file_stamp.hpp"
#include "base/log.hpp"
#include "base/try.hpp"
#include "fsgen/gen_options.hpp"
#include "fsgen/guided_environment.hpp"
#include "fuseovl/mount/kernel_mount.hpp"
#include "fuseovl/mount/stats_attribute.hpp"
#include "resolver/map/map_reader.hpp"

namespace heddle {
namespace {

/// Nothing of GLIBC_TUNABLES: it depends on the program, and the auditor restarts one that needs
/// more static TLS.
struct MountEnvironment {
  std::string audit_library;  ///< goes before the value of LD_AUDIT, once
  std::string index_path;     ///< HEDDLE_INDEX
};

/// Tcl(n): a backslash before any special character.
std::string quoted_for_tcl(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {  // backslash and newline would be a space
      out += "\\n";
      continue;
    }
    if (std::string_view(" \t\r\v\f;\"$[]{}\\#").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

std::optional<FileId> id_of(const std::string& path) {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) return std::nullopt;
  return file_id(st);
}

/// The text that sets `environment`; any byte in a path is quoted.
std::string to_shell_text(const MountEnvironment& environment, ShellKind shell) {
  const auto& audit = environment.audit_library;
  const auto& index = environment.index_path;
  switch (shell) {
    case ShellKind::sh:
      return fmt::format(
          "case \":${{LD_AUDIT-}}:\" in *:{0}:*) ;; *) LD_AUDIT={0}${{LD_AUDIT:+:$LD_AUDIT}} ;; "
          "esac\nexport LD_AUDIT HEDDLE_INDEX={1}\n",
          quote_for_shell(audit), quote_for_shell(index));
    case ShellKind::fish:
      return fmt::format(
          "if not set -q LD_AUDIT; or test -z \"$LD_AUDIT\"; set -gx LD_AUDIT {0}; else if not "
          "contains -- {0} (string split : -- $LD_AUDIT); set -gx LD_AUDIT {0}:\"$LD_AUDIT\"; "
          "end\nset -gx HEDDLE_INDEX {1}\n",
          quote_for_fish(audit), quote_for_fish(index));
    case ShellKind::modulefile:
      return fmt::format("prepend-path LD_AUDIT {}\nsetenv HEDDLE_INDEX {}\n",
                         quoted_for_tcl(audit), quoted_for_tcl(index));
    case ShellKind::json:
      break;
  }
  const nlohmann::ordered_json json = {{"LD_AUDIT", to_json_text(audit)},
                                       {"HEDDLE_INDEX", to_json_text(index)}};
  return json.dump(2) + "\n";
}

/// The environment for the mount of `map` at `directory`; nullopt, with the reason in `why_not`,
/// when there is no heddle mount, one of another map, or its index is not at the path that the
/// daemon knows. `is_dead`: its daemon has died.
Result<std::optional<MountEnvironment>> mount_environment(const std::string& map,
                                                          const std::string& directory,
                                                          std::string& why_not, bool& is_dead) {
  const auto reader = TRY(MapReader::open(map));
  const std::string path = TRY(resolve_mount_point(directory));
  const auto mounted = TRY(find_mount(path));
  const auto none = [&](const std::string& why) {
    why_not = why;
    return std::optional<MountEnvironment>();
  };
  if (!mounted || mounted->type != kMountType) return none("no heddle mount is here");
  const auto text = read_stats_text(path);
  is_dead = !text && text.error().code() == ENOTCONN;
  if (!text) return none(text.error().message());
  const auto stats = nlohmann::json::parse(*text, nullptr, false);
  if (!stats.is_object()) return none("its statistics cannot be read");
  if (stats.value("map_id", "") != reader.id().hex()) return none("it serves another map");
  // The index's paths begin with the mount point that the daemon knows.
  auto known = stats.value("mount_point", "");
  if (known == to_json_text(path)) known = path;
  const auto index = known + "/.heddle/index";
  const auto here = id_of(path + "/.heddle/index");
  if (!here || id_of(index) != here) return none("it was mounted elsewhere: " + index);

  std::string audit = TRY(audit_library_path());
  return std::optional(MountEnvironment{std::move(audit), index});
}

/// A command that fails: eval of nothing would succeed.
std::string failing_text(ShellKind shell) {
  if (shell == ShellKind::json) return {};
  return shell == ShellKind::modulefile ? "error {heddle: no mount}\n"
                                        : "false # fs-gen --print-env failed\n";
}

}  // namespace

int print_env(const GenOptions& options) {
  const auto& directory = options.command[1];
  std::string why_not;
  bool is_dead = false;
  const auto environment = mount_environment(options.command[0], directory, why_not, is_dead);
  const bool good = environment && *environment;
  value_or_throw(write_all(
      STDOUT_FILENO,
      good ? to_shell_text(**environment, options.shell) : failing_text(options.shell), "stdout"));
  if (good) return exit_done;
  if (!environment) throw Error(environment.error());
  report(Error(directory, "no mount of this map", why_not,
               is_dead ? "its daemon has died: fs-mount -u DIR, then fs-mount MAP DIR"
                       : "fs-mount MAP DIR makes one, fs-mount --reload MAP DIR of another"));
  return exit_no;
}

}  // namespace heddle
