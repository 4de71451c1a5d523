// SPDX-License-Identifier: MIT
//
// The program compat-gen.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/command_line.hpp"
#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "base/output_file.hpp"
#include "base/run_main.hpp"
#include "compat/describe.hpp"
#include "record/trace/trace_reader.hpp"
#include "resolver/build/resolver_session.hpp"
#include "resolver/elf/cached_facts.hpp"
#include "ship/registry/oci_helper.hpp"

namespace heddle {
namespace {

struct GenOptions {
  std::string out, trace, map, rootfs, push, attach;
  std::vector<std::string> binaries;
};

void add_options(CLI::App& app, GenOptions& o) {
  app.set_version_flag("--version", "compat-gen (heddle) " HEDDLE_VERSION);
  set_usage(app, "compat-gen [OPTIONS] BINARY...");
  app.footer("Nothing is executed: neither the programs nor their loader. See compat-gen(1).");
  app.add_option("-o,--out", o.out, "Write to FILE instead of standard output")->type_name("FILE");
  app.add_option("--from-trace", o.trace,
                 "Add the libraries that this fs-record run loaded by dlopen; without BINARY, "
                 "describe the programs of the run")
      ->type_name("RUN");
  app.add_option("--from-map", o.map,
                 "Take the libraries from this map; without BINARY, describe its programs")
      ->type_name("MAP");
  app.add_option("--rootfs", o.rootfs, "BINARY and its libraries lie in this root file system")
      ->type_name("DIR");
  auto* push = app.add_option("--push", o.push,
                              "Push the artifact to a registry, and print its reference by digest")
                   ->type_name("HOST[:PORT]/REPO[:TAG]");
  app.add_option("--attach", o.attach,
                 "With --push: attach it to this image in the same repository")
      ->type_name("IMAGE")
      ->needs(push);
  app.add_option("BINARY", o.binaries, "Programs, libraries, scripts (through #!) or directories")
      ->type_name("");
}

/// libx.so, libx.so.1.2, module.cpython-311-x86_64-linux-gnu.so, but not /etc/ld.so.cache.
bool may_be_library(std::string_view path) {
  const auto name = path.substr(path.rfind('/') + 1);
  const auto at = name.rfind(".so");
  if (at == name.npos || at == 0) return false;
  const auto rest = name.substr(at + 3);
  return rest.empty() || (rest.size() > 1 && rest[0] == '.' && rest[1] >= '0' && rest[1] <= '9');
}

void add_once(std::vector<std::string>& list, std::string_view text) {
  if (std::find(list.begin(), list.end(), text) == list.end()) list.emplace_back(text);
}

/// The files that a recorded run opened and that may be shared libraries, by program.
struct TraceOpens final : trace::TraceSink {
  void begin_run(const trace::RunHeader&, int) override {}
  void end_run(const trace::RunFooter&, trace::Ending) override {}
  void event(const trace::Event& event) override {
    // The recorder's own process, until it becomes the program.
    if (!event.exe.empty() && !event.exe.ends_with("/fs-record")) add_once(programs, event.exe);
    if (event.op == trace::Op::open && event.error == 0 && may_be_library(event.path))
      add_once(libraries[std::string(event.exe)], event.path);
  }

  std::vector<std::string> programs;  ///< executables, in order of appearance
  /// Executable (empty: not in the trace) -> paths, in order, each once.
  std::map<std::string, std::vector<std::string>> libraries;
};

class Generator {
 public:
  explicit Generator(GenOptions options)
      : options_(std::move(options)),
        facts_(value_or_throw(facts_below(options_.rootfs))),
        node_(value_or_throw(compat::NodeTarget::open(
            facts_, options_.rootfs,
            options_.rootfs.empty() ? search_options_from_environment() : SearchOptions{}))) {}

  int run() {
    // With --push, a file is written only for --out.
    std::optional<OutputFile> out;
    if (options_.push.empty() || !options_.out.empty())
      out = value_or_throw(OutputFile::prepare(options_.out.empty() ? "-" : options_.out));
    if (!options_.map.empty())
      map_.emplace(value_or_throw(compat::MapTarget::open(map_facts_, options_.map)));
    if (!options_.trace.empty()) value_or_throw(trace::read_trace(options_.trace, opens_));
    const auto paths = wanted();
    facts_.prefetch(paths, FactsDetail::symbols);
    compat::Artifact artifact;
    for (const auto& path : paths) add(artifact, path);
    const auto text = compat::to_json(artifact);
    if (out) value_or_throw(out->write(text));
    if (!options_.push.empty()) return push(text, artifact.programs[0].name);
    return exit_done;
  }

 private:
  std::vector<std::string> wanted() {
    if (!options_.binaries.empty())
      return value_or_throw(compat::find_binaries(node_, options_.rootfs, options_.binaries));
    std::vector<std::string> paths;
    if (map_)
      for (const auto& program : map_->content().programs) paths.push_back(program.path);
    else
      paths = opens_.programs;
    if (paths.empty())
      throw Error(map_ ? options_.map : options_.trace, "names no program", "", "give a BINARY");
    return paths;
  }

  void add(compat::Artifact& artifact, const std::string& path) {
    auto program = value_or_throw(compat::describe(node_, facts_, path, map_ ? &*map_ : nullptr));
    for (const auto& library : program.libraries)
      if (!library.resolved())
        warn(escape_for_terminal(
            fmt::format("{}: {}: unresolved: {}", path, library.soname, library.reason)));
    for (const auto& name : {std::string(), path, program.path}) {
      const auto found = opens_.libraries.find(name);
      if (found == opens_.libraries.end()) continue;
      compat::add_dlopened(node_, program, found->second);
      if (!name.empty()) break;
    }
    artifact.programs.push_back(std::move(program));
  }

  int push(const std::string& text, const std::string& name) {
    std::vector<std::string> arguments = {"push", "--type", kArtifactMediaType,
                                          "--title=" + name + ".json"};
    if (!options_.attach.empty()) arguments.push_back("--attach=" + options_.attach);
    arguments.insert(arguments.end(), {"--", options_.push});
    return value_or_throw(run_oci_client("compat-gen", arguments, text, STDOUT_FILENO));
  }

  GenOptions options_;
  CachedFacts facts_;
  CachedFacts map_facts_;  ///< a map's files are this node's
  compat::NodeTarget node_;
  std::optional<compat::MapTarget> map_;
  TraceOpens opens_;
};

int compat_gen(int argc, const char* const* argv) {
  CLI::App app("Describe what programs need of a machine, as a compatibility artifact.",
               "compat-gen");
  GenOptions options;
  add_options(app, options);
  forbid_empty_values(app);
  if (const int status = parse_options(app, {argv + 1, argv + argc}); status >= 0) return status;
  if (options.binaries.empty() && options.map.empty() && options.trace.empty()) {
    report(Error("BINARY", "missing", "", "compat-gen --help"));
    return exit_usage;
  }
  return Generator(std::move(options)).run();
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  return heddle::run_main("compat-gen", [&] { return heddle::compat_gen(argc, argv); });
}
