// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::compat {

enum class Verdict : std::uint8_t {
  compatible,
  degraded,      ///< the program starts, but something that it may use later is missing
  incompatible,  ///< ld.so, the kernel or the CPU would refuse it
};
/// `compatible`, `degraded`, `incompatible`.
const char* to_string(Verdict verdict);

/// One thing that a machine lacks.
struct Reason {
  enum class Kind : std::uint8_t {
    machine_differs,
    interpreter_missing,
    library_missing,
    library_unusable,  ///< ld.so refuses the file
    version_missing,
    symbol_missing,
    isa_too_new,
    kernel_too_old,
    mpi_family_differs,
    dlopened_missing,
    weak_version_missing,
    no_version_information,
    not_judged,  ///< unknown: a map has no symbols
  };
  Kind kind = Kind::library_missing;
  Verdict weight = Verdict::incompatible;
  std::string program = {};      ///< the artifact's program
  std::string subject = {};      ///< the missing soname, symbol, level ...
  std::string library = {};      ///< the library that should have provided it; may be empty
  std::string required_by = {};  ///< soname or program
  std::string path = {};         ///< what the target has instead; may be empty
  std::string package = {};      ///< the target's package with `path`; may be empty
  std::string detail = {};       ///< may be empty
};
/// `library_missing` and so on, as the JSON spells it.
const char* to_string(Reason::Kind kind);
std::optional<Reason::Kind> reason_kind(std::string_view name);
/// One line without newline, control bytes escaped.
std::string to_text(const Reason& reason);

/// Reasons in a judgement; further ones are only counted.
inline constexpr std::size_t kMostReasons = 1000;

struct Judgement {
  Verdict verdict = Verdict::compatible;
  std::vector<Reason> reasons;
  std::uint64_t more = 0;  ///< reasons beyond those

  void add(Reason reason);
};

/// A line for the verdict, one for each reason, and "17 more reasons" if there are more.
std::string to_lines(const Judgement& judgement);
/// `{"verdict": ..., "reasons": [{...}]}`, and `more_reasons` if there are; without a newline.
std::string to_json(const Judgement& judgement, int indent = -1);
/// Prints one of them to stdout. Result: compat-check's exit status.
int print_judgement(const Judgement& judgement, bool json);

}  // namespace heddle::compat
