// SPDX-License-Identifier: MIT
#include "container-hooks/hook_files.hpp"

namespace heddle {
const char* stage_name(Stage stage) {
  return stage == Stage::create_runtime ? "createRuntime" : "createContainer";
}

Json hook_entry(const std::string& program, const HookSettings& settings) {
  Json args{
      "fs-hook", "oci",        "--stage", stage_name(settings.stage), "--cache", settings.cache,
      "--log",   settings.log, "--at",    settings.mount_point,       "--mpi",   settings.mpi};
  if (settings.node != kNodeDirectory) {
    args.push_back("--node");
    args.push_back(settings.node);
  }
  const auto& request = settings.request;
  if (!request.program.empty()) {
    args.push_back("--program");
    args.push_back(request.program);
  }
  if (request.on_failure == OnFailure::warn) {
    args.push_back("--policy");
    args.push_back("warn");
  }
  if (settings.limits.bytes != CacheLimits().bytes) {
    args.push_back("--cache-limit");
    args.push_back(std::to_string(settings.limits.bytes >> 20));
  }
  if (settings.limit != HookSettings().limit) {
    args.push_back("--timeout");
    args.push_back(std::to_string(settings.limit.count()));
  }
  if (request.host_mpi) args.push_back("--always");
  for (const auto& directory : settings.allow_annotations) {
    args.push_back("--allow-annotations");
    args.push_back(directory);
  }
  // No "timeout": with one crun 1.8 waits by sigtimedwait(2) for the SIGCHLD of its hook, and where
  // that of another child came at the same moment it sees one of the two, waits for the whole time
  // and ends the container. The hook has a limit of its own.
  return {{"path", program}, {"args", args}, {"env", Json::array({"PATH=/usr/bin:/bin"})}};
}

Json podman_hook(const std::string& program, const HookSettings& settings) {
  // Every value: one that is misspelt is to be refused, not passed over.
  const Json annotated = {{"annotations", {{"^heddle\\.mpi$", ".*"}}}};
  return {{"version", "1.0.0"},
          {"hook", hook_entry(program, settings)},
          {"when", settings.request.host_mpi ? Json{{"always", true}} : annotated},
          {"stages", Json::array({stage_name(settings.stage)})}};
}

Json cdi_spec(const std::string& program, const HookSettings& settings) {
  Json hook = hook_entry(program, settings);
  hook["hookName"] = stage_name(settings.stage);
  return {
      {"cdiVersion", "0.5.0"},
      {"kind", "heddle/mpi"},
      {"devices",
       Json::array({{{"name", "host"}, {"containerEdits", {{"hooks", Json::array({hook})}}}}})}};
}

Result<Json> with_hook(Json config, const std::string& program, const HookSettings& settings) {
  if (!config.is_object()) return fail("config.json", "cannot edit", "it is no JSON object");
  Json& hooks = config["hooks"];
  if (hooks.is_null()) hooks = Json::object();
  if (!hooks.is_object()) return fail("config.json", "cannot edit", "its hooks are no object");
  for (auto& [stage, list] : hooks.items()) {
    if (!list.is_array()) continue;
    Json kept = Json::array();
    for (auto& hook : list)
      if (!is_fs_hook(hook)) kept.push_back(std::move(hook));
    list = std::move(kept);
  }
  Json& list = hooks[stage_name(settings.stage)];
  if (list.is_null()) list = Json::array();
  if (!list.is_array()) return fail("config.json", "cannot edit", "its hooks are no list");
  list.push_back(hook_entry(program, settings));
  return config;
}

}  // namespace heddle
