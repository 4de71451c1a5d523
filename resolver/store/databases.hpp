// SPDX-License-Identifier: MIT
#pragma once

// Files of named databases in LMDB's format. LMDB only writes them: its reader trusts the pages,
// and on a changed byte asserts, crashes or reads out of bounds.

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.hpp"

namespace heddle::store {

inline constexpr std::size_t kMaxKey = 511;  ///< LMDB's compiled-in limit

/// Keys and values of one database, in key order (memcmp's, a shorter key first), each key once.
using Records = std::vector<std::pair<std::string_view, std::string_view>>;
using Databases = std::map<std::string_view, Records>;

/// The value of `key`.
std::optional<std::string_view> find(const Records& records, std::string_view key);

/// Reads all databases of `file`, whose bytes are untrusted: nothing outside is read, and time and
/// memory are bounded by a small multiple of its size. The views point into `file`. EBADMSG, with
/// the reason: it is no such file, or damaged.
Result<Databases> read_databases(std::string_view file);

/// The bytes of a file that holds them; equal databases give equal bytes. EINVAL: a key is empty or
/// too long; EEXIST: keys are out of order; else a write's errno.
Result<std::string> write_databases(const Databases& databases);

}  // namespace heddle::store
