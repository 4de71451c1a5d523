// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "resolver/search/search.hpp"

namespace heddle {

/// The values of $ORIGIN, $PLATFORM and $LIB in one object's strings.
struct TokenValues {
  std::string_view origin;    ///< empty: unknown
  std::string_view platform;  ///< empty: unknown
  std::string_view lib;
};

/// Whether `text` contains a token by ld.so's rules ($X and ${X}, the longest name).
bool has_token(std::string_view text);
/// `text` with its tokens replaced; empty when one has no value (ld.so then drops the path).
std::string expand_tokens(std::string_view text, const TokenValues& values);

/// One directory that ld.so searches, with its known status and that of its subdirectories, shared
/// by all lists that name it (glibc elf/dl-load.c, r_search_path_elem in dl_all_dirs).
struct SearchDir {
  enum class Status : std::uint8_t { unknown, existing, nonexisting };
  static constexpr World::DirId kNoHandle = ~World::DirId{0};

  std::string name;            ///< ends in '/'; empty: the current directory
  std::vector<Status> status;  ///< one for each capability subdirectory, the directory itself last
  /// Indices of those not ruled out, in order: mostly just the last.
  std::vector<std::uint16_t> live;
  std::optional<std::vector<std::uint16_t>> present;  ///< made by SearchDirs::present()
  std::vector<World::DirId> handles;                  ///< asked of the World on first use
};

/// One list of directories: an RPATH, a RUNPATH, LD_LIBRARY_PATH or the default.
struct SearchList {
  std::vector<SearchDir*> dirs;
  FoundBy by = FoundBy::default_path;
  std::size_t owner = 0;        ///< the object that brings it
  bool may_be_dropped = false;  ///< RPATH and RUNPATH: ignored once no directory exists
  bool dropped = false;
};

/// All directories of one process.
class SearchDirs {
 public:
  SearchDirs(World& world, const LoaderProfile& loader);

  /// The list in `text`, split at any of `separators`, tokens expanded, doubles left out.
  void fill(SearchList& list, std::string_view text, std::string_view separators,
            const TokenValues& values);
  SearchList default_list();

  /// "glibc-hwcaps/x86-64-v3/", ..., ""; in ld.so's order.
  const std::string& capability(std::size_t i) const { return capabilities_[i]; }
  World::DirId handle(SearchDir& dir, std::size_t capability);
  /// The capabilities whose directory exists, whatever ld.so has found out.
  const std::vector<std::uint16_t>& present(SearchDir& dir);

 private:
  SearchDir* intern(std::string_view name);

  World& world_;
  std::vector<std::string> capabilities_;
  std::vector<std::string> defaults_;
  std::unordered_map<std::string, std::unique_ptr<SearchDir>> dirs_;
};

}  // namespace heddle
