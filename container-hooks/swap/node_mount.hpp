// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/fd.hpp"

namespace heddle::hook {

/// A detached copy of the mount that this node's `fs-mount --node` in `directory` has of a map,
/// made by it if need be; as a descriptor, so that no path of this mount namespace matters. Asked
/// for at each start: the service also tells whether the host's files are still as the map says
/// (Cause::unfit). ENOENT: no service was started here. EPERM: it is another user's. A user who may
/// write to the directory could have another file mounted: it must be ours alone.
Result<Fd> node_mount(const std::string& directory, const std::string& map_id,
                      const std::string& map);

}  // namespace heddle::hook
