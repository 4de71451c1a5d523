// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "resolver/map/map_content.hpp"
#include "tests/support/run.hpp"
#include "tests/support/test_dir.hpp"

namespace heddle::test {

/// A small root file system with this machine's glibc, an MPI and a program, and another MPI for
/// the host's side, all made here.
class ImageWorld {
 public:
  ImageWorld();

  /// The directory `root()` stands for, as a path of ours.
  std::string in(const std::string& path) const { return root() + path; }
  std::string root() const { return dir_ / "root"; }
  std::string prefix() const { return dir_ / "host"; }

  /// A library with the marks of MPICH: MPI_Init, MPI_Comm_rank and `more`; its path.
  std::string mpich(const std::string& output, const std::string& version,
                    const std::string& more = "", const std::vector<std::string>& flags = {}) const;
  /// A program in the image that calls `calls` of the library `against`.
  void program(const std::string& path, const std::string& calls, const std::string& against,
               const std::vector<std::string>& flags = {}) const;
  /// ldconfig in the image.
  void run_ldconfig() const;

  /// fs-resolve build --into, with the host's MPI below prefix().
  RunResult build(const std::string& program, std::vector<std::string> more = {}) const;
  nlohmann::json decide(const std::string& program, std::vector<std::string> more = {}) const;
  RunResult fs_resolve(std::vector<std::string> words) const;
  std::string map() const { return dir_ / "out.map"; }

  /// Puts copies of what the map serves where the decision says; aliases stay one file.
  void place(const nlohmann::json& decision) const;
  /// Paths of the libraries as the image's own ld.so lists them for `program`.
  std::vector<std::string> real_loads(const std::string& program,
                                      const std::string& preload = "") const;
  /// As they were predicted.
  static std::vector<std::string> loads(const nlohmann::json& decision);
  static nlohmann::json verdict(const nlohmann::json& decision, const std::string& soname);

 private:
  TestDir dir_;
};

/// What goes over the container's file `target`; empty: nothing.
std::string bound_over(const nlohmann::json& decision, const std::string& target);
/// A library at `output` whose soname is its file's name with the first number alone; its path.
std::string library(const std::string& output, const std::string& source,
                    std::vector<std::string> flags = {});
/// As library(), with the versions of this version script.
std::string versioned(const std::string& output, const std::string& source,
                      const std::string& script);
/// A libmpi.so.40 in the directory `directory` with the marks of Open MPI, and `more`.
std::string open_mpi(const std::string& directory, const std::string& version,
                     const std::string& more = "", std::vector<std::string> flags = {});
/// A library with the name and marks of UCX's libucs, and `more`; its path.
std::string ucs(const std::string& output, const std::string& more = "");

}  // namespace heddle::test
