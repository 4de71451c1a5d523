// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/fd.hpp"

namespace heddle {

enum class Wait : bool { no, yes };
/// Many may look at an entry at once; one may change it, while nobody looks.
enum class Access : bool { look, change };

/// The lock of one entry of the decisions' cache, held while its files are looked at, made or
/// removed. The file `path` is made when it is missing, and locked as it is named at that moment:
/// pruning removes it with the rest. EWOULDBLOCK with Wait::no: somebody has it. With Wait::yes it
/// fails when nobody is at the other end of the pipe `asker` any more.
Result<Fd> lock_entry(const std::string& path, Access access, Wait wait, int asker = -1);

/// Marks an open file as in use, as long as the descriptor, or a copy of it, is open.
void hold_entry(const Fd& file);
/// Whether somebody holds it.
bool is_held(const Fd& file);

}  // namespace heddle
