// SPDX-License-Identifier: MIT
#pragma once

#include <link.h>

#include "fuseovl/audit/process.hpp"

namespace heddle::audit {

/// CPython before 3.13 asks isatty(3) of each file that it opens: an ioctl(2), which the kernel
/// sends to the daemon of a tree's mount each time, and the process sleeps. From here on isatty()
/// in `python`, the program or its libpython, is answered by fstat(2) for regular files, as the C
/// library would: 0 and ENOTTY. Anything else is asked as before. Does nothing where `python` does
/// not define Py_Main, or where isatty() is not the C library's. All objects that `program` starts
/// with are relocated, and no code of theirs has run.
void answer_isatty(const StartBlock& start, const link_map& program, const link_map& python);

}  // namespace heddle::audit
