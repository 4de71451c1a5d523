// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "resolver/elf/elf_facts.hpp"

namespace heddle::compat {

/// One library of a program's closure on the machine that made the artifact. For information: a
/// verdict depends on the program's needs and on the target's own libraries.
struct Library {
  std::string soname;  ///< the file's, else the requested name
  std::string path;    ///< empty: unresolved
  std::string found_by;
  std::string needed_by;              ///< soname or program; empty: a preload
  std::vector<std::string> versions;  ///< that the closure needs of it; sorted
  std::string build_id;
  std::string hash;       ///< SHA-256 in hex
  bool dlopened = false;  ///< from a trace
  std::string reason;     ///< why it is unresolved

  bool resolved() const { return !path.empty(); }
};

/// An ELF file's requirements on CPU and kernel, from its notes.
struct ElfNotes {
  /// GNU_PROPERTY_X86_ISA_1_NEEDED: bit n is x86-64-v(n+1), bit 0 the baseline.
  std::uint32_t isa_needed = 0;
  /// GNU_PROPERTY_X86_ISA_1_USED: the file has code for these, and may choose at run time.
  std::uint32_t isa_used = 0;
  std::string kernel;  ///< NT_GNU_ABI_TAG for Linux, "3.2.0"; empty: none
  auto operator<=>(const ElfNotes&) const = default;
};

/// The requirements of one program, or of a library described by itself.
struct Program {
  std::string name;  ///< base name
  std::string path;  ///< on the machine that made the artifact
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

/// Bytes. Readers refuse a larger artifact.
inline constexpr std::size_t kMaxArtifact = std::size_t{64} << 20;

/// The artifact in the format of docs/formats/artifact.md, with a newline at its end. The same
/// artifact always gives the same bytes.
std::string to_json(const Artifact& artifact);

/// Reads to_json()'s format. Failures name `where` and the key. ENOEXEC: not JSON; ENOTSUP: no
/// `heddle` part, or another format version; EBADMSG: a key of the wrong kind. Unknown keys are
/// ignored.
Result<Artifact> parse_artifact(std::string_view text, const std::string& where);

/// "x86-64-v3" for a bit of ElfNotes; "x86-64" for bit 0.
std::string isa_level_name(unsigned bit);
/// isa_level_name() of the highest level of a mask; empty for none.
std::string highest_isa_level(std::uint32_t mask);

/// EM_* as uname(2) or the toolchain spells it: "x86_64", "aarch64"; others: "EM_<n>".
std::string machine_name(std::uint16_t machine);

}  // namespace heddle::compat
