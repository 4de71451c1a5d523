// SPDX-License-Identifier: MIT
//
// `./dev demo`: programs whose files are on a slow server (bench/slowfs), with and without heddle.
// One start of each kind; `./dev bench` measures.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <optional>

#include "base/exit_code.hpp"
#include "base/log.hpp"
#include "base/output_file.hpp"
#include "base/temp_dir.hpp"
#include "bench/cold.hpp"
#include "bench/demo_table.hpp"
#include "bench/results.hpp"
#include "tests/support/run.hpp"

namespace heddle::bench {
namespace {

struct Settings {
  std::string stage, json;
  std::size_t libraries = 200;
  std::size_t packages = 50;
  double limit = 30;
};

class Demo {
 public:
  Demo(const Settings& settings, std::string directory)
      : settings_(settings),
        directory_(std::move(directory)),
        limit_(std::lround(settings.limit * 1000)) {}

  nlohmann::json run() {
    nlohmann::json rows = nlohmann::json::array();
    const auto show = [&](const ColdProgram& program) {
      if (program.absent.empty())
        for (auto& row : starts_of(program)) rows.push_back(std::move(row));
      else
        rows.push_back({{"program", program.title}, {"absent", program.absent}});
    };
    show(rpath_program(at("farm"), settings_.libraries));
    show(mpi_program(at("mpi"), settings_.libraries / 2));
    show(python_program(at("python"), settings_.packages));
    show(lammps_program(at("lammps")));
    auto out = environment_facts();
    out["limit"] = settings_.limit;
    out["rows"] = std::move(rows);
    return out;
  }

 private:
  std::string at(const std::string& name) const { return directory_ + "/" + name; }

  std::vector<nlohmann::json> starts_of(const ColdProgram& program) const {
    ColdServer server(program.files, at("counts"), {.preset = "server"});
    const auto start = [&](const char* what, const std::vector<std::string>& front,
                           std::optional<std::chrono::minutes> longer = {}) {
      fmt::print("{}: {}\n", program.title, what);
      std::fflush(stdout);
      auto command = program.command;
      command.argv.insert(command.argv.begin(), front.begin(), front.end());
      return server.start(command, longer ? *longer : limit_);
    };
    const auto gen = settings_.stage + "/bin/fs-gen";
    const auto cold = start("without heddle, cold", {});
    const auto warm = start("without heddle, warm", {});
    server.forget();
    const auto first = start("with heddle, its first start", {gen, "-q", "--"});
    server.forget();
    const auto guided_cold = start("with heddle, cold", {gen, "-q", "--"});
    const auto guided_warm = start("with heddle, warm", {gen, "-q", "--"});

    const auto map = program.files + ".map";
    start("a bundle is made", {gen, "-q", "--out", map, "--learn", "--"}, std::chrono::minutes(2));
    test::run_checked(
        {settings_.stage + "/bin/fs-resolve", "pack", map, "-o", server.behind() + "/app.bundle"});
    server.forget();
    const auto bundle = server.files() + "/app.bundle";
    const auto bundled = start("from the bundle, cold", {gen, "-q", "--map", bundle, "--"});
    const auto row = [&](const char* kind, const ColdStart& without, const ColdStart& with) {
      return nlohmann::json{
          {"program", program.title}, {"start", kind}, {"without", without}, {"with", with}};
    };
    return {row("first", cold, first), row("cold", cold, guided_cold), row("bundle", cold, bundled),
            row("warm", warm, guided_warm)};
  }

  const Settings& settings_;
  std::string directory_;
  std::chrono::milliseconds limit_;
};

}  // namespace

int demo(int argc, char** argv) {
  set_program_name("demo");
  Settings settings;
  CLI::App app("Starts programs from a slow server, with and without heddle");
  app.add_option("--stage", settings.stage, "where heddle is installed")->required();
  app.add_option("--json", settings.json, "write what was measured here");
  app.add_option("--libraries", settings.libraries, "of the program with an RPATH");
  app.add_option("--packages", settings.packages, "that Python imports");
  app.add_option("--limit", settings.limit, "seconds after which a start is stopped");
  CLI11_PARSE(app, argc, argv);
  try {
    const auto directory = value_or_throw(TempDir::create("demo"));
    ::setenv("XDG_CACHE_HOME", (directory.path() + "/cache").c_str(), 1);
    const auto run = Demo(settings, directory.path()).run();
    if (!settings.json.empty()) value_or_throw(write_output(settings.json, run.dump(2) + "\n"));
    fmt::print("\n{}\n{}", demo_table(run), kDemoWords);
  } catch (const std::exception& error) {
    say(error.what());
    return exit_failure;
  }
  return exit_done;
}

}  // namespace heddle::bench

int main(int argc, char** argv) { return heddle::bench::demo(argc, argv); }
