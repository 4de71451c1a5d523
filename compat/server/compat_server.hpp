// SPDX-License-Identifier: MIT
#pragma once

namespace heddle {

/// The program compat-server. Result: its exit status.
int compat_server(int argc, const char* const* argv);

}  // namespace heddle
