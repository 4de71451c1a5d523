// SPDX-License-Identifier: MIT
#include "container-hooks/container_config.hpp"

#include <algorithm>

#include "base/fd.hpp"
#include "container-hooks/json_text.hpp"

namespace heddle {
namespace {

std::map<std::string, std::string> annotations_of(const Json& value) {
  std::map<std::string, std::string> out;
  const Json* found = member(value, "annotations");
  if (!found || !found->is_object()) return out;
  for (const auto& [key, text] : found->items())
    if (text.is_string()) out.emplace(key, text.get<std::string>());
  return out;
}

std::vector<std::string> texts_of(const Json& value, const std::string& key) {
  std::vector<std::string> out;
  const Json* found = member(value, key);
  if (!found || !found->is_array()) return out;
  for (const auto& text : *found)
    if (text.is_string()) out.push_back(text.get<std::string>());
  return out;
}

bool has_nul(const std::string& text) { return text.find('\0') != std::string::npos; }

/// Where a runtime mounts what every container has.
bool is_system_folder(const std::string& path) {
  for (const std::string folder : {"/dev", "/proc", "/sys"})
    if (path == folder || path.starts_with(folder + "/")) return true;
  return false;
}

/// Bind mounts as runtimes know them: the option makes one, the type is for show.
std::vector<Volume> volumes_of(const Json& value, const std::string& bundle) {
  std::vector<Volume> out;
  const Json* mounts = member(value, "mounts");
  if (!mounts || !mounts->is_array()) return out;
  for (const auto& mount : *mounts) {
    const auto options = texts_of(mount, "options");
    auto source = text_member(mount, "source").value_or("");
    const auto target = text_member(mount, "destination").value_or("");
    const bool is_bind = text_member(mount, "type") == "bind" ||
                         std::any_of(options.begin(), options.end(), [](const std::string& option) {
                           return option == "bind" || option == "rbind";
                         });
    if (!is_bind || source.empty() || target.empty() || has_nul(source) || has_nul(target) ||
        is_system_folder(target))
      continue;
    if (!source.starts_with('/')) source = bundle + "/" + source;
    out.push_back({source, target});
  }
  return out;
}

std::vector<std::string> hook_args_of(const Json& value) {
  const Json* hooks = member(value, "hooks");
  if (!hooks || !hooks->is_object()) return {};
  for (const auto& [stage, list] : hooks->items())
    for (const auto& hook : list)
      if (is_fs_hook(hook)) return texts_of(hook, "args");
  return {};
}

}  // namespace

bool is_fs_hook(const Json& hook) {
  const auto args = texts_of(hook, "args");
  return text_member(hook, "path").value_or("").ends_with("/fs-hook") && args.size() > 1 &&
         args[1] == "oci";
}

Result<ContainerState> parse_state(const std::string& text) {
  const auto value = parse_json(text, "the container's state");
  if (!value) return fail(value.error());
  ContainerState state;
  state.id = text_member(*value, "id").value_or("");
  state.pid = static_cast<pid_t>(number_member(*value, "pid").value_or(0));
  state.bundle = text_member(*value, "bundle").value_or("");
  state.annotations = annotations_of(*value);
  if (!state.bundle.starts_with('/') || has_nul(state.bundle))
    return fail("the container's state", "cannot use", "it names no bundle");
  return state;
}

Result<ContainerConfig> parse_config(const std::string& text, const std::string& bundle) {
  const std::string name = bundle + "/config.json";
  const auto value = parse_json(text, name);
  if (!value) return fail(value.error());
  ContainerConfig config;
  config.annotations = annotations_of(*value);
  if (const Json* root = member(*value, "root"))
    config.rootfs = text_member(*root, "path").value_or("");
  if (config.rootfs.empty() || has_nul(config.rootfs))
    return fail(name, "cannot use", "it has no root.path");
  if (!config.rootfs.starts_with('/')) config.rootfs = bundle + "/" + config.rootfs;
  config.volumes = volumes_of(*value, bundle);
  config.hook_args = hook_args_of(*value);
  if (const Json* process = member(*value, "process")) {
    config.args = texts_of(*process, "args");
    config.cwd = text_member(*process, "cwd").value_or("/");
    config.environment = texts_of(*process, "env");
  }
  return config;
}

Result<ContainerConfig> read_config(const std::string& bundle) {
  const auto text = read_file(bundle + "/config.json", kConfigLimit);
  if (!text) return fail(text.error());
  return parse_config(*text, bundle);
}

}  // namespace heddle
