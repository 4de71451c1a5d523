// SPDX-License-Identifier: MIT
#include "fsgen/compat/compat_check.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <memory>

#include "base/command_line.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "fsgen/compat/artifact_json.hpp"
#include "fsgen/compat/checker.hpp"
#include "fsgen/compat/map_target.hpp"
#include "fsgen/compat/node_target.hpp"
#include "resolver/build/resolver_session.hpp"
#include "resolver/elf/cached_facts.hpp"

namespace heddle {
namespace {

struct CheckOptions {
  std::string artifact, map, rootfs;
  bool json = false;
};

void add_options(CLI::App& app, CheckOptions& o) {
  app.set_version_flag("--version", "compat-check (heddle) " HEDDLE_VERSION);
  set_usage(app, "compat-check [OPTIONS] ARTIFACT");
  app.footer(
      "Exit status: 0 compatible or degraded, 1 incompatible, 2 usage, 3 no verdict.\n"
      "See compat-check(1).");
  auto* map = app.add_option("--map", o.map, "Against the libraries of this map")->type_name("MAP");
  app.add_option("--rootfs", o.rootfs, "Against this root file system instead of this node")
      ->type_name("DIR")
      ->excludes(map);
  app.add_flag("--json", o.json, "Print the verdict and its reasons as JSON");
  app.add_option("ARTIFACT", o.artifact, "What compat-gen wrote; - is standard input")
      ->required()
      ->type_name("");
}

compat::Artifact read_artifact(const std::string& path) {
  const auto text = path == "-" ? read_all(STDIN_FILENO, "stdin", compat::kMaxArtifact)
                                : read_file(path, compat::kMaxArtifact);
  if (!text) throw text.error();
  return value_or_throw(compat::parse_artifact(*text, path == "-" ? "stdin" : path));
}

std::unique_ptr<compat::Target> open_target(const CheckOptions& o, FactsSource& facts) {
  if (!o.map.empty())
    return std::make_unique<compat::MapTarget>(
        value_or_throw(compat::MapTarget::open(facts, o.map)));
  return std::make_unique<compat::NodeTarget>(value_or_throw(compat::NodeTarget::open(
      facts, o.rootfs, o.rootfs.empty() ? search_options_from_environment() : SearchOptions{})));
}

int run_check(const CheckOptions& o) {
  const auto artifact = read_artifact(o.artifact);
  CachedFacts facts;
  const auto target = open_target(o, facts);
  const auto judgement = value_or_throw(compat::Checker(*target).check(artifact));
  std::string text;
  if (o.json) {
    text = compat::to_json(judgement, 2) + "\n";
  } else {
    text = fmt::format("{}\n", compat::to_string(judgement.verdict));
    for (const auto& reason : judgement.reasons) text += compat::to_text(reason) + "\n";
  }
  value_or_throw(write_all(STDOUT_FILENO, text, "stdout"));
  return judgement.verdict == compat::Verdict::incompatible ? exit_no : exit_done;
}

}  // namespace

int compat_check(int argc, const char* const* argv) {
  set_program_name("compat-check");
  CLI::App app("Say whether a machine has what an artifact's programs need.", "compat-check");
  CheckOptions options;
  add_options(app, options);
  if (const int status = parse_options(app, {argv + 1, argv + argc}); status >= 0) return status;
  try {
    return run_check(options);
  } catch (const Error& error) {
    report(error);
  } catch (const std::exception& error) {
    report(Error("", error.what()));
  }
  return exit_failure;
}

}  // namespace heddle
