// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "base/result.hpp"
#include "ship/bundle/bundle_format.hpp"

namespace heddle {

/// The part of a bundle that is read when it is opened. No byte of the file is trusted: nothing is
/// allocated for a size that the file does not have, and the index is used only when its SHA-256 is
/// the footer's, which is the bundle's id.
struct BundleFile {
  BundleIndex index;
  std::string map;  ///< the bytes of the map

  /// Of the open file, called `path` in messages. ENOEXEC: no bundle; ENOTSUP: another version;
  /// EBADMSG: damaged, or not the bundle `expected`; EFBIG: too large; else errors of pread(2).
  static Result<BundleFile> read(int file, const std::string& path,
                                 const ContentHash* expected = nullptr);
};

/// Whether the file begins as a bundle does.
bool is_bundle(int file);

/// Where a bundle's index is, by its footer: within the file, and not too large.
Result<bundle_format::Footer> read_bundle_footer(int file, const std::string& path);

/// pread(2) until `size` bytes are read; a file that ends before is EBADMSG.
Result<std::string> read_piece(int file, const std::string& path, std::uint64_t offset,
                               std::size_t size);

}  // namespace heddle
