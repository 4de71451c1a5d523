// SPDX-License-Identifier: MIT
#include "resolver/map/static_tls.hpp"

#include <algorithm>

#include "resolver/map/tls_formula.hpp"

namespace heddle {

StaticTlsNeed static_tls_need(const std::vector<TlsBlock>& libraries, std::uint64_t program_align) {
  // TCB_ALIGNMENT, sysdeps/x86_64/nptl/tls.h; _dl_determine_tlsoffset takes the maximum.
  const std::uint64_t area_align = std::max<std::uint64_t>(64, program_align);
  StaticTlsNeed out;
  std::uint64_t bytes = 0;
  for (const TlsBlock& block : libraries) {
    bytes += tls::block_cost(block.size, block.align);
    out.over_aligned |= block.static_tls && block.size != 0 && block.align > area_align;
  }
  const std::uint64_t optional = tls::optional_for(bytes);
  if (optional > tls::kDefaultOptional) out.optional_static_tls = optional;
  return out;
}

std::string merge_tunables(std::string_view tunables, std::uint64_t optional_static_tls) {
  if (optional_static_tls == 0) return std::string(tunables);
  std::string out(tunables.size() + tls::kMergeRoom, '\0');
  out.resize(
      tls::merge_optional(out.data(), tunables.data(), tunables.size(), optional_static_tls));
  return out;
}

}  // namespace heddle
