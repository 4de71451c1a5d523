// SPDX-License-Identifier: MIT
#include "fsgen/gen_options.hpp"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <tuple>

#include "base/command_line.hpp"
#include "base/launch/rank.hpp"
#include "base/log.hpp"
#include "fsgen/guided_environment.hpp"

namespace heddle {

namespace {

/// The usage error in a combination of options; empty: none.
std::string contradiction(const GenOptions& o, const std::vector<std::string>& command,
                          bool shell_given) {
  if (o.doctor)
    return command.empty() ? "" : "--doctor: examines this node: not allowed with a program";
  if (o.print_env && command.size() != 2) return "--print-env: takes MAP and DIR";
  if (shell_given && !o.print_env) return "--shell: needs --print-env";
  if (command.empty()) return "no program given";
  if (o.loader == LoaderKind::environment && o.via == Via::direct)
    return "--loader env: needs a mount: not allowed with --via direct";
  if (o.learn && o.out.empty()) return "--learn: needs --out MAP, the map to write";
  if (o.learn && (!o.map.empty() || o.compare_runs > 0))
    return "--learn: not allowed with --map or --compare";
  if (!o.stage.empty() && o.via == Via::direct)
    return "--stage: needs a mount: not allowed with --via direct";
  if (!o.stage_budget.empty() && o.stage.empty()) return "--budget: needs --stage";
  if (!o.fallback.empty() && o.map.empty()) return "--fallback: needs --map BUNDLE";
  if (!o.map.empty() && !o.out.empty())
    return "--out: not allowed with --map, which resolves nothing";
  const bool wants_trees = !o.trees.empty() || !o.tree_excludes.empty() || o.python != "auto";
  if (!o.map.empty() && wants_trees)
    return "--tree, --tree-exclude, --python: not allowed with --map, which resolves nothing: give "
           "them to fs-resolve build";
  if (!o.trees.empty() && !o.may_have_trees())
    return "--tree: needs a private mount: not allowed with --via fusermount, --via direct or "
           "--loader env";
  if (!o.map.empty() && !o.plugin_directories.empty())
    return "--plugins: not allowed with --map, which resolves nothing: give it to fs-resolve build";
  return {};
}

/// `name` with %r: the rank (0 without a launcher), %h: the host, %p: this process's number, %%: a
/// percent sign. Any other % is left as it is.
std::string with_run_names(const std::string& name) {
  std::string out;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const char what = name[i] == '%' && i + 1 < name.size() ? name[i + 1] : '\0';
    if (what == 'r')
      out += std::to_string(rank_from_environment().value_or(0));
    else if (what == 'h')
      out += host_name();
    else if (what == 'p')
      out += std::to_string(::getpid());
    else
      out += name[i];
    if (what != '\0' && std::string_view("rhp%").find(what) != std::string_view::npos) ++i;
  }
  return out;
}

/// Of a job's ranks only the first reports on stderr, and to a file unless each names its own.
void adapt_to_rank(GenOptions& o) {
  const auto rank = rank_from_environment();
  const bool first = rank.value_or(0) == 0;
  o.first_rank = first;
  if (!first) o.quiet = true;
  if (o.json_file.empty()) return;
  const std::string file = with_run_names(o.json_file);
  if (first || file != o.json_file)
    o.json_file = file;
  else
    o.json_file.clear();
}

}  // namespace

std::vector<std::string> mount_options(const GenOptions& options, const std::string& serve) {
  std::vector<std::string> out{"--serve", serve.empty() ? "all" : serve};
  if (!options.stage.empty()) out.insert(out.end(), {"--stage", options.stage});
  if (!options.stage_budget.empty()) out.insert(out.end(), {"--budget", options.stage_budget});
  if (!options.fallback.empty()) out.insert(out.end(), {"--fallback", options.fallback});
  return out;
}

ParsedGenOptions parse_gen_options(int argc, const char* const* argv) {
  GenOptions out;
  CLI::App app(
      "Run APP with its shared libraries resolved in advance and served from one flat "
      "directory,\nand report what this saved.",
      "fs-gen");
  set_usage(
      app,
      "fs-gen [OPTIONS] [--] APP [ARGS...]\n       fs-gen --print-env [--shell SHELL] MAP DIR\n"
      "       fs-gen --doctor [--json FILE]\n       fs-gen cache show|clear");
  app.set_version_flag("--version", "fs-gen (heddle) " HEDDLE_VERSION);
  app.add_option("--map", out.map, "Use this map (made by fs-resolve build); resolve nothing")
      ->type_name("MAP");
  app.add_option("--fallback", out.fallback,
                 "With a bundle: another copy of it, read where the first is damaged")
      ->type_name("BUNDLE");
  app.add_option("--out", out.out, "Keep the map of this run here")->type_name("MAP");
  app.add_flag("--learn", out.learn,
               "Add the programs and dlopened libraries of this run to the map of --out");
  app.add_option("--plugins", out.plugin_directories,
                 "Serve this plugin directory too, under its own name (repeatable)")
      ->type_name("DIR")
      ->allow_extra_args(false);
  add_choice<std::string>(app, "--serve", out.serve, {{"all", "all"}, {"remote", "remote"}},
                          "Serve all libraries, or only those on a remote file system (default: "
                          "remote where these are\nall that is slow)");
  for (const auto& [name, list, text] :
       {std::tuple{"--slow", &out.slow, "The files below DIR are slow: a mount pays (repeatable)"},
        std::tuple{"--fast", &out.fast,
                   "The files below DIR are fast: they need no mount (repeatable)"}})
    app.add_option(name, *list, text)->type_name("DIR")->allow_extra_args(false);
  app.add_option("--tree", out.trees,
                 "Serve the directory tree DIR over its own path, wherever it lies (repeatable)")
      ->type_name("DIR")
      ->allow_extra_args(false);
  app.add_option("--tree-exclude", out.tree_excludes,
                 "Leave DIR out of the trees: the original, writable (repeatable)")
      ->check(CLI::ExistingPath)
      ->type_name("DIR")
      ->allow_extra_args(false);
  app.add_option("--python", out.python,
                 "Serve the trees that APP, if it is Python, imports from on slow file systems "
                 "(auto, default),\nnone (off), or those of the interpreter EXE")
      ->type_name("auto|off|EXE");
  app.add_option("--stage", out.stage,
                 "Copy the files to this directory on the node and serve the copies")
      ->type_name("DIR");
  app.add_option("--budget", out.stage_budget,
                 "With --stage: how much that directory may hold (4G)")
      ->check(CLI::Validator(
          [](const std::string& text) -> std::string {
            if (parse_byte_size(text)) return {};
            return "'" + text + "' is not a size: give a number, optionally with K, M, G or T";
          },
          ""))
      ->type_name("SIZE");
  add_choice<Via>(app, "--via", out.via,
                  {{"best", Via::best},
                   {"private", Via::private_mount},
                   {"fusermount", Via::fusermount},
                   {"direct", Via::direct}},
                  "How APP sees the libraries: private mount, fusermount3, or direct (no mount); "
                  "best (default)\nis direct where no file is slow, else the first that works");
  app.add_flag("!--no-share", out.share,
               "Do not share the mount with other fs-gens of this user and map");
  add_choice<LoaderKind>(
      app, "--loader", out.loader, {{"audit", LoaderKind::audit}, {"env", LoaderKind::environment}},
      "Guide ld.so by auditing (default, exact), or by LD_LIBRARY_PATH where auditing cannot work");
  app.add_flag("!--no-cache", out.cache, "Resolve again; do not use or write the cache");
  app.add_flag("!--no-learn", out.learns,
               "Do not add what this run loads and executes to the cached map");
  app.add_flag("--explain", out.explain, "Run nothing; print what would be done for APP, and why");
  app.add_flag("--doctor", out.doctor,
               "Say what of heddle works on this node and what to do about the rest");
  app.add_option("--compare", out.compare_runs,
                 "Run APP N times without heddle and N times with it, alternating; print the ratio")
      ->check(number_from(1U, 1000U))
      ->type_name("N");
  app.add_option("--json", out.json_file,
                 "Write the report here as JSON; -: to stdout, %r: the rank, %h: the host, %p: the "
                 "process")
      ->type_name("FILE");
  app.add_flag("--print-env", out.print_env,
               "Run nothing; print the environment that guides a script's programs through the "
               "mount of MAP at DIR");
  auto* shell = add_choice<ShellKind>(app, "--shell", out.shell,
                                      {{"sh", ShellKind::sh},
                                       {"fish", ShellKind::fish},
                                       {"modulefile", ShellKind::modulefile},
                                       {"json", ShellKind::json}},
                                      "The language of --print-env (sh)");
  app.add_flag("-q,--quiet", out.quiet, "No report on stderr");

  auto split = split_command_line(app, argc, argv);
  const int status = parse_options(app, std::move(split.options));
  if (status >= 0) return {std::nullopt, status};
  if (const auto wrong = contradiction(out, split.command, shell->count() > 0); !wrong.empty())
    return {std::nullopt, usage_error("fs-gen", wrong)};
  out.command = std::move(split.command);
  // The daemon's working directory is `/`.
  if (!out.stage.empty()) out.stage = std::filesystem::absolute(out.stage).string();
  if (!out.fallback.empty()) out.fallback = std::filesystem::absolute(out.fallback).string();
  adapt_to_rank(out);
  // A site's lists, and fs-launch's, may name what other nodes have.
  for (const auto& [name, list] : {std::pair("--slow", &out.slow), std::pair("--fast", &out.fast)})
    for (const auto& directory : *list)
      if (out.first_rank && ::access(directory.c_str(), F_OK) != 0)
        warn(Error::from_errno(name + (" " + directory), "has no effect"));
  add_listed(out.slow, "HEDDLE_SLOW");
  add_listed(out.fast, "HEDDLE_FAST");
  // The cache's key has them.
  for (auto* list : {&out.slow, &out.fast})
    for (auto& directory : *list) directory = std::filesystem::absolute(directory).string();
  return {std::move(out), 0};
}

}  // namespace heddle
