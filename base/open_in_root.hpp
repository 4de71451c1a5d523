// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

#include "base/fd.hpp"

namespace heddle {

/// openat2(2) with `resolve`, O_CLOEXEC, from the folder `from`. The error names `path`.
Result<Fd> open_resolved(int from, const std::string& path, int flags, std::uint64_t resolve);

/// open_resolved() with RESOLVE_IN_ROOT and `resolve`: `path`, and symbolic links on its way, lead
/// nowhere outside the folder `root`. EAGAIN: what lies there is renamed without end.
Result<Fd> open_in_root(int root, const std::string& path, int flags, std::uint64_t resolve);

}  // namespace heddle
