// SPDX-License-Identifier: MIT
#include "resolver/mpi/wrapper_paths.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <sstream>

#include "base/fd.hpp"
#include "base/child.hpp"

namespace heddle {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);)
    if (!part.empty()) out.push_back(part);
  return out;
}

/// What the program prints, at most 64 KiB, and no more than five seconds waited for.
std::string output_of(const std::string& program) {
  auto pipe = make_pipe();
  auto null = open_file("/dev/null", O_RDWR);
  if (!pipe || !null) return {};
  auto child = spawn(program, {program, "-show"},
                     {.fds = {{null->get(), 0}, {pipe->write_end.get(), 1}, {null->get(), 2}}});
  if (!child) return {};
  pipe->write_end.reset();
  std::string out;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (out.size() < 65536) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(end - std::chrono::steady_clock::now()).count();
    pollfd entry{pipe->read_end.get(), POLLIN, 0};
    if (left <= 0 || ::poll(&entry, 1, static_cast<int>(left)) <= 0) break;
    std::array<char, 4096> buffer;
    const auto got = ::read(pipe->read_end.get(), buffer.data(), buffer.size());
    if (got <= 0) break;
    out.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return out;  // ~Child kills one that goes on
}

bool is_wrapper(const std::string& name) {
  return name == "mpicc" || name.starts_with("mpicc.") || name == "mpiicc" || name == "mpiicx";
}
bool is_launcher(const std::string& name) {
  for (const char* known : {"mpiexec", "mpirun", "ompi_info", "mpichversion"})
    if (name == known || name.starts_with(std::string(known) + ".")) return true;
  return false;
}

}  // namespace

std::vector<LibraryFolder> folders_of_prefix(const std::string& prefix, const std::string& why) {
  std::vector<LibraryFolder> out;
  for (const char* below : {"lib", "lib64", "lib/x86_64-linux-gnu", "lib/release", "lib/release_mt",
                            "intel64/lib", "intel64/lib/release", "lib/aarch64-linux-gnu", "."}) {
    std::error_code error;
    const auto folder = fs::canonical(fs::path(prefix) / below, error);
    if (!error && fs::is_directory(folder, error)) out.push_back({folder.string(), why});
  }
  return out;
}

std::vector<LibraryFolder> folders_from_path(const std::string& path_variable) {
  std::vector<LibraryFolder> out;
  std::set<std::string> seen;
  for (const auto& folder : split(path_variable, ':')) {
    std::error_code error;
    std::vector<std::string> names;
    for (fs::directory_iterator walk(folder, error), end; !error && walk != end;
         walk.increment(error)) {
      const auto name = walk->path().filename().string();
      if (is_wrapper(name) || is_launcher(name)) names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    for (const auto& name : names) {
      const auto path = fs::path(folder) / name;
      std::error_code none;
      const auto real = fs::canonical(path, none);
      // Open MPI's compilers are one binary that goes by its name.
      if (none ||
          !seen.insert(is_wrapper(name) ? real.string() + " " + name : real.string()).second)
        continue;
      const auto why = "PATH: " + path.string();
      if (is_wrapper(name) && ::access(path.c_str(), X_OK) == 0)
        for (const auto& word : split(output_of(path.string()), ' '))
          if (word.starts_with("-L/")) out.push_back({word.substr(2), why + " -show"});
      for (auto& found : folders_of_prefix(real.parent_path().parent_path().string(), why))
        out.push_back(std::move(found));
    }
  }
  return out;
}

std::vector<LibraryFolder> folders_from_environment() {
  std::vector<LibraryFolder> out;
  if (const char* list = std::getenv("LD_LIBRARY_PATH"))
    for (const auto& folder : split(list, ':')) out.push_back({folder, "LD_LIBRARY_PATH"});
  for (const char* name :
       {"MPI_HOME", "MPI_ROOT", "MPI_DIR", "OPAL_PREFIX", "OPENMPI_ROOT", "EBROOTOPENMPI",
        "MPICH_DIR", "CRAY_MPICH_DIR", "MPICH_HOME", "I_MPI_ROOT", "MVAPICH_HOME", "MVAPICH2_HOME"})
    if (const char* prefix = std::getenv(name); prefix != nullptr && *prefix != '\0')
      for (auto& folder : folders_of_prefix(prefix, name)) out.push_back(std::move(folder));
  return out;
}

}  // namespace heddle
