// SPDX-License-Identifier: MIT
#pragma once

#include <link.h>

#include "fuseovl/audit/index_view.hpp"
#include "fuseovl/audit/process.hpp"

namespace heddle::audit {

// What the index cannot answer by a name alone.

/// Whether the chosen program, with the LD_LIBRARY_PATH that ld.so has read, finds its names where
/// the index sends them. The same value as the map's: yes, with no system call. Another one: when
/// the directories in which the map found libraries are still there, all in their order, and no
/// other directory of the list holds a file under a name of the index that is not the very file it
/// leads to. Where that cannot be told the answer is no: unguided is slower, never wrong.
bool library_path_agrees(const IndexView& index, const StartBlock& start);

/// Where a name with a slash leads that the index does not list: relative, through a directory's
/// other name, with $ORIGIN. The file itself is looked at (one stat) and recognised by its
/// identity: ld.so would map a file that is served a second time, since the view shows it under
/// another inode. Nullptr: the name is ld.so's to deal with. The answer holds until the next call;
/// callers hold ld.so's lock.
const char* find_by_path(const IndexView& index, const char* name, const link_map& requester);

}  // namespace heddle::audit
