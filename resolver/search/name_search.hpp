// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "resolver/search/ld_so_cache.hpp"
#include "resolver/search/link_maps.hpp"

namespace heddle {

/// ld.so's verdict on one candidate path (glibc elf/dl-load.c, open_verify).
struct Candidate {
  enum class Verdict : std::uint8_t {
    usable,       ///< opened and of the right kind: `file` is set
    no_file,      ///< open(2) failed with `error`: the search goes on
    passed_over,  ///< of another class or machine: the search goes on
    fatal,        ///< ld.so ends with the error `reason`
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

struct Found {
  Candidate candidate;  ///< verdict usable: found; fatal: ld.so ends; else not found
  std::string path;
  FoundBy by = FoundBy::path;
  std::optional<std::size_t> searched_by;
};

/// The search of one process for a file by name: ld.so's _dl_map_object without the names already
/// loaded. Counts ld.so's system calls.
class NameSearch {
 public:
  NameSearch(World& world, const LoaderProfile& loader, const SearchOptions& options,
             LinkMaps& maps);

  /// `name`: tokens not expanded.
  Found find(const std::string& name, std::size_t requester);
  /// Starts reading the files that the dependencies of `requesters` most likely lead to, and lists
  /// the directories they are in.
  void prefetch(const std::vector<std::size_t>& requesters);
  TokenValues tokens(std::size_t map) const {
    return {maps_[map].origin, loader_.platform, loader_.lib};
  }

  ProbeCount probes;
  /// Receives probes with SearchOptions::explain; may be null.
  std::vector<Probe>* record = nullptr;

 private:
  struct Attempt {
    const std::string& name;
    EntryName entry;
    std::size_t requester;
    bool name_too_long;
    int error = 0;  ///< errno of the last system call
    Found found{};
    std::string other_class{};  ///< ld.so's error if nothing else is found

    bool ended() const {
      return found.candidate.verdict == Candidate::Verdict::usable ||
             found.candidate.verdict == Candidate::Verdict::fatal;
    }
  };
  /// The object's RPATH or RUNPATH; null: it has none.
  SearchList* tagged(std::size_t map, FoundBy tag);
  /// The directory lists ld.so walks for `requester` before and after the cache.
  void lists_before_cache(std::size_t requester, std::vector<SearchList*>& out);
  SearchList* list_after_cache(std::size_t requester);
  void walk(SearchList& list, Attempt& attempt);
  /// One probe, in capability directory `i` of `dir`. True: the search has ended.
  bool try_directory(SearchDir& dir, std::size_t i, const SearchList& list, Attempt& attempt);
  void open(const std::string& path, FoundBy by, std::size_t searched_by, Attempt& attempt);
  void try_cache(Attempt& attempt);
  std::string_view cached(const std::string& name);
  void note(std::string_view path, FoundBy by, std::size_t searched_by, Probe::Outcome outcome);
  /// The first file `name` in `dirs`, whatever it is; empty: none.
  std::string likely_path(const std::string& name, std::span<SearchDir* const> dirs);

  World& world_;
  const LoaderProfile& loader_;
  LinkMaps& maps_;
  SearchDirs dirs_;
  SearchList default_;
  std::optional<SearchList> library_path_;
  std::optional<LdSoCache> cache_;
  std::string buffer_;
};

}  // namespace heddle
