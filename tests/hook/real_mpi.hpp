// SPDX-License-Identifier: MIT
#pragma once

#include "tests/hook/container_runtime.hpp"
#include "tests/hook/container_world.hpp"
#include "tests/support/oci_config.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {

/// A Debian root file system with its own MPI, a program compiled in it, and this machine's
/// launchers. Nothing is faked.
class RealMpiTest : public ::testing::Test {
 protected:
  /// Skips with the reason where `runtime` cannot run containers. `mpi`: mpich or openmpi.
  void prepare(const std::string& runtime, const std::string& suite,
               const std::string& mpi = "mpich");
  /// prepare() with Debian 13's Open MPI 5; skips unless this machine's Open MPI is of version 4.
  void prepare_open_mpi_5(const std::string& runtime);

  /// Compiles app/`source` with the container's compiler and MPI; leaves the tree unchanged.
  void compile(const std::string& name, const std::string& flags = "",
               const std::string& source = "hello.c");
  /// Copies the image's MPICH to `directory` below dir_.
  void copy_mpi(const std::string& directory) const;
  /// This machine's MPICH once more, as version 4.0.9.
  static void make_other_mpich(const std::string& prefix);
  /// config.json of a read-only container with the hook, and "app" on /mnt.
  Json config(const Strings& args) const;
  /// config() without a PID namespace and with the host's /tmp: Open MPI's sessions are in /tmp,
  /// and its ranks look at each other's processes.
  Json open_mpi_config(const Strings& args) const;
  /// Runs it directly, or as `ranks` of `launcher`, each in a container of its own.
  RunResult start(const Json& config, int ranks = 0, const Strings& launcher = {"mpiexec.hydra"});
  /// Runs a shell script in a container whose annotated program is hello.
  RunResult shell(const std::string& script, bool hooked);
  /// Checks the output of hello's ranks: their numbers, their sum, `glibc` and the host's MPICH.
  static void expect_right_sums(const RunResult& ran, int ranks, const std::string& glibc);
  /// The files of the root file system that have changed since prepare().
  std::string changed_files() const;
  std::string log() const;

  TestDir dir_;
  std::string rootfs_;

 private:
  std::string runtime_;
  std::string mpi_;
  int count_ = 0;
};

/// Open MPI's launcher as root on few cores.
inline const Strings kMpirun = {"mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"};

}  // namespace heddle::test
