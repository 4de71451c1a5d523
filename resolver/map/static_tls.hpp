// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "resolver/map/tls_formula.hpp"

namespace heddle {

/// PT_TLS of one library that ld.so maps at a program's start (not of the program or of ld.so).
struct TlsBlock {
  std::uint64_t size = 0;
  std::uint64_t align = 0;
  bool static_tls = false;  ///< DF_STATIC_TLS: initial-exec access
};

struct StaticTlsNeed {
  /// Smallest glibc.rtld.optional_static_tls that is safe under the audit library; 0: the default
  /// is.
  std::uint64_t optional_static_tls = 0;
  /// A library with initial-exec TLS is aligned more than the static area is (kAreaAlign, or the
  /// program's own alignment): no tunable makes it load under any auditor. Use `--loader env`.
  bool over_aligned = false;
  bool too_many = false;  ///< more than tls::kMostBlocks: it starts without the audit library
};

/// For a program whose own PT_TLS is aligned to `program_align` (0: it has none).
inline StaticTlsNeed static_tls_need(const std::vector<TlsBlock>& libraries,
                                     std::uint64_t program_align = 0) {
  // _dl_determine_tlsoffset takes the maximum.
  const std::uint64_t area_align = std::max(tls::kAreaAlign, program_align);
  StaticTlsNeed out;
  std::uint64_t bytes = 0, blocks = 0;
  for (const TlsBlock& block : libraries) {
    blocks += block.size != 0;
    bytes += tls::block_cost(block.size, block.align);
    out.over_aligned |= block.static_tls && block.size != 0 && block.align > area_align;
  }
  out.too_many = blocks > tls::kMostBlocks;
  const std::uint64_t optional = tls::optional_for(bytes);
  if (optional > tls::kDefaultOptional) out.optional_static_tls = optional;
  return out;
}

/// `tunables` (the value of GLIBC_TUNABLES; empty: unset) with optional_static_tls raised to
/// `optional_static_tls`; the user's own larger value and all other tunables stay. 0 changes
/// nothing.
inline std::string merge_tunables(std::string_view tunables, std::uint64_t optional_static_tls) {
  if (optional_static_tls == 0) return std::string(tunables);
  std::string out(tunables.size() + tls::kMergeRoom, '\0');
  out.resize(
      tls::merge_optional(out.data(), tunables.data(), tunables.size(), optional_static_tls));
  return out;
}

/// Set beside a changed GLIBC_TUNABLES: "GLIBC_TUNABLES=<the user's value>", or "" for none. The
/// audit library restores the user's environment before the program runs, so that its children have
/// ordinary thread stacks; it restarts a mapped child that needs more static TLS.
inline constexpr char kSavedTunables[] = "HEDDLE_TUNABLES";

}  // namespace heddle
