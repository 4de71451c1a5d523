// SPDX-License-Identifier: MIT
#pragma once

namespace heddle {

/// The helper libexec/heddle/compat-client, which compat-check becomes for `--server` and
/// `--nodes`: gRPC stays out of compat-check itself. The artifact comes on its stdin. Result: its
/// exit status, compat-check's.
int compat_client(int argc, const char* const* argv);

}  // namespace heddle
