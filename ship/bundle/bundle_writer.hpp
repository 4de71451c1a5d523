// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "base/file_stamp.hpp"
#include "base/result.hpp"
#include "ship/bundle/bundle_format.hpp"

namespace heddle {

/// A file whose content goes into the stream.
struct StreamFile {
  std::string path;
  FileStamp stamp;  ///< what fstat(2) must say of it before and after each read
};

struct BundleInput {
  std::vector<StreamFile> files;  ///< in the order of the stream
  std::string map;                ///< the map's bytes
  /// As in BundleIndex; a file's place is the sum of the sizes before it.
  std::vector<std::uint64_t> objects;
  std::vector<std::vector<std::uint64_t>> trees;
};

struct BundleSummary {
  ContentHash id;
  std::uint64_t stream_size = 0;
  std::uint64_t file_size = 0;
};

/// Writes a bundle at `path`: aside, fsynced, renamed. The frames are read and compressed by
/// several threads; equal input gives equal bytes. On failure, such as a source that has changed,
/// an old file is unchanged.
Result<BundleSummary> write_bundle(BundleInput input, const std::string& path);

}  // namespace heddle
