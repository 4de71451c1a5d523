// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/content_hash.hpp"
#include "compat/elf_notes.hpp"
#include "resolver/elf/elf_facts.hpp"

namespace heddle::compat {

/// One library of a program's closure on the machine that the artifact was made on. It tells people
/// what was there; a verdict rests on what the program asks for and on the target's own libraries.
struct Library {
  std::string soname;  ///< the file's, else the name it was asked for by
  std::string path;    ///< empty: unresolved
  std::string found_by;
  std::string needed_by;              ///< soname or program; empty: a preload
  std::vector<std::string> versions;  ///< what all of the closure wants of it; sorted
  std::string build_id;
  std::string hash;       ///< SHA-256 in hex
  bool dlopened = false;  ///< a trace showed it; nothing names it
  std::string reason;     ///< of an unresolved one

  bool resolved() const { return !path.empty(); }
};

/// What one program (or a library that stands for itself) asks of a machine.
struct Program {
  std::string name;  ///< base name
  std::string path;  ///< as the machine that described it saw it
  ElfFacts elf;      ///< with symbols
  std::string hash;  ///< SHA-256 in hex
  ElfNotes notes;
  std::string interpreter_soname;
  std::string mpi_family;  ///< "Open MPI", "MPICH", "MPI ABI"; empty: none
  std::string mpi_soname;
  std::vector<Library> libraries;  ///< ld.so itself first, then breadth-first, unresolved last
};

struct Artifact {
  std::vector<Program> programs;  ///< at least one
};

}  // namespace heddle::compat
