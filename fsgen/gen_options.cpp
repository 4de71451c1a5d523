// SPDX-License-Identifier: MIT
#include "fsgen/gen_options.hpp"

#include <map>

#include "base/command_line.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"

namespace heddle {

ParsedGenOptions parse_gen_options(int argc, const char* const* argv) {
  GenOptions out;
  CLI::App app(
      "Run APP with every shared library sent straight to its file: resolve what ld.so would\n"
      "search for, serve it from one flat directory, run APP guided, report what was saved.",
      "fs-gen");
  set_usage(
      app,
      "fs-gen [OPTIONS] [--] APP [ARGS...]\n       fs-gen --print-env [--shell SHELL] MAP DIR");
  app.set_version_flag("--version", "fs-gen (heddle) " HEDDLE_VERSION);
  app.add_option("--map", out.map, "Use this map (made by fs-resolve build); resolve nothing")
      ->type_name("MAP");
  app.add_option("--out", out.out, "Keep the map of this run here")->type_name("MAP");
  app.add_flag("--learn", out.learn,
               "Add to the map of --out what APP opens by dlopen and executes in this run");
  app.add_option("--plugins", out.plugin_folders,
                 "Serve this plugin folder too, under its own name (repeatable)")
      ->type_name("DIR")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--serve", out.serve,
                 "What the mount serves: all, or only what lies on a remote file system")
      ->check(CLI::IsMember({"all", "remote"}))
      ->type_name("all|remote");
  const std::map<std::string, Via> vias{{"best", Via::best},
                                        {"mount", Via::mount},
                                        {"fusermount", Via::fusermount},
                                        {"user", Via::user},
                                        {"direct", Via::direct}};
  app.add_option(
         "--via", out.via,
         "Mount namespace (root), fusermount3, user namespace, or direct: no mount, guided to\n"
         "the files; best takes the first that works")
      ->transform(CLI::CheckedTransformer(vias, CLI::ignore_case).description(""))
      ->type_name("best|mount|fusermount|user|direct");
  app.add_flag("!--no-share", out.share,
               "A mount of one's own, not one with other fs-gens of this user and map");
  const std::map<std::string, LoaderKind> loaders{{"audit", LoaderKind::audit},
                                                  {"env", LoaderKind::environment}};
  app.add_option("--loader", out.loader,
                 "Guide ld.so by auditing (exact), or by LD_LIBRARY_PATH where that cannot work")
      ->transform(CLI::CheckedTransformer(loaders, CLI::ignore_case).description(""))
      ->type_name("audit|env");
  app.add_option("--compare", out.compare_runs,
                 "Run APP N times without heddle and N times with it, in turn; print the ratio")
      ->check(CLI::Range(1U, 1000U))
      ->type_name("N");
  app.add_option("--json", out.json_file, "Write the report here as JSON")->type_name("FILE");
  app.add_flag(
      "--print-env", out.print_env,
      "Run nothing: print what guides a script's programs through the mount of MAP at DIR");
  const std::map<std::string, ShellKind> shells{{"sh", ShellKind::sh},
                                                {"fish", ShellKind::fish},
                                                {"modulefile", ShellKind::modulefile},
                                                {"json", ShellKind::json}};
  auto* shell = app.add_option("--shell", out.shell, "The language of --print-env")
                    ->transform(CLI::CheckedTransformer(shells, CLI::ignore_case).description(""))
                    ->type_name("sh|fish|modulefile|json");
  app.add_flag("-q,--quiet", out.quiet, "No report on stderr");

  auto split = split_command_line(app, argc, argv);
  const int status = parse_options(app, std::move(split.options));
  if (status >= 0) return {std::nullopt, status};
  if (out.print_env && split.command.size() != 2) {
    report(Error("--print-env", "takes MAP and DIR"));
    return {std::nullopt, exit_usage};
  }
  if (shell->count() > 0 && !out.print_env) {
    report(Error("--shell", "belongs to --print-env"));
    return {std::nullopt, exit_usage};
  }
  if (out.loader == LoaderKind::environment && out.via == Via::direct) {
    report(Error("--loader env", "needs a mount: it does not go with --via direct"));
    return {std::nullopt, exit_usage};
  }
  if (split.command.empty()) {
    report(Error("", "no program named", {}, "fs-gen [OPTIONS] [--] APP [ARGS...]"));
    return {std::nullopt, exit_usage};
  }
  if (out.learn && (out.out.empty() || !out.map.empty() || out.compare_runs > 0)) {
    report(Error("--learn", out.out.empty() ? "needs --out MAP, the map to write"
                                            : "goes with neither --map nor --compare"));
    return {std::nullopt, exit_usage};
  }
  out.command = std::move(split.command);
  return {std::move(out), 0};
}

}  // namespace heddle
