// SPDX-License-Identifier: MIT
#pragma once

#include <cerrno>
#include <string_view>

namespace heddle {

/// What to do when the kernel does not change the propagation of `/`, with this errno.
constexpr std::string_view private_mounts_hint(int error) {
  if (error != EINVAL) return {};
  return "the root of a plain chroot(2) is no mount: mount --bind it onto itself, then chroot";
}

}  // namespace heddle
