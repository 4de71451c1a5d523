// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/run.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {

/// A Debian root file system with its own MPI, a program that was compiled in it, and this
/// machine's launchers. Nothing here is faked.
class RealMpiTest : public ::testing::Test {
 protected:
  /// Skips with the reason where `runtime` cannot run containers. The last call of a SetUp().
  /// `mpi`: mpich or openmpi, as Debian calls them.
  void prepare(const std::string& runtime, const std::string& suite,
               const std::string& mpi = "mpich");

  /// With the container's own compiler and MPI; the tree stays as it is.
  void compile(const std::string& name, const std::string& flags = "",
               const std::string& source = "hello.c");
  /// The image's MPICH once more in `directory` (below our own), where only search paths lead.
  void copy_mpi(const std::string& directory) const;
  /// config.json of a read-only container with the hook, "app" on /mnt.
  nlohmann::json config(const std::vector<std::string>& args) const;
  /// Runs it by itself, or as `ranks` of `launcher`, each in a container of its own.
  RunResult start(const nlohmann::json& config, int ranks = 0,
                  std::vector<std::string> launcher = {"mpiexec.hydra"});
  /// A command in the container whose program is hello.
  RunResult shell(const std::string& script, bool hooked);
  /// `-n N` ranks of hello said who they are and the right sum, on `glibc` and the host's MPICH.
  static void expect_right_sums(const RunResult& ran, int ranks, const std::string& glibc);
  /// What of the root file system has changed since prepare() ended; empty: nothing.
  std::string changed_files() const;
  std::string log() const;

  TestDir dir_;
  std::string rootfs_;

 private:
  std::string runtime_;
  std::string mpi_;
  int count_ = 0;
};

}  // namespace heddle::test
