// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "bench/timing.hpp"
#include "tests/support/slow_mount.hpp"

namespace heddle::bench {

/// A program all of whose files that are not the distribution's are below one directory, the one
/// that a server will serve.
struct ColdProgram {
  std::string title;  ///< "200 libraries by RPATH"
  std::string files;
  Command command;
  std::string absent = {};  ///< why this machine does not have it; then nothing else is set
};

/// Each makes the program in `directory`. They throw heddle::Error.
ColdProgram rpath_program(const std::string& directory, std::size_t libraries);
/// Libraries of more than a MiB, with 8,192 relocations each.
ColdProgram large_program(const std::string& directory, std::size_t libraries);
/// Each library has thread-local variables.
ColdProgram tls_program(const std::string& directory, std::size_t libraries);
/// As Pynamic does, it opens two thirds of the libraries, each of which needs ten of the others.
ColdProgram modules_program(const std::string& directory, std::size_t libraries);
ColdProgram mpi_program(const std::string& directory, std::size_t libraries);
ColdProgram python_program(const std::string& directory, std::size_t packages);
/// Debian's LAMMPS and its libraries, glibc's excepted, each in a prefix of its own, all in
/// LD_LIBRARY_PATH: as environment modules do.
ColdProgram lammps_program(const std::string& directory);
/// Python, which imports scipy.stats from a copy of Debian's NumPy and SciPy.
ColdProgram scipy_program(const std::string& directory);

/// What one start took.
struct ColdStart {
  double seconds = 0;
  std::uint64_t operations = 0;  ///< that the server was asked
  bool stopped = false;          ///< at the limit; both are of the part before it
};
void to_json(nlohmann::json& json, const ColdStart& start);
void from_json(const nlohmann::json& json, ColdStart& start);

/// A directory on heddle-slowfs, under the name that it had, and the starts of programs in it.
class ColdServer {
 public:
  /// `counts`: a file that does not exist, outside of `files`.
  ColdServer(std::string files, std::string counts, const test::SlowOptions& options);
  /// Mounts anew: this node knows nothing of the files, as after a boot.
  void forget();
  /// Where the files really are: reached without the server, and writable.
  std::string behind() const { return files_ + ".behind"; }
  const std::string& files() const { return files_; }
  /// One start, ended at `limit`. Throws heddle::Error when the program fails.
  ColdStart start(const Command& command, std::chrono::milliseconds limit);

 private:
  std::string files_, counts_;
  test::SlowOptions options_;
  std::optional<test::SlowMount> mount_;
};

}  // namespace heddle::bench
