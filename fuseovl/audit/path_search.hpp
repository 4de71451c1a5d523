// SPDX-License-Identifier: MIT
#pragma once

#include <link.h>

#include "fuseovl/audit/index_view.hpp"

namespace heddle::audit {

/// Where a name with a slash leads that the index does not list: relative, through a folder's other
/// name, with $ORIGIN. The file itself is looked at (one stat) and recognised by its identity:
/// ld.so would map a file that is served a second time, since the view shows it under another
/// inode. Nullptr: the name is ld.so's to deal with. The answer holds until the next call; callers
/// hold ld.so's lock.
const char* find_by_path(const IndexView& index, const char* name, const link_map& requester);

}  // namespace heddle::audit
