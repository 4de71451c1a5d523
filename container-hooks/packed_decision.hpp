// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

#include "container-hooks/decision.hpp"

namespace heddle {

/// What the decisions' cache keeps beside a decision for people (JSON): all that a container's
/// start needs, read in a tenth of JSON's time. Only fs-hook of this very version reads it.
struct PackedDecision {
  Decision decision;
  std::string contents;  ///< ImageContents of the image's files that it was made by
  std::string map_id;    ///< hash of the map's bytes; empty without a swap
};

std::string pack(const PackedDecision& packed);
/// Fails on anything that pack() did not make.
Result<PackedDecision> unpack(std::string_view bytes, const std::string& name);

}  // namespace heddle
