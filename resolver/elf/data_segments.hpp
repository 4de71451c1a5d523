// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/result.hpp"

namespace heddle {

/// Of the ELF file behind `fd` all that its segments load but pure code: nine tenths of an MPI
/// library are code, and none of its strings is there. Only the numbers of the program headers are
/// looked at, each held against the file's size. A file that is no ELF file of this machine's kind
/// comes whole. EFBIG: more than `limit` bytes. `name` is for messages.
Result<std::string> read_data_segments(int fd, const std::string& name, std::size_t limit);

}  // namespace heddle
