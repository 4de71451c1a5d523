// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/fd.hpp"

namespace heddle {

/// A detached copy of the mount that this node's `fs-mount --node` has of a map, made by it if need
/// be; from its hands, so that no path of this mount namespace matters. Asked for each start: the
/// service also says whether the host's files are still as the map says (ESTALE). ENOENT: no
/// service was started here. EPERM: it is another user's. Whoever may write to the folder could
/// have another file mounted: it must be ours alone.
Result<Fd> node_mount(const std::string& folder, const std::string& map_id, const std::string& map);

}  // namespace heddle
