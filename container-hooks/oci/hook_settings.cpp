// SPDX-License-Identifier: MIT
#include "container-hooks/oci/hook_settings.hpp"

#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/escape.hpp"
#include "base/fd.hpp"
#include "base/log.hpp"
#include "base/mount_calls.hpp"
#include "base/open_regular.hpp"
#include "base/output_file.hpp"
#include "base/paths.hpp"
#include "base/trusted_path.hpp"
#include "base/try.hpp"
#include "container-hooks/host/programs.hpp"

namespace heddle::hook {
namespace {

constexpr gid_t kNoGroup = 65534;  // nogroup: no file belongs to it

/// As config.json and hooks.d spell it.
const char* stage_name(Stage stage) {
  return stage == Stage::create_runtime ? "createRuntime" : "createContainer";
}

/// The entry of OCI, hooks.d and CDI. Without an environment of its own runc passes the image's.
Json hook_entry(const std::string& program, const HookSettings& settings) {
  const HookSettings defaults;
  Json args{"fs-hook", "oci"};
  const auto add = [&](const char* option, const std::string& value) {
    args.push_back(option);
    args.push_back(value);
  };
  add("--stage", stage_name(settings.stage));
  add("--cache", settings.cache);
  add("--log", settings.log);
  add("--at", settings.mount_point);
  add("--mpi", settings.mpi);
  if (settings.node != defaults.node) add("--node", settings.node);
  if (!settings.request.program.empty()) add("--program", settings.request.program);
  if (settings.request.on_failure == OnFailure::warn) add("--policy", "warn");
  if (settings.limits.bytes != defaults.limits.bytes)
    add("--cache-limit", std::to_string(settings.limits.bytes >> 20));
  if (settings.limit != defaults.limit) add("--timeout", std::to_string(settings.limit.count()));
  if (settings.request.host_mpi) args.push_back("--always");
  for (const auto& directory : settings.allow_annotations) add("--allow-annotations", directory);
  if (!settings.hook_file.empty()) add("--hook-file", settings.hook_file);
  // No "timeout": with one crun 1.8 waits for its hook's SIGCHLD by sigtimedwait(2), misses it when
  // another child ends at the same moment, and ends the container after the timeout. The hook has a
  // limit of its own.
  return {{"path", program}, {"args", args}, {"env", Json::array({"PATH=/usr/bin:/bin"})}};
}

/// For every container with --always, else for those with the annotation heddle.mpi.
Json podman_hook(const std::string& program, const HookSettings& settings) {
  // Any value: the hook refuses a misspelt one.
  const Json annotated = {{"annotations", {{"^heddle\\.mpi$", ".*"}}}};
  return {{"version", "1.0.0"},
          {"hook", hook_entry(program, settings)},
          {"when", settings.request.host_mpi ? Json{{"always", true}} : annotated},
          {"stages", Json::array({stage_name(settings.stage)})}};
}

/// Device heddle/mpi=host, which only `podman run --device` gives to a container: no annotation,
/// label or ENV of an image does.
Json cdi_spec(const std::string& program, const HookSettings& settings) {
  Json hook = hook_entry(program, settings);
  hook["hookName"] = stage_name(settings.stage);
  return {
      {"cdiVersion", "0.5.0"},
      {"kind", "heddle/mpi"},
      {"devices",
       Json::array({{{"name", "host"}, {"containerEdits", {{"hooks", Json::array({hook})}}}}})}};
}

/// `path`: of the config.json, for messages.
Result<Json> with_hook(Json config, const std::string& path, const std::string& program,
                       const HookSettings& settings) {
  const auto bad = [&](const char* why) { return fail(path, "cannot edit", why); };
  if (!config.is_object()) return bad("it is not a JSON object");
  Json& hooks = config["hooks"];
  if (hooks.is_null()) hooks = Json::object();
  if (!hooks.is_object()) return bad("its hooks are not an object");
  for (auto& [stage, list] : hooks.items()) {
    if (!list.is_array()) continue;
    Json kept = Json::array();
    for (auto& hook : list)
      if (!is_fs_hook(hook)) kept.push_back(std::move(hook));
    list = std::move(kept);
  }
  Json& list = hooks[stage_name(settings.stage)];
  if (list.is_null()) list = Json::array();
  if (!list.is_array()) return bad("its hooks are not a list");
  list.push_back(hook_entry(program, settings));
  return config;
}

/// What each start would refuse is refused at the installation.
Result<HookSettings> usable(HookSettings hook) {
  if (hook.cache.empty())
    return fail("HOME", "is not set", "it names the directory of decisions", "give --cache");
  TRY(check_trusted_directory(hook.cache));
  std::error_code error;
  if (std::filesystem::exists(hook.cache, error) &&
      !std::filesystem::is_directory(hook.cache, error))
    return fail_errno(hook.cache, "cannot use as cache", ENOTDIR);
  return hook;
}

Result<void> print(const std::string& text) { return write_all(STDOUT_FILENO, text, "stdout"); }

/// The file with these settings is itself the request.
HookSettings requested(HookSettings hook) {
  hook.request.host_mpi = true;
  return hook;
}

/// crun hides its process from an unprivileged user's createRuntime hook; createContainer works
/// with runc too. podman's hooks run as root of its user namespace.
HookSettings for_plain_runtime(const InstallSettings& settings) {
  HookSettings hook = requested(settings.hook);
  if (!settings.stage_given && ::geteuid() != 0) hook.stage = Stage::create_container;
  return hook;
}

/// The owner of a bundle may put a link in the place of any name in it, and root would add a hook
/// to any config.json of the machine, or put that user's in any directory. So root becomes the
/// owner, without any group, in that directory, for the rest of the process; only root and the
/// owner may change the path to it.
Result<void> enter_bundle(const std::string& directory) {
  Fd opened = TRY(open_file(directory, O_PATH | O_DIRECTORY));
  struct stat status {};
  if (::fstat(opened.get(), &status) != 0) return fail_errno(directory, "cannot inspect it");
  const uid_t owner = status.st_uid;
  if (is_systems_root()) {
    TRY(check_trusted_directory(std::filesystem::absolute(directory), owner));
    opened = TRY(open_file(directory, O_PATH | O_DIRECTORY));
    if (::fstat(opened.get(), &status) != 0 || status.st_uid != owner)
      return fail_errno(directory, "cannot inspect it", ESTALE);
  }
  if (::fchdir(opened.get()) != 0) return fail_errno(directory, "cannot enter it");
  if (is_systems_root() && owner != 0 &&
      (::setgroups(0, nullptr) != 0 || ::setegid(kNoGroup) != 0 || ::seteuid(owner) != 0))
    return fail_errno(directory, "cannot become its owner");
  return {};
}

}  // namespace

Result<SwapRequest> annotated(SwapRequest request,
                              const std::map<std::string, std::string>& annotations) {
  constexpr const char* kCannot = "invalid annotation";
  const auto mpi = annotations.find("heddle.mpi");
  if (mpi != annotations.end()) {
    if (mpi->second != "host" && mpi->second != "off")
      return fail(mpi->first, kCannot, "it is '" + mpi->second + "'", "host or off");
    request.host_mpi = mpi->second == "host";
  }
  if (!request.host_mpi) return request;
  for (const auto& [name, value] : annotations) {
    if (name == "heddle.mpi" || !name.starts_with("heddle.")) continue;
    if (name == "heddle.policy") {
      if (value != "warn" && value != "enforce")
        return fail(name, kCannot, "it is '" + value + "'", "enforce or warn");
      request.on_failure = value == "warn" ? OnFailure::warn : OnFailure::enforce;
    } else if (name == "heddle.program") {
      if (!value.starts_with('/') || value.find('\0') != std::string::npos)
        return fail(name, kCannot, "'" + value + "' is not an absolute path");
      request.program = value;
    } else {
      return fail(name, kCannot, "there is no such annotation",
                  "heddle.mpi, heddle.policy, heddle.program");
    }
  }
  return request;
}

bool asks_by_annotation(const std::map<std::string, std::string>& annotations, bool swaps) {
  return std::any_of(annotations.begin(), annotations.end(), [&](const auto& entry) {
    return entry.first.starts_with("heddle.") &&
           (swaps || entry.first != "heddle.mpi" || entry.second != "off");
  });
}

std::string default_cache() {
  if (is_systems_root()) return "/var/cache/heddle/images";
  return below_home("XDG_CACHE_HOME", "/.cache", "/heddle/images");
}

std::string default_log() {
  if (is_systems_root()) return "/var/log/heddle-hook.log";
  return below_home("XDG_STATE_HOME", "/.local/state", "/heddle-hook.log");
}

Result<void> install_hook(const InstallSettings& settings) {
  const auto program = TRY(trusted_hook());
  if (settings.runtime != "podman") {
    const auto hook = TRY(usable(for_plain_runtime(settings)));
    const auto config = TRY(with_hook(Json::object(), "config.json", program, hook));
    say("note: " + settings.runtime +
        " has no hooks directory: add this to config.json, or run fs-hook bundle DIR");
    return print(to_text(config, 2) + "\n");
  }
  const bool for_hooks = settings.hook.request.host_mpi || !settings.hook.allow_annotations.empty();
  if (!for_hooks && (!settings.directory.empty() || !is_systems_root()))
    return fail("install", "cannot write a hook", "no option says which containers get it",
                "--always: every container that podman starts with this hook; "
                "--allow-annotations DIR: annotated ones, of trusted images");
  std::string directory = settings.directory;
  if (directory.empty())
    directory = !is_systems_root()
                    ? below_home("XDG_CONFIG_HOME", "/.config", "/containers/oci/hooks.d")
                    : std::string(for_hooks ? "/etc/containers/oci/hooks.d" : "/etc/cdi");
  if (directory.empty())
    return fail("HOME", "is not set", "it names the hook's directory", "give --dir");
  directory = std::filesystem::absolute(directory).lexically_normal();
  TRY(check_trusted_directory(directory));  // before it is made
  TRY(make_directory_to_write(directory, 0755));
  HookSettings hook = TRY(usable(for_hooks ? settings.hook : requested(settings.hook)));
  hook.hook_file = directory + (for_hooks ? "/50-heddle-mpi.json" : "/heddle.json");
  const auto json = for_hooks ? podman_hook(program, hook) : cdi_spec(program, hook);
  TRY(write_output(hook.hook_file, to_text(json, 2) + "\n"));
  if (hook.log.starts_with('/')) (void)make_directory_to_write(directory_of(hook.log), 0755);
  if (for_hooks && settings.directory.empty() && directory != "/usr/share/containers/oci/hooks.d")
    say("note: podman reads it only with --hooks-dir " + escape_for_terminal(directory) +
        ", or hooks_dir in containers.conf");
  return print(hook.hook_file + "\n");
}

Result<void> print_cdi(const InstallSettings& settings) {
  const auto program = TRY(trusted_hook());
  const auto hook = TRY(usable(requested(settings.hook)));
  return print(to_text(cdi_spec(program, hook), 2) + "\n");
}

Result<void> edit_bundle(const InstallSettings& settings) {
  const auto program = TRY(trusted_hook());
  const auto hook = TRY(usable(for_plain_runtime(settings)));
  TRY(enter_bundle(settings.directory));
  const std::string path = "config.json";
  const auto name = settings.directory + "/" + path;
  // Below the bundle, whose path is only for messages from here on.
  const auto named = [&](const Error& error) {
    return fail(Error::with_code(error.code(), "",
                                 escape_for_terminal(settings.directory) + "/" + error.message(),
                                 "", error.hint()));
  };
  const auto opened = open_file(path, O_PATH);
  if (!opened) return named(opened.error());
  const Fd& old = *opened;
  const Fd file = TRY(open_regular_at(old.get(), name));
  struct stat status {};
  if (::fstat(old.get(), &status) != 0) return fail_errno(name, "cannot inspect it");
  const auto text = TRY(read_all(file.get(), name, kConfigLimit));
  auto config = TRY(parse_json(text, name));
  config = TRY(with_hook(std::move(config), name, program, hook));
  // process.env may hold secrets: a group keeps its rights where the owner stays the same.
  auto made = AtomicFile::create(path, 0600);
  if (!made) return named(made.error());
  AtomicFile& next = *made;
  const uid_t owner = ::geteuid();
  mode_t mode = status.st_mode & 0777;
  if (::getuid() == 0 && owner != 0 && status.st_uid == owner) {
    if (::seteuid(0) != 0 || ::fchown(next.fd(), static_cast<uid_t>(-1), status.st_gid) != 0 ||
        ::seteuid(owner) != 0)
      return fail_errno(name, "cannot keep its group");
  } else if (::fchown(next.fd(), status.st_uid, status.st_gid) != 0) {
    mode &= 0707;
  }
  if (::fchmod(next.fd(), mode) != 0) return fail_errno(name, "cannot keep its mode");
  if (const auto written = next.write(to_text(config, 2) + "\n"); !written)
    return named(written.error());
  if (const auto done = next.commit(); !done) return named(done.error());
  return {};
}

}  // namespace heddle::hook
