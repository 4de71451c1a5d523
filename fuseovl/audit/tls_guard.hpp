// SPDX-License-Identifier: MIT
#pragma once

#include <link.h>

#include "fuseovl/audit/process.hpp"

namespace heddle::audit {

/// PT_TLS of a mapped object; size 0: none, or its headers cannot be seen.
struct TlsSegment {
  unsigned long size = 0;
  unsigned long align = 0;
};
TlsSegment tls_of(const link_map& map);

/// Watches the libraries of a start for the static TLS trap (tls_formula.hpp): any auditor, ours
/// too, makes glibc forget their blocks. While the libraries are mapped, none of their code has
/// run: when they outgrow the area, the program is started again with an area that is large enough.
/// Programs whose closure the map knows are started with it and never come to this.
class TlsGuard {
 public:
  constexpr TlsGuard() = default;
  explicit TlsGuard(const StartBlock& start);
  /// An object was mapped into the program's namespace, at its start.
  void take(const link_map& map, const StartBlock& start);

 private:
  unsigned long needed_ = 0;
  unsigned long limit_ = 0;
  unsigned long namespaces_ = tls::kDefaultNamespaces;
  unsigned long area_align_ = 64;
  bool raised_ = false;
  bool wide_ = false;  ///< a block is aligned more than the area
};

}  // namespace heddle::audit
