// SPDX-License-Identifier: MIT
#pragma once

// Bundles that are made without fs-resolve, of objects and trees that need not be ELF files.

#include <algorithm>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "resolver/map/map_reader.hpp"
#include "ship/bundle/bundle_writer.hpp"
#include "tests/overlay/overlay_support.hpp"

namespace heddle::test {

/// `size` bytes, half of which repeat; another `seed` gives others.
inline std::string some_bytes(std::size_t size, std::uint64_t seed) {
  std::string out(size, '\0');
  std::uint64_t state = seed * 0x9E3779B97F4A7C15ULL + 1;
  for (std::size_t i = 0; i < size; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    out[i] = i % 64 < 32 ? "heddle  "[i % 8] : static_cast<char>(state >> 56);
  }
  return out;
}

/// A map of these files, as objects, and these trees.
inline MapContent map_of(const std::vector<std::string>& files,
                         const std::vector<std::string>& trees) {
  MapMaker maker;
  for (const auto& path : files) maker.add_name("main", path.substr(path.rfind('/') + 1), path);
  for (const auto& path : trees) maker.add_tree(path);
  auto map = maker.content();
  if (map.views.empty()) map.views.push_back({"main", {}});
  for (auto& object : map.objects) object.is_elf = object.path.find(".so") != std::string::npos;
  return map;
}

/// Packs these files, in this order, as the objects of a map. The bundle is at `path`, the map
/// beside it, with ".map".
inline BundleSummary pack_files(const std::vector<std::string>& files, const std::string& path) {
  const auto content = map_of(files, {});
  value_or_throw(write_map(content, path + ".map"));
  BundleInput input;
  input.map = value_or_throw(read_file(path + ".map"));
  input.objects.assign(files.size(), kAtOrigin);
  std::uint64_t place = 0;
  for (const auto& file : files) {
    const auto at = std::ranges::find(content.objects, file, &MapObject::path);
    input.objects[static_cast<std::size_t>(at - content.objects.begin())] = place;
    input.files.push_back({file, at->stamp});
    place += at->stamp.size;
  }
  return value_or_throw(write_bundle(std::move(input), path));
}

}  // namespace heddle::test
