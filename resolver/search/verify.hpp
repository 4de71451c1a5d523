// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>

#include "resolver/search/search.hpp"

namespace heddle {

/// What ld.so makes of one candidate path (glibc elf/dl-load.c, open_verify).
struct Candidate {
  enum class Verdict : std::uint8_t {
    usable,       ///< opened and of the right kind: `file` is set
    no_file,      ///< open(2) failed with `error`: the search goes on
    passed_over,  ///< of another class or machine: the search goes on
    fatal,        ///< ld.so dies of it, saying `reason`
  };
  Verdict verdict = Verdict::no_file;
  int error = 0;
  std::string reason;
  std::optional<FileFacts> file;
};

/// Opens and checks `path` as a library for `loader`.
Candidate verify_candidate(World& world, const LoaderProfile& loader, const std::string& path);

/// Why ld.so refuses to map a file that passed verify_candidate() as a library (a program, a file
/// of debug information); empty: it does not.
std::string refusal_to_map(const ElfFacts& elf);

}  // namespace heddle
