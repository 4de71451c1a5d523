// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json.hpp>

#include "resolver/map/map_content.hpp"
#include "tests/support/prelude.hpp"

namespace heddle::test {

/// A small root file system with this machine's glibc, an MPI and a program, and another MPI on the
/// host's side.
class ImageWorld {
 public:
  ImageWorld();

  /// The image's `path` on the host.
  std::string in(const std::string& path) const { return root() + path; }
  std::string root() const { return dir_ / "root"; }
  std::string prefix() const { return dir_ / "host"; }

  /// A library that is recognised as MPICH, with `more` source text; its path.
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

  /// Puts copies of the map's files in the places that the decision names; aliases stay one file.
  void place(const nlohmann::json& decision) const;
  /// Paths of the libraries as the image's own ld.so lists them for `program`.
  std::vector<std::string> real_loads(const std::string& program,
                                      const std::string& preload = "") const;
  /// The predicted ones.
  static std::vector<std::string> loads(const nlohmann::json& decision);
  static nlohmann::json verdict(const nlohmann::json& decision, const std::string& soname);

 private:
  TestDir dir_;
};

/// The source that is bound over the container's file `target`; empty: none.
std::string bound_over(const nlohmann::json& decision, const std::string& target);
/// A library whose soname is its file name with the first number only; its path.
std::string library(const std::string& output, const std::string& source,
                    std::vector<std::string> flags = {});
/// As library(), with the versions of this version script.
std::string versioned(const std::string& output, const std::string& source,
                      const std::string& script);
/// A libmpi.so.40 in `directory` that is recognised as Open MPI, with `more` source text.
std::string open_mpi(const std::string& directory, const std::string& version,
                     const std::string& more = "", std::vector<std::string> flags = {});
/// A library that is recognised as UCX's libucs, with `more` source text; its path.
std::string ucs(const std::string& output, const std::string& more = "");

}  // namespace heddle::test
