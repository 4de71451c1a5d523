// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/content_hash.hpp"
#include "base/result.hpp"

namespace heddle {

/// Whether `map`.sig is a signature of the id of the map or bundle `map` (its 64 digits and a
/// newline) in the namespace "heddle", by a key of the file `signers` (ssh-keygen(1), ALLOWED
/// SIGNERS). EPERM: it is not. A signer chooses the libraries that programs load, so root's
/// file must be such that only root can have written it. The id was taken from the bytes that are
/// mounted: it does not matter whose file they are in, or what that is changed to.
Result<void> check_signature(const std::string& map, const ContentHash& id,
                             const std::string& signers);

}  // namespace heddle
