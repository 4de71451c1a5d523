// SPDX-License-Identifier: MIT
#pragma once

// Bundles that are made without fs-resolve, of objects and trees that need not be ELF files.

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "resolver/map/map_reader.hpp"
#include "resolver/map/tree_index.hpp"
#include "ship/bundle/bundle_writer.hpp"

namespace heddle::test {

inline void write_text(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  const auto file = value_or_throw(open_file(path, O_WRONLY | O_CREAT | O_TRUNC, 0644));
  value_or_throw(write_all(file.get(), text, path));
}

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

inline struct stat status_of(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) throw Error::from_errno(path, "lstat");
  return status;
}

/// What a map says of the directory tree at `path`.
inline TreeIndexWriter::Entry tree_entry(const std::string& path, bool is_root = true) {
  const auto status = status_of(path);
  const auto stamp = file_stamp(status);
  TreeIndexWriter::Entry out;
  if (!is_root) out.name = path.substr(path.rfind('/') + 1);
  out.mode = static_cast<std::uint16_t>(status.st_mode);
  out.uid = status.st_uid;
  out.gid = status.st_gid;
  out.links = static_cast<std::uint32_t>(status.st_nlink);
  out.size = stamp.size;
  out.mtime_ns = stamp.mtime_ns;
  out.ctime_ns = stamp.ctime_ns;
  out.dev = stamp.id.dev;
  out.ino = stamp.id.ino;
  if (S_ISLNK(status.st_mode)) out.target = std::filesystem::read_symlink(path).string();
  if (S_ISDIR(status.st_mode))
    for (const auto& entry : std::filesystem::directory_iterator(path))
      out.children.push_back(tree_entry(entry.path().string(), false));
  return out;
}

/// A map of these files, as objects, and these trees.
inline MapContent map_of(std::vector<std::string> files, const std::vector<std::string>& trees) {
  MapContent map;
  map.host = "node1";
  std::ranges::sort(files);
  MapView view{"main", {}};
  for (const auto& path : files) {
    MapObject object;
    object.path = path;
    const auto status = status_of(path);
    object.stamp = file_stamp(status);
    object.mode = status.st_mode;
    object.hash = hash_bytes(value_or_throw(read_file(path)));
    object.is_elf = path.find(".so") != path.npos;
    view.names.emplace_back(path.substr(path.rfind('/') + 1),
                            static_cast<ObjectId>(map.objects.size()));
    map.objects.push_back(std::move(object));
  }
  std::ranges::sort(view.names);
  map.views.push_back(std::move(view));
  for (const auto& path : trees)
    map.trees.push_back({path, value_or_throw(TreeIndexWriter::encode(tree_entry(path)))});
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
