// SPDX-License-Identifier: MIT
#pragma once

#include "fuseovl/audit/index_view.hpp"
#include "fuseovl/audit/process.hpp"

namespace heddle::audit {

/// Whether the chosen program, with the LD_LIBRARY_PATH that ld.so has read, finds its names where
/// the index sends them. The same value as the map's: yes, with no system call. Another one: when
/// the folders in which the map found libraries are still there, all in their order, and no other
/// folder of the list holds a file under a name of the index that is not the very file it leads
/// to. Where that cannot be told the answer is no: unguided is slower, never wrong.
bool library_path_agrees(const IndexView& index, const StartBlock& start);

}  // namespace heddle::audit
