// SPDX-License-Identifier: MIT
#include "compat/checker.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "compat/mpi_family.hpp"

namespace heddle::compat {
namespace {

/// More lines about one program tell nobody more.
constexpr std::size_t kMostSymbols = 50;
/// Closures that are kept; one with libstdc++ has 0.3 MiB of symbols.
constexpr std::size_t kMostSetBytes = std::size_t{64} << 20;
constexpr std::size_t kMostSets = 512;
constexpr std::uint64_t kPie = 0x08000000;  // DF_1_PIE

/// Static programs, PIE or not: the kernel starts them alone.
bool is_static(const ElfFacts& elf) {
  if (elf.interp) return false;
  return !elf.dynamic || ((elf.flags_1 & kPie) != 0 && elf.dependencies.empty());
}

/// "6.1.0-18-amd64" as 0x060100, as glibc's dl_osversion; 0: not to be read.
unsigned kernel_number(const std::string& text) {
  unsigned parts[3] = {0, 0, 0};
  if (std::sscanf(text.c_str(), "%u.%u.%u", &parts[0], &parts[1], &parts[2]) < 2) return 0;
  return parts[0] << 16 | std::min(parts[1], 255U) << 8 | std::min(parts[2], 255U);
}

Reason about(const Program& program, Reason::Kind kind, std::string subject) {
  Reason reason;
  reason.kind = kind;
  reason.program = program.name;
  reason.subject = std::move(subject);
  return reason;
}

std::string spelled(const DynamicSymbol& symbol) {
  return symbol.version.empty() ? symbol.name : symbol.name + "@" + symbol.version;
}

}  // namespace

Result<const LoadedSet*> Checker::loaded_set(const Program& program) {
  const auto key = target_.closure_key(program);
  if (const auto known = sets_.find(key); known != sets_.end()) return known->second.get();
  auto set = make_loaded_set(target_, program);
  if (!set) return fail(std::move(set.error()));
  if (set_bytes_ > kMostSetBytes || sets_.size() >= kMostSets) {
    sets_.clear();
    set_bytes_ = 0;
  }
  set_bytes_ += set->exports.bytes();
  auto& slot = sets_[key];
  slot = std::make_unique<const LoadedSet>(std::move(*set));
  return slot.get();
}

void Checker::check_machine(const Program& program, int glibc_minor, Judgement& out) {
  const auto cpu = target_.isa_levels();
  if (const auto lacking = program.notes.isa_needed & ~cpu; cpu != 0 && lacking != 0) {
    auto reason = about(program, Reason::Kind::isa_too_new, highest_isa_level(lacking));
    // Older loaders do not look: it starts, and may die of SIGILL.
    if (glibc_minor < 33) reason.weight = Verdict::degraded;
    reason.detail = fmt::format("this CPU has {}", highest_isa_level(cpu));
    out.add(std::move(reason));
  }
  const auto wanted = kernel_number(program.notes.kernel);
  const auto kernel = target_.kernel();
  if (const auto have = kernel_number(kernel); have != 0 && have < wanted) {
    auto reason = about(program, Reason::Kind::kernel_too_old, program.notes.kernel);
    // 2.37 (b46d250656) took the check out.
    if (glibc_minor >= 37) reason.weight = Verdict::degraded;
    reason.detail = fmt::format("this one is {}", kernel);
    out.add(std::move(reason));
  }
}

void Checker::check_mpi(const Program& program, const LoadedSet& set, Judgement& out) {
  if (program.mpi_family.empty()) return;
  const bool missing =
      std::any_of(set.closure.missing.begin(), set.closure.missing.end(),
                  [&](const MissingLibrary& lost) { return lost.name == program.mpi_soname; });
  if (!missing) return;
  for (const auto& soname : known_mpi_sonames()) {
    const auto family = mpi_family_of(soname);
    if (family == program.mpi_family) continue;
    const auto path = target_.find_library(program, soname);
    if (path.empty()) continue;
    auto reason = about(program, Reason::Kind::mpi_family_differs, program.mpi_family);
    reason.detail = fmt::format("{} is here", family);
    reason.path = path;
    reason.package = target_.package_of(path);
    out.add(std::move(reason));
    return;
  }
}

void Checker::check_symbols(const Program& program, const LoadedSet& set, Judgement& out) {
  if (!set.closure.missing.empty()) return;
  if (!set.symbols_known) {
    auto reason = about(program, Reason::Kind::not_judged, "symbols");
    reason.weight = Verdict::compatible;
    reason.detail = "the target does not tell which symbols its libraries have";
    out.add(std::move(reason));
    return;
  }
  SymbolSet own;  // made only when there is a reference that no library satisfies
  bool own_made = false;
  const auto here = [&](const SymbolSet::Reference& reference) {
    if (set.exports.satisfies(reference)) return true;
    if (!own_made) own.add(program.elf);
    own_made = true;
    return own.satisfies(reference);
  };
  std::size_t missing = 0;
  const auto lack = [&](const DynamicSymbol& symbol, const std::string& by) {
    if (++missing > kMostSymbols) return;
    auto reason = about(program, Reason::Kind::symbol_missing, spelled(symbol));
    reason.required_by = by;
    for (const auto& need : program.elf.version_needs)
      if (by.empty() && !symbol.version.empty() && need.version == symbol.version)
        reason.library = need.file;
    out.add(std::move(reason));
  };
  for (const auto& symbol : program.elf.undefined_symbols)
    if (!symbol.weak && !here(SymbolSet::Reference(symbol))) lack(symbol, {});
  for (const auto& open : set.open)
    if (!here(open.reference)) lack(open.symbol, open.required_by);
  if (missing > kMostSymbols)
    out.add(about(program, Reason::Kind::symbol_missing,
                  fmt::format("{} more symbols", missing - kMostSymbols)));
}

void Checker::check_dlopened(const Program& program, Judgement& out) {
  for (const auto& library : program.libraries) {
    if (!library.dlopened || (library.resolved() && target_.has_file(library.path)) ||
        !target_.find_library(program, library.soname).empty())
      continue;
    auto reason = about(program, Reason::Kind::dlopened_missing, library.soname);
    reason.weight = Verdict::degraded;
    out.add(std::move(reason));
  }
}

Result<void> Checker::check(const Program& program, Judgement& out) {
  if (is_static(program.elf)) {
    check_machine(program, 0, out);
    return {};
  }
  const auto found = loaded_set(program);
  if (!found) return fail(found.error());
  const LoadedSet& set = **found;
  if (set.refused) {
    auto reason = *set.refused;
    reason.program = program.name;
    out.add(std::move(reason));
    return {};
  }
  check_machine(program, set.glibc_minor, out);
  const auto say = [&](Reason reason) {
    reason.program = program.name;
    out.add(std::move(reason));
  };
  for (const auto& reason : set.reasons) say(reason);
  std::vector<Reason> own;
  check_versions(set, program.elf.version_needs, {}, own);
  for (auto& reason : own) {
    if (out.more == 0) reason.package = target_.package_of(reason.path);
    say(std::move(reason));
  }
  check_mpi(program, set, out);
  check_symbols(program, set, out);
  check_dlopened(program, out);
  return {};
}

Result<Judgement> Checker::check(const Artifact& artifact) {
  Judgement out;
  for (const auto& program : artifact.programs)
    if (auto done = check(program, out); !done) return fail(std::move(done.error()));
  return out;
}

}  // namespace heddle::compat
