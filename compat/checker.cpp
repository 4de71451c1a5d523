// SPDX-License-Identifier: MIT
//
// A verdict has two parts. A LoadedSet has all that depends on the closure alone; it is made once
// for all programs with the same closure. The program's own versions and symbols are then checked
// against it in microseconds.
#include "compat/checker.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <unordered_set>

#include "base/try.hpp"
#include "resolver/mpi/mpi_family.hpp"

namespace heddle::compat {
namespace {

using Kind = Reason::Kind;

constexpr std::size_t kMostSymbols = 50;  // missing ones, listed for each program
/// Cached closures; one with libstdc++ has 0.3 MiB of symbols.
constexpr std::size_t kMostSets = 256;
constexpr std::uint64_t kPie = 0x08000000;  // DF_1_PIE

enum class As : XXH64_hash_t { any = 1, exact = 2, bare = 3 };

std::uint64_t hash_of(std::string_view text, As as) {
  return XXH3_64bits_withSeed(text.data(), text.size(), static_cast<XXH64_hash_t>(as));
}

std::uint64_t exact_hash(const DynamicSymbol& symbol) {
  std::string text;
  text.reserve(symbol.name.size() + symbol.version.size() + 1);
  text.append(symbol.name).append(1, '\0').append(symbol.version);
  return hash_of(text, As::exact);
}

/// The references that a group of objects satisfies, by glibc's rules (elf/dl-lookup.c,
/// check_match): one with a version binds to that version, or to a definition without any; one
/// without a version binds to any. Holds 64-bit hashes: libc, libstdc++ and libm take 100 KiB. One
/// difference: a definition with a hidden version satisfies a reference without a version, which
/// only an object linked without the library has. ElfFacts does not say what is hidden.
class SymbolSet {
 public:
  /// The hashes of a reference.
  struct Reference {
    explicit Reference(const DynamicSymbol& symbol)
        : exact(symbol.version.empty() ? hash_of(symbol.name, As::any) : exact_hash(symbol)),
          bare(hash_of(symbol.name, As::bare)) {}
    std::uint64_t exact;  ///< of name and version; without version: of the name
    std::uint64_t bare;   ///< of the name as a definition without version
  };

  void add(const ElfFacts& elf) {
    for (const auto& symbol : elf.exported_symbols) {
      hashes_.insert(hash_of(symbol.name, As::any));
      hashes_.insert(symbol.version.empty() ? hash_of(symbol.name, As::bare) : exact_hash(symbol));
    }
  }
  bool satisfies(const Reference& reference) const {
    return hashes_.contains(reference.exact) || hashes_.contains(reference.bare);
  }

 private:
  std::unordered_set<std::uint64_t> hashes_;
};

/// Static programs, PIE or not: they have no loader.
bool is_static(const ElfFacts& elf) {
  if (elf.interp) return false;
  return !elf.dynamic || ((elf.flags_1 & kPie) != 0 && elf.dependencies.empty());
}

/// "6.1.0-18-amd64" as 0x060100, like glibc's dl_osversion; 0: invalid.
unsigned kernel_number(const std::string& text) {
  unsigned parts[3] = {0, 0, 0};
  if (std::sscanf(text.c_str(), "%u.%u.%u", &parts[0], &parts[1], &parts[2]) < 2) return 0;
  return parts[0] << 16 | std::min(parts[1], 255U) << 8 | std::min(parts[2], 255U);
}

std::string spelled(const DynamicSymbol& symbol) {
  return symbol.version.empty() ? symbol.name : symbol.name + "@" + symbol.version;
}

}  // namespace

/// The libraries that a target maps for a program, and what they lack.
struct LoadedSet {
  std::optional<Reason> refused;
  Closure closure;
  int glibc_minor = 0;
  SymbolSet exports;            ///< of all but the program
  bool symbols_known = true;    ///< false: of some library they are not
  std::vector<Reason> reasons;  ///< without `program`
  /// References of libraries that no library satisfies; the program may.
  struct Open {
    DynamicSymbol symbol;
    SymbolSet::Reference reference;
    std::string required_by;
  };
  std::vector<Open> open;
  std::unordered_map<std::string, std::size_t> by_name;  ///< name ld.so knows it by -> object
};

namespace {

/// `searched_all`: else what is missing may be in a directory that was not looked at.
void note_missing(LoadedSet& set, bool searched_all) {
  for (const auto& missing : set.closure.missing) {
    const bool absent = missing.reason == "not found";
    set.reasons.push_back(
        {.kind = absent ? Kind::library_missing : Kind::library_unusable,
         .weight = absent && !searched_all ? Verdict::degraded : Verdict::incompatible,
         .subject = missing.name,
         .required_by =
             missing.needed_by != 0 ? shown_name(set.closure.objects[missing.needed_by]) : "",
         .detail = absent ? "" : missing.reason});
  }
}

void note_isa(Target& target, LoadedSet& set) {
  // Since 2.33 ld.so compares every object's level with the CPU's (elf/dl-prop.h).
  const auto cpu = target.isa_levels();
  if (cpu == 0 || set.glibc_minor < 33) return;
  for (std::size_t i = 1; i < set.closure.objects.size(); ++i) {
    const auto& object = set.closure.objects[i];
    if (const auto lacking = target.notes(object.path).isa_needed & ~cpu; lacking != 0)
      set.reasons.push_back({.kind = Kind::isa_too_new,
                             .subject = highest_isa_level(lacking),
                             .required_by = shown_name(object),
                             .path = object.path});
  }
}

void note_symbols(Target& target, LoadedSet& set) {
  const auto& objects = set.closure.objects;
  std::vector<std::string> paths;
  for (std::size_t i = 1; i < objects.size(); ++i) paths.push_back(objects[i].path);
  target.prefetch_symbols(paths);
  std::vector<LoadedSet::Open> wanted;
  for (std::size_t i = 1; i < objects.size(); ++i) {
    auto elf = target.symbols(objects[i].path);
    if (!elf) {
      set.symbols_known = false;
      continue;
    }
    set.exports.add(*elf);
    for (auto& symbol : elf->undefined_symbols) {
      if (symbol.weak) continue;
      const SymbolSet::Reference reference(symbol);
      wanted.push_back({std::move(symbol), reference, shown_name(objects[i])});
    }
  }
  // A library whose symbols are unknown may define them.
  if (!set.symbols_known) return;
  std::copy_if(std::make_move_iterator(wanted.begin()), std::make_move_iterator(wanted.end()),
               std::back_inserter(set.open),
               [&](const auto& open) { return !set.exports.satisfies(open.reference); });
}

/// ld.so's version check of one object's needs (elf/dl-version.c, _dl_check_map_versions). Reasons
/// have no `program` and `package`.
void check_versions(const LoadedSet& set, const std::vector<VersionNeed>& needs,
                    const std::string& required_by, std::vector<Reason>& out) {
  for (const auto& need : needs) {
    const auto found = set.by_name.find(need.file);
    if (found == set.by_name.end()) continue;  // missing, and reported as such
    const auto& provider = set.closure.objects[found->second];
    const auto& defined = provider.file.elf.version_definitions;
    if (std::find(defined.begin(), defined.end(), need.version) != defined.end()) continue;
    // For a library that defines no versions ld.so prints a warning. If it needs none either it has
    // no DT_VERSYM, and ld.so ends the program at the first symbol that it finds there with a
    // version (dl-lookup.c, check_match()).
    const bool has_table = !defined.empty() || !provider.file.elf.version_needs.empty();
    const auto kind = defined.empty() ? Kind::no_version_information
                      : need.weak     ? Kind::weak_version_missing
                                      : Kind::version_missing;
    const bool starts = has_table && kind != Kind::version_missing;
    out.push_back({.kind = kind,
                   .weight = starts ? Verdict::degraded : Verdict::incompatible,
                   .subject = need.version,
                   .library = need.file,
                   .required_by = required_by,
                   .path = provider.path});
  }
}

Result<LoadedSet> make_loaded_set(Target& target, const Program& program) {
  auto loaded = TRY(target.load(program));
  LoadedSet set;
  set.refused = std::move(loaded.refused);
  if (set.refused) return set;
  for (const auto& directory : loaded.not_searched)
    set.reasons.push_back(
        {.kind = Kind::not_judged,
         .weight = Verdict::degraded,
         .subject = directory,
         .detail =
             "not searched: outside the server's library directories, or it does not answer"});
  set.closure = std::move(loaded.closure);
  set.glibc_minor = loaded.glibc_minor;
  const auto& objects = set.closure.objects;
  // The first in ld.so's order wins, as in find_needed.
  for (std::size_t i = 1; i < objects.size(); ++i) {
    set.by_name.emplace(objects[i].path, i);
    for (const auto& name : objects[i].names) set.by_name.emplace(name, i);
    if (objects[i].file.elf.soname) set.by_name.emplace(*objects[i].file.elf.soname, i);
  }
  note_missing(set, loaded.not_searched.empty());
  for (std::size_t i = 1; i < objects.size(); ++i)
    check_versions(set, objects[i].file.elf.version_needs, shown_name(objects[i]), set.reasons);
  note_isa(target, set);
  // A missing library's symbols would be reported as missing as well.
  if (set.closure.missing.empty()) note_symbols(target, set);
  for (auto& reason : set.reasons)
    if (!reason.path.empty()) reason.package = target.package_of(reason.path);
  return set;
}

}  // namespace

Checker::Checker(Target& target) : target_(target) {}
Checker::~Checker() = default;

Result<const LoadedSet*> Checker::loaded_set(const Program& program) {
  const auto key = target_.closure_key(program);
  if (const auto known = sets_.find(key); known != sets_.end()) return known->second.get();
  auto set = std::make_unique<LoadedSet>(TRY(make_loaded_set(target_, program)));
  if (sets_.size() >= kMostSets) sets_.clear();
  return (sets_[key] = std::move(set)).get();
}

void Checker::check_machine(const Program& program, int glibc_minor, Judgement& out) {
  const auto cpu = target_.isa_levels();
  if (const auto lacking = program.notes.isa_needed & ~cpu; cpu != 0 && lacking != 0)
    out.add({.kind = Kind::isa_too_new,
             // Older loaders do not check: it starts, and may die of SIGILL.
             .weight = glibc_minor < 33 ? Verdict::degraded : Verdict::incompatible,
             .program = program.name,
             .subject = highest_isa_level(lacking),
             .detail = fmt::format("this CPU has {}", highest_isa_level(cpu))});
  const auto kernel = target_.kernel();
  if (const auto have = kernel_number(kernel);
      have != 0 && have < kernel_number(program.notes.kernel))
    out.add({.kind = Kind::kernel_too_old,
             .weight = Verdict::degraded,  // it starts: nothing reads a program's note
             .program = program.name,
             .subject = program.notes.kernel,
             .detail = fmt::format("this one is {}", kernel)});
}

void Checker::check_mpi(const Program& program, const LoadedSet& set, Judgement& out) {
  if (program.mpi_family.empty()) return;
  const bool missing =
      std::any_of(set.closure.missing.begin(), set.closure.missing.end(),
                  [&](const MissingLibrary& lost) { return lost.name == program.mpi_soname; });
  if (!missing) return;
  for (const auto& [soname, family] : kMpiSonames) {
    if (family == program.mpi_family) continue;
    const auto path = target_.find_library(program, soname);
    if (path.empty()) continue;
    out.add({.kind = Kind::mpi_family_differs,
             .program = program.name,
             .subject = program.mpi_family,
             .path = path,
             .package = target_.package_of(path),
             .detail = fmt::format("{} is here", family)});
    return;
  }
}

void Checker::check_symbols(const Program& program, const LoadedSet& set, Judgement& out) {
  if (!set.closure.missing.empty()) return;
  if (!set.symbols_known) {
    out.add({.kind = Kind::not_judged,
             .weight = Verdict::compatible,
             .program = program.name,
             .subject = "symbols",
             .detail = "the symbols of the target's libraries are not known"});
    return;
  }
  SymbolSet own;  // made when a reference is not satisfied by a library
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
    Reason reason{.kind = Kind::symbol_missing,
                  .program = program.name,
                  .subject = spelled(symbol),
                  .required_by = by};
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
    out.add({.kind = Kind::symbol_missing,
             .program = program.name,
             .subject = fmt::format("{} more symbols", missing - kMostSymbols)});
}

void Checker::check_dlopened(const Program& program, Judgement& out) {
  for (const auto& library : program.libraries)
    if (library.dlopened && !(library.resolved() && target_.has_file(library.path)) &&
        target_.find_library(program, library.soname).empty())
      out.add({.kind = Kind::dlopened_missing,
               .weight = Verdict::degraded,
               .program = program.name,
               .subject = library.soname});
}

Result<void> Checker::check(const Program& program, Judgement& out) {
  if (!runs_here(program.elf.machine)) {
    out.add({.kind = Kind::machine_differs,
             .program = program.name,
             .subject = machine_name(program.elf.machine)});
    return {};
  }
  if (is_static(program.elf)) {
    check_machine(program, 0, out);
    return {};
  }
  const LoadedSet& set = *TRY(loaded_set(program));
  const auto add = [&](Reason reason) {
    reason.program = program.name;
    out.add(std::move(reason));
  };
  if (set.refused) {
    add(*set.refused);
    return {};
  }
  check_machine(program, set.glibc_minor, out);
  for (const auto& reason : set.reasons) add(reason);
  std::vector<Reason> own;
  check_versions(set, program.elf.version_needs, {}, own);
  for (auto& reason : own) {
    if (out.more == 0) reason.package = target_.package_of(reason.path);
    add(std::move(reason));
  }
  check_mpi(program, set, out);
  check_symbols(program, set, out);
  check_dlopened(program, out);
  return {};
}

Result<Judgement> Checker::check(const Artifact& artifact) {
  Judgement out;
  for (const auto& program : artifact.programs) TRY(check(program, out));
  return out;
}

}  // namespace heddle::compat
