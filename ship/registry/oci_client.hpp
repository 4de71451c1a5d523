// SPDX-License-Identifier: MIT
#pragma once

namespace heddle {

/// The helper libexec/heddle/oci-client, which compat-gen, compat-check and fs-resolve start:
///   oci-client push --type T [--title NAME] [--attach IMAGE] REF   content on stdin, digest to
///                                                                  stdout
///   oci-client pull --type T REF                                   content to stdout, whole or not
///                                                                  at all
/// Result: its exit status, 0 or 2 or 3; messages bear the name in $HEDDLE_PROGRAM.
int oci_client(int argc, const char* const* argv);

}  // namespace heddle
