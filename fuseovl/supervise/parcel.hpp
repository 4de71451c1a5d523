// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fuseovl/overlay/overlay.hpp"

namespace heddle {

/// What a mount serves, made fit to outlive execve(2): bytes, and the descriptors that they speak
/// of by place. Between an fs-mount and the one that takes its mount over, which may be newer or
/// older: a CBOR document with a version, whose lists and objects only ever grow at their ends;
/// what an older one lacks has a default (hand_over.hpp).
struct Parcel {
  std::string bytes;
  std::vector<int> fds;  ///< still the content's own
};

Parcel pack(const OverlayContent& content);

/// The content again. `fds`: by the same places; they are the content's from here on, also when it
/// fails (ENOTSUP: packed by a version of fs-mount that this one does not know).
Result<OverlayContent> unpack(std::string_view bytes, std::span<const int> fds);

}  // namespace heddle
