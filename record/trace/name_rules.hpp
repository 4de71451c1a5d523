// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>

namespace heddle::trace {

// The normaliser's rules, each on one component of a path. Each changes `name` and says so, or
// leaves it. They lean to leaving: a difference shown too many is seen by people, one hidden is
// not.

/// `libx.so.1.2.3` -> `libx.so.1`: all behind `.so.` must be a version. `ld.so.cache`, `a.so.bak`
/// and `libx.so.1.gz` are no such names.
bool shorten_soname(std::string& name);
/// Each run of three and more digits that is one of `pids` -> `<pid>`.
bool replace_pids(std::string& name, const std::unordered_set<std::int32_t>& pids);
/// Names that are random anywhere: git's and NFS's temporary files, Python's half-written .pyc.
bool replace_temp_name(std::string& name);
/// Names that are random below a folder for temporary files: mkstemp's, gcc's, Python's.
bool replace_temp_name_in_temp_folder(std::string& name);
/// Spack: `zlib-1.3-<32 of a-z2-7>` -> `zlib-1.3-<hash>`.
bool replace_spack_hash(std::string& name);
/// Nix and Guix, below their store: `<32 of Nix's base 32>-zlib-1.3` -> `<hash>-zlib-1.3`.
bool replace_nix_hash(std::string& name);

}  // namespace heddle::trace
