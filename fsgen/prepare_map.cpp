// SPDX-License-Identifier: MIT
#include "fsgen/prepare_map.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/elf_file.hpp"
#include "base/escape.hpp"
#include "base/fd.hpp"
#include "base/find_program.hpp"
#include "base/log.hpp"
#include "base/open_regular.hpp"
#include "base/try.hpp"
#include "resolver/build/app_inputs.hpp"
#include "resolver/build/map_builder.hpp"
#include "resolver/build/resolver_session.hpp"
#include "resolver/map/map_reader.hpp"

namespace heddle {
namespace {

/// For the daemon, whose working directory is another.
Result<std::string> absolute_path(const std::string& path) {
  std::error_code error;
  auto whole = std::filesystem::absolute(path, error).string();
  if (error) return fail_errno(path, "cannot use", error.value());
  return whole;
}

/// Adds the program at `path`, or its script's interpreters, if it can be resolved.
void add_program(AppInputs& inputs, const std::string& path) {
  AppInputs named;
  if (!add_app(named, path)) return;
  for (auto& root : named.roots) {
    const bool known = std::any_of(inputs.roots.begin(), inputs.roots.end(),
                                   [&](const AppRoot& r) { return r.path == root.path; });
    if (known || root.kind != RootIs::program) continue;
    root.required = false;
    inputs.roots.push_back(std::move(root));
  }
}

/// Adds the programs that APP's arguments name.
void add_argument_programs(AppInputs& inputs, const std::vector<std::string>& command) {
  constexpr std::size_t kMostWords = 64;  // of a launcher; not a list of ten thousand files
  for (std::size_t i = 1; i < std::min(command.size(), kMostWords); ++i) {
    if (command[i].empty() || command[i][0] == '-') continue;
    auto found = find_program(command[i]);
    if (found) add_program(inputs, *found);
  }
}

/// Whether the ELF file `path` is of this program's class and machine, which are the audit
/// library's. True for a file that cannot be read: the resolver reports it.
bool takes_audit_library(const std::string& path) {
  const auto kind = [](const std::string& file) -> std::optional<std::pair<int, int>> {
    const auto fd = open_regular(file);
    if (!fd) return std::nullopt;
    const FileBytes bytes = file_bytes(fd->get());
    const auto elf = ElfFile::read(bytes);
    if (!elf) return std::nullopt;
    return std::pair<int, int>(elf->header.e_ident[EI_CLASS], elf->header.e_machine);
  };
  const auto theirs = kind(path);
  const auto ours = kind("/proc/self/exe");
  return !theirs || !ours || theirs == ours;
}

/// `app`: APP, or its script's interpreter; "" when there is none to guide.
void find_app(PreparedMap& map, const std::string& app) {
  if (app.empty()) {
    if (map.unguided_reason.empty()) map.unguided_reason = "not an ELF program";
    return;
  }
  const auto& programs = map.content.programs;
  const auto found = std::find_if(programs.begin(), programs.end(),
                                  [&](const MapProgram& p) { return p.path == app; });
  if (found != programs.end())
    map.program = static_cast<std::size_t>(found - programs.begin());
  else if (map.unguided_reason.empty())
    map.unguided_reason = "not in the map";
}

Result<void> resolve_into(PreparedMap& map, const GenOptions& options, AppInputs& inputs,
                          const std::string& app, const std::string& path,
                          const LearnedRun& learned) {
  // A directory that cannot be listed would exclude each program.
  for (const auto& directory : options.plugin_directories) TRY(list_plugin_directory(directory));
  add_argument_programs(inputs, options.command);
  for (const auto& [program, libraries] : learned) add_program(inputs, program);
  for (auto& root : inputs.roots) root.required = false;
  ResolverSession session;
  BuildOptions build;
  build.search = search_options_from_environment();
  build.plugin_directories = options.plugin_directories;
  build.learned = learned;
  auto built = TRY(build_map(session.world, inputs.roots, build));
  for (const auto& missing : built.missing)
    warn(escape_for_terminal(missing.name) + ", which " + escape_for_terminal(missing.needed_by) +
         " needs: " + missing.reason);
  for (const auto& left_out : built.left_out)
    if (left_out.path == app) map.unguided_reason = left_out.reason.message();
  map.content = std::move(built.content);
  return write_map(map.content, path);
}

}  // namespace

Result<PreparedMap> prepare_map(const GenOptions& options, const std::string& app_path,
                                const std::string& default_path, const LearnedRun& learned) {
  const auto begin = std::chrono::steady_clock::now();
  PreparedMap map;
  AppInputs inputs;
  if (auto added = add_app(inputs, app_path); !added) map.unguided_reason = added.error().message();
  if (inputs.roots.empty() && !inputs.notes.empty()) map.unguided_reason = "static program";
  if (!inputs.roots.empty() && inputs.roots[0].kind == RootIs::library)
    map.unguided_reason = "a library, not a program";
  // Its ld.so would print on APP's stderr that it cannot load the audit library.
  if (options.loader == LoaderKind::audit && !inputs.roots.empty() &&
      !takes_audit_library(inputs.roots[0].path)) {
    map.unguided_reason = "a program of another machine or class, such as 32-bit";
    inputs.roots.clear();
  }
  // resolve_into() appends the programs of its arguments.
  const std::string app = inputs.roots.empty() ? "" : inputs.roots[0].path;
  if (!options.map.empty()) {
    map.path = TRY(absolute_path(options.map));
    const auto file = open_regular(map.path);
    if (!file) return fail(map_open_error(map.path, file.error().code()));
    struct stat status {};
    if (::fstat(file->get(), &status) != 0) return fail_errno(map.path, "cannot stat");
    TRY(check_map_owner(status, map.path));
    TRY(check_map_path(map.path));
    auto reader = TRY(MapReader::open(file->get(), map.path));
    map.content = TRY(reader.read_all());
  } else {
    map.path = TRY(absolute_path(options.out.empty() ? default_path : options.out));
    TRY(resolve_into(map, options, inputs, app, map.path, learned));
  }
  find_app(map, app);
  map.resolve_ns = static_cast<std::uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count());
  return map;
}

}  // namespace heddle
