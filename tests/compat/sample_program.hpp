// SPDX-License-Identifier: MIT
#pragma once

#include "compat/artifact.hpp"

namespace heddle::test {

/// A program with every field of the artifact in use.
inline compat::Program sample_program() {
  compat::Program program;
  program.name = "app";
  program.path = "/usr/bin/app";
  program.hash = std::string(32, '0');
  auto& elf = program.elf;
  elf.elf_class = 2;
  elf.data_encoding = 1;
  elf.type = 3;
  elf.machine = 62;
  elf.dynamic = true;
  elf.interp = "/lib64/ld-linux-x86-64.so.2";
  elf.dependencies = {{Dependency::Kind::needed, "libx.so.1"}, {Dependency::Kind::filter, "libf"}};
  elf.runpath = "$ORIGIN/../lib";
  elf.version_needs = {{"libx.so.1", "X_1", false}, {"libx.so.1", "X_2", true}};
  elf.undefined_symbols = {{"x_one", "X_1", false}, {"x_odd", "", false}, {"x_weak", "", true}};
  elf.exported_symbols = {{"app_api", "", false}};
  elf.tls = TlsSegment{16, 8};
  program.notes.isa_needed = 5;
  program.notes.kernel = "3.2.0";
  program.mpi_family = "Open MPI";
  program.mpi_soname = "libmpi.so.40";
  compat::Library found;
  found.soname = "libx.so.1";
  found.path = "/lib/libx.so.1";
  found.versions = {"X_1"};
  compat::Library lost;
  lost.soname = "liby.so.1";
  lost.reason = "not found";
  program.libraries = {found, lost};
  return program;
}

}  // namespace heddle::test
