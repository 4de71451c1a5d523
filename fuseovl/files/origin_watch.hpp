// SPDX-License-Identifier: MIT
#pragma once

#include "fuseovl/files/object_files.hpp"

namespace heddle {

/// Starts a thread that has `files`, which outlive the process's threads, checked as soon as one
/// of them is written to: what nobody reads any more is noticed as well. It sees the files of local
/// file systems only, by inotify(7); others are checked when they are read. Without threads or
/// watches to be had there is none, and nothing is said: no answer depends on it.
void watch_origins(ObjectFiles& files);

}  // namespace heddle
