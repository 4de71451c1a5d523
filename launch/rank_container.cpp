// SPDX-License-Identifier: MIT
#include "launch/rank_container.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "base/child.hpp"
#include "base/content_hash.hpp"
#include "base/find_program.hpp"
#include "base/launch/app_process.hpp"
#include "base/log.hpp"
#include "base/open_regular.hpp"
#include "base/run_program.hpp"
#include "base/try.hpp"
#include "fsgen/guided_environment.hpp"
#include "launch/hooks.hpp"

namespace heddle::launch {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

constexpr std::size_t kLargestTemplate = std::size_t{1} << 20;
/// Beginnings of the names of variables by which launchers and transports speak to their ranks. The
/// rest of the host's environment (PATH, LD_LIBRARY_PATH) is wrong in an image.
constexpr const char* kLauncherVariables[] = {"PMI",  "MPI",    "OMPI",  "OPAL",  "PRTE",
                                              "HYD",  "SLURM_", "PALS_", "FLUX_", "ALPS_",
                                              "JSM_", "MV2_",   "UCX_",  "FI_",   "OMP_"};

/// The template of `backend`: a word of the command a line; lines that begin with # are comments.
Result<Words> read_template(const std::string& backend) {
  const auto bin = TRY(own_program_dir());
  const auto path = bin.substr(0, bin.rfind('/')) + "/share/heddle/containers/" + backend;
  const auto file = TRY(open_regular(path));
  std::istringstream lines(TRY(read_all(file.get(), path, kLargestTemplate)));
  Words out;
  for (std::string line; std::getline(lines, line);)
    if (!line.empty()) out.push_back(line);
  return out;
}

/// (host, container) of all that is mounted: the working directory, where the launchers' files are,
/// and the user's.
Result<std::vector<std::pair<std::string, std::string>>> mounts_of(const RankContainer& container) {
  std::vector<std::pair<std::string, std::string>> out;
  const auto add = [&](const std::string& host, const std::string& inside) {
    if (std::ranges::none_of(out, [&](const auto& one) { return one.second == inside; }))
      out.emplace_back(host, inside);
  };
  add("/tmp", "/tmp");  // Open MPI's sessions
  if (const char* directory = std::getenv("PMIX_SERVER_TMPDIR"); directory && *directory == '/')
    add(directory, directory);
  if (const auto cwd = fs::current_path().string(); cwd != "/") add(cwd, cwd);
  if (!container.source.empty()) add(container.source, container.source);
  for (const auto& file : container.files) {
    const auto colon = file.find(':');
    add(file.substr(0, colon), colon == file.npos ? file : file.substr(colon + 1));
  }
  for (const auto& [host, inside] : out)
    for (const auto& path : {host, inside})
      if (path.find_first_of(",:\"\n") != path.npos)
        return fail(path, "cannot be mounted in a container",
                    "engines would split the path at its comma, colon, quote or newline");
  return out;
}

Words variables_of(const RankContainer& container) {
  Words out = container.names;
  const Environment environment;
  for (const auto& entry : environment.entries()) {
    const auto name = entry.substr(0, entry.find('='));
    // An engine would take * for a pattern.
    if (name.find('*') == name.npos &&
        std::ranges::any_of(kLauncherVariables,
                            [&](const char* prefix) { return name.starts_with(prefix); }))
      out.push_back(name);
  }
  return out;
}

}  // namespace

Result<void> prepare_containers(RankContainer& container) {
  if (container.backend.empty() || container.backend == "auto")
    container.backend =
        fs::is_directory(container.image) && !find_program("podman") ? "bare" : "podman";
  const auto words = read_template(container.backend);
  if (!words) return fail(container.backend, "no such backend", words.error().message());
  if (words->at(0) == "# untested")
    warn(container.backend + ": untested: its template follows the engine's documentation");
  if (std::ranges::none_of(*words, [](auto& word) { return word.find("{hooks}") != word.npos; }))
    return {};
  // A file for each MPI: launches with another run meanwhile.
  const auto cache = TRY(cache_directory());
  container.hooks = cache + "/launch/hooks.d";
  Words install = {"fs-hook", "install", "--always"};
  if (!container.mpi.empty()) {
    container.hooks += "/" + hash_bytes(container.mpi).hex().substr(0, 16);
    install.insert(install.end(), {"--mpi", container.mpi});
  }
  install.insert(install.end(), {"--dir", container.hooks});
  const auto here = TRY(own_program_dir());
  const auto done =
      TRY(run_and_read(here + "/fs-hook", install, {.limit = std::chrono::seconds(60)}));
  if (done.status != 0)
    return fail(container.hooks, "fs-hook cannot be installed there: the image's MPI would run");
  return {};
}

Result<Words> container_command(const RankContainer& container, const std::string& path,
                                const Words& argv) {
  const auto words = TRY(read_template(container.backend));
  const auto mounts = TRY(mounts_of(container));
  Words command;
  if (!container.source.empty())
    command = {"/bin/sh", "-c", ". \"$0\" && exec \"$@\"", container.source};
  command.push_back(path);
  command.insert(command.end(), argv.begin() + 1, argv.end());
  Words out;
  const auto replaced = [](std::string word, const std::string& name, const std::string& value) {
    if (const auto at = word.find(name); at != word.npos) word.replace(at, name.size(), value);
    return word;
  };
  const auto bin = TRY(own_program_dir());
  const auto cwd = fs::current_path().string();
  const auto with_values = [&](std::string word) {
    for (const auto& [name, value] :
         {std::pair{"{image}", container.image},
          {"{hooks}", container.hooks},
          {"{mpi}", container.mpi},
          {"{cwd}", cwd},
          {"{bin}", bin},
          {"{program}", path.starts_with('/') ? path : cwd + "/" + path}})
      if (const auto at = word.find(name); at != word.npos) return replaced(word, name, value);
    return word;
  };
  const auto has = [](const std::string& word, const char* name) {
    return word.find(name) != word.npos;
  };
  // A line with a condition that does not hold is left out.
  const std::pair<const char*, bool> conditions[] = {
      {"{if directory}", fs::is_directory(container.image)},
      {"{if image}", !fs::is_directory(container.image)},
      {"{if user}", ::geteuid() != 0},
      {"{if mpi}", !container.mpi.empty()},
      {"{if PMI_FD}", std::getenv("PMI_FD") != nullptr}};
  for (auto word : words) {
    if (word.starts_with('#')) continue;
    bool holds = true;
    for (const auto& [name, value] : conditions)
      if (has(word, name)) {
        holds = value;
        word = replaced(word, name, "");
      }
    if (!holds) continue;
    if (word == "{command}")
      out.insert(out.end(), command.begin(), command.end());
    else if (has(word, "{variable}"))
      for (const auto& name : variables_of(container))
        out.push_back(replaced(word, "{variable}", name));
    else if (has(word, "{host}"))
      for (const auto& [host, inside] : mounts)
        out.push_back(replaced(replaced(word, "{host}", host), "{inside}", inside));
    else
      out.push_back(with_values(word));
  }
  return out;
}

int enter_container(const RankContainer& container, const std::string& path, const Words& argv) {
  const auto command = container_command(container, path, argv);
  if (!command) {
    report(command.error());
    return 126;
  }
  if (const char* text = std::getenv("PMI_FD")) {
    const int fd = std::atoi(text);
    if (fd > 0 && fd != 3 && ::dup2(fd, 3) == 3) ::setenv("PMI_FD", "3", 1);
  }
  const auto engine = find_program(command->at(0));
  const int error =
      engine ? execute({*engine, *command, Environment().entries()}) : engine.error().code();
  return report_exec_failure(command->at(0), error);
}

}  // namespace heddle::launch
