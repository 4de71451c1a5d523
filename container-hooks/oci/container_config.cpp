// SPDX-License-Identifier: MIT
#include "container-hooks/oci/container_config.hpp"

#include <algorithm>
#include <filesystem>

#include "base/fd.hpp"
#include "base/mount_calls.hpp"
#include "base/open_regular.hpp"
#include "base/paths.hpp"
#include "base/try.hpp"
#include "container-hooks/host/watched_work.hpp"

namespace heddle::hook {
namespace {

std::map<std::string, std::string> annotations_of(const Json& value) {
  const auto pairs = pairs_member(value, "annotations");
  return {pairs.begin(), pairs.end()};
}

bool has_nul(const std::string& text) { return text.find('\0') != std::string::npos; }

bool is_system_directory(const std::string& path) {
  return is_at_or_below(path, "/dev") || is_at_or_below(path, "/proc") ||
         is_at_or_below(path, "/sys");
}

/// Bind mounts. As in runtimes the option makes one, whatever the type.
std::vector<Volume> volumes_of(const Json& value, const std::string& bundle) {
  std::vector<Volume> out;
  for (const auto& mount : list_member(value, "mounts")) {
    auto source = text_member(mount, "source");
    const auto target = text_member(mount, "destination");
    const auto options = texts_member(mount, "options");
    const bool is_bind = text_member(mount, "type") == "bind" ||
                         std::any_of(options.begin(), options.end(), [](const std::string& option) {
                           return option == "bind" || option == "rbind";
                         });
    if (!is_bind || source.empty() || target.empty() || has_nul(source) || has_nul(target) ||
        is_system_directory(target))
      continue;
    if (!source.starts_with('/')) source = bundle + "/" + source;
    out.push_back({source, target});
  }
  return out;
}

std::vector<std::string> hook_args_of(const Json& value) {
  const Json& hooks = member(value, "hooks");
  if (!hooks.is_object()) return {};
  for (const auto& [stage, list] : hooks.items())
    for (const auto& hook : list)
      if (is_fs_hook(hook)) return texts_member(hook, "args");
  return {};
}

}  // namespace

bool is_fs_hook(const Json& hook) {
  const auto args = texts_member(hook, "args");
  return text_member(hook, "path").ends_with("/fs-hook") && args.size() > 1 && args[1] == "oci";
}

Result<ContainerState> parse_state(const std::string& text) {
  const auto value = TRY(parse_json(text, "the container's state"));
  ContainerState state{text_member(value, "id"), static_cast<pid_t>(number_member(value, "pid")),
                       text_member(value, "bundle"), annotations_of(value)};
  if (!state.bundle.starts_with('/') || has_nul(state.bundle))
    return fail("the container's state", "cannot use", "it names no bundle");
  return state;
}

Result<ContainerConfig> parse_config(const std::string& text, const std::string& bundle) {
  const std::string name = bundle + "/config.json";
  const auto value = TRY(parse_json(text, name));
  ContainerConfig config;
  config.annotations = annotations_of(value);
  config.rootfs = text_member(member(value, "root"), "path");
  if (config.rootfs.empty() || has_nul(config.rootfs))
    return fail(name, "cannot use", "it has no root.path");
  if (!config.rootfs.starts_with('/')) config.rootfs = bundle + "/" + config.rootfs;
  config.volumes = volumes_of(value, bundle);
  config.hook_args = hook_args_of(value);
  const Json& process = member(value, "process");
  config.args = texts_member(process, "args");
  config.environment = texts_member(process, "env");
  if (auto cwd = text_member(process, "cwd"); !cwd.empty()) config.cwd = std::move(cwd);
  return config;
}

Result<ContainerConfig> read_config(const std::string& bundle) {
  const auto path = bundle + "/config.json";
  note_step("reading", path);
  const Fd file = TRY(open_regular(path));
  const auto text = TRY(read_all(file.get(), path, kConfigLimit));
  auto config = TRY(parse_config(text, bundle));
  config.rootfs = TRY(real_root(config.rootfs));
  return config;
}

Result<std::string> real_root(const std::string& path) {
  note_step("looking for", path);
  std::error_code error;
  const auto real = std::filesystem::canonical(path, error);
  if (error) return fail_errno(path, "cannot use as the container's root", error.value());
  return real.string();
}

std::string variable_of(const ContainerConfig& config, const std::string& name) {
  std::string out;
  for (const auto& entry : config.environment)
    if (entry.starts_with(name + "=")) out = entry.substr(name.size() + 1);
  return out;
}

}  // namespace heddle::hook
