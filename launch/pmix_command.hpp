// SPDX-License-Identifier: MIT
#pragma once

namespace heddle::launch {

/// fs-launch pmix: becomes libexec/heddle/heddle-pmix (launch/pmix), the one program that needs
/// libpmix. Fails with one error where it is missing, or cannot be loaded.
[[noreturn]] void become_pmix(int argc, const char* const* argv);

}  // namespace heddle::launch
