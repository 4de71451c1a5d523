// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

#include "base/fd.hpp"

namespace heddle {

/// openat2(2) with `resolve`, O_CLOEXEC, from the directory `from`. The error names `path`. ENOSYS
/// before Linux 5.6, and where it is forbidden EPERM.
Result<Fd> open_resolved(int from, const std::string& path, int flags, std::uint64_t resolve);

/// `path`, and symbolic links on its way, lead nowhere outside the directory `root`, nor through
/// the magic links of procfs. EAGAIN: what lies there is renamed without end. `resolve`: more of
/// openat2's RESOLVE flags; without any it works on kernels that lack that call too.
Result<Fd> open_in_root(int root, const std::string& path, int flags, std::uint64_t resolve);

}  // namespace heddle
