// SPDX-License-Identifier: MIT
#include "bench/cold.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <thread>

#include "tests/support/build_elf.hpp"
#include "tests/support/elf_farm.hpp"
#include "tests/support/run.hpp"

namespace heddle::bench {

namespace fs = std::filesystem;

namespace {

constexpr const char* kMpiSource = R"(
#include <mpi.h>
#include <stdio.h>
int main(int argc, char** argv) {
  int rank, sum;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Reduce(&rank, &sum, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) printf("the ranks' numbers add up to %d\n", sum);
  MPI_Finalize();
  return 0;
}
)";

/// A liquid of 4,000 atoms for ten steps: LAMMPS's bench/in.lj, smaller.
constexpr const char* kMelt = R"(units lj
lattice fcc 0.8442
region box block 0 10 0 10 0 10
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 1.44 87287
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
fix 1 all nve
run 10
)";

bool is_installed(const char* program) {
  return test::run({"sh", "-c", "command -v \"$0\"", program}).status == 0;
}

}  // namespace

ColdProgram rpath_program(const std::string& directory, std::size_t libraries) {
  const auto farm = test::ElfFarm::build(directory, {.libraries = libraries});
  return {fmt::format("{} libraries by RPATH", libraries), directory, {{farm.program}}};
}

ColdProgram large_program(const std::string& directory, std::size_t libraries) {
  const auto farm = test::ElfFarm::build(
      directory, {.libraries = libraries, .text = 1U << 20, .relocations = 8192});
  return {fmt::format("{} libraries of 1.3 MB", libraries), directory, {{farm.program}}};
}

ColdProgram tls_program(const std::string& directory, std::size_t libraries) {
  // With more than 60, libc too, it would start unguided (docs/limits.md).
  libraries = std::min<std::size_t>(libraries, 50);
  const auto farm =
      test::ElfFarm::build(directory, {.libraries = libraries, .thread_local_bytes = 1024});
  return {fmt::format("{} libraries with TLS", libraries), directory, {{farm.program}}};
}

ColdProgram modules_program(const std::string& directory, std::size_t libraries) {
  const auto farm = test::ElfFarm::build(
      directory, {.libraries = libraries, .shape = test::FarmShape::modules, .dlopen_roots = true});
  return {fmt::format("{} modules and utilities", libraries), directory, {{farm.program}}};
}

ColdProgram mpi_program(const std::string& directory, std::size_t libraries) {
  const auto title = fmt::format("MPI, 2 ranks, {} libraries", libraries);
  for (const char* program : {"mpicc.openmpi", "mpirun.openmpi"})
    if (!is_installed(program)) return {title, {}, {}, fmt::format("{} is absent", program)};
  const auto farm = test::ElfFarm::build(directory, {.libraries = libraries});
  const auto source = test::write_text_file(directory + "/hello.c", kMpiSource);
  std::vector<std::string> argv = {"mpicc.openmpi",      "-o",
                                   directory + "/hello", source,
                                   "-Wl,--no-as-needed", "-Wl,--disable-new-dtags"};
  for (std::size_t i = 0; i < libraries; ++i)
    argv.insert(argv.end(), {farm.libraries[i], "-Wl,-rpath," + farm.directories[i]});
  test::run_checked(argv);
  // Open MPI refuses root, and more ranks than cores, unless variables allow it.
  return {title,
          directory,
          {{"mpirun.openmpi", "--oversubscribe", "-n", "2", directory + "/hello"},
           {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"}}};
}

ColdProgram python_program(const std::string& directory, std::size_t packages) {
  std::string script, path;
  for (std::size_t i = 0; i < packages; ++i) {
    const auto entry = fmt::format("{}/py-p{}/site-packages", directory, i);
    const auto package = fmt::format("{}/p{}", entry, i);
    test::write_text_file(package + "/__init__.py", fmt::format("from . import m{}\n", i));
    test::write_text_file(fmt::format("{}/m{}.py", package, i), "value = 1\n");
    script += fmt::format("import p{}\n", i);
    path += (path.empty() ? "" : ":") + entry;
  }
  test::run_checked({"/usr/bin/python3", "-m", "compileall", "-q", directory});
  const auto run = test::write_text_file(directory + ".py", script);
  return {fmt::format("Python, {} packages", packages),
          directory,
          {{"/usr/bin/python3", run}, {"PYTHONPATH=" + path, "PYTHONDONTWRITEBYTECODE=1"}}};
}

ColdProgram lammps_program(const std::string& directory) {
  if (!is_installed("lmp")) return {"LAMMPS", {}, {}, "Debian's package lammps is absent"};
  std::istringstream lines(test::run_checked({"ldd", "/usr/bin/lmp"}).out);
  std::string path;
  std::size_t libraries = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto arrow = line.find(" => /");
    if (arrow == std::string::npos) continue;
    const auto file = line.substr(arrow + 4, line.find(" (", arrow) - arrow - 4);
    const auto soname = fs::path(file).filename().string();
    // glibc's files belong to the ld.so that runs; the node has them.
    if (fs::exists(fs::path(file).parent_path() / "ld-linux-x86-64.so.2") &&
        (soname.starts_with("libc.") || soname.starts_with("libm.") ||
         soname.starts_with("libdl.") || soname.starts_with("libpthread.") ||
         soname.starts_with("librt.") || soname.starts_with("libutil.") ||
         soname.starts_with("libresolv.")))
      continue;
    const auto prefix = fmt::format("{}/{}/lib", directory, ++libraries);
    fs::create_directories(prefix);
    fs::copy_file(file, prefix + "/" + soname);
    path += (path.empty() ? "" : ":") + prefix;
  }
  fs::create_directories(directory + "/bin");
  fs::copy_file("/usr/bin/lmp", directory + "/bin/lmp");
  const auto input = test::write_text_file(directory + ".in", kMelt);
  return {fmt::format("LAMMPS, {} libraries", libraries),
          directory,
          {{directory + "/bin/lmp", "-log", "none", "-in", input},
           {"LD_LIBRARY_PATH=" + path, "OMPI_ALLOW_RUN_AS_ROOT=1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"}}};
}

ColdProgram scipy_program(const std::string& directory) {
  const fs::path installed = "/usr/lib/python3/dist-packages";
  for (const char* package : {"numpy", "scipy"}) {
    if (!fs::exists(installed / package))
      return {"SciPy", {}, {}, fmt::format("Debian's package python3-{} is absent", package)};
    fs::create_directories(directory + "/site");
    // With its times, which Python's compiled files know.
    test::run_checked({"cp", "-a", installed / package, directory + "/site"});
  }
  return {"Python, scipy.stats",
          directory,
          {{"/usr/bin/python3", "-c", "import scipy.stats"},
           {"PYTHONPATH=" + directory + "/site", "PYTHONDONTWRITEBYTECODE=1"}}};
}

void to_json(nlohmann::json& json, const ColdStart& start) {
  json = {{"seconds", start.seconds}, {"operations", start.operations}, {"stopped", start.stopped}};
}

void from_json(const nlohmann::json& json, ColdStart& start) {
  json.at("seconds").get_to(start.seconds);
  json.at("operations").get_to(start.operations);
  json.at("stopped").get_to(start.stopped);
}

ColdServer::ColdServer(std::string files, std::string counts, const test::SlowOptions& options)
    : files_(std::move(files)), counts_(std::move(counts)), options_(options) {
  fs::rename(files_, behind());
  // fs-gen caches nothing of files that are younger than two seconds: users' are older.
  std::this_thread::sleep_for(std::chrono::seconds(3));
  forget();
}

void ColdServer::forget() {
  mount_.reset();
  mount_.emplace(behind(), files_, counts_, options_);
  mount_->reset();
}

ColdStart ColdServer::start(const Command& command, std::chrono::milliseconds limit) {
  mount_->reset();
  test::RunResult done;
  const double ms =
      time_ms([&] { done = test::run(command.argv, {.env = command.env, .deadline = limit}); });
  if (!done.timed_out && done.status != 0)
    throw Error(command.argv[0], fmt::format("exit status {}", done.status), done.err);
  return {ms / 1000, mount_->counts().total, done.timed_out};
}

}  // namespace heddle::bench
