// SPDX-License-Identifier: MIT
#pragma once

#include <link.h>

#include "fuseovl/audit/process.hpp"

namespace heddle::audit {

/// CPython before 3.13 asks isatty(3) of each file that it opens: an ioctl(2), which the kernel
/// sends to the daemon of a tree's mount each time, and the process sleeps. From here on isatty()
/// in the Python of this process is answered by statx(2) for regular files that are open for
/// reading only, as the C library would: 0 and ENOTTY. Anything else is asked as before.
/// `libpython` is nullptr if there is none; Python is what defines Py_Main. Does nothing without
/// one, or where its isatty() is not the C library's. All objects that `program` starts with are
/// relocated.
void answer_isatty(const StartBlock& start, const link_map& program, const link_map* libpython);

}  // namespace heddle::audit
