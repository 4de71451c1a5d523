// SPDX-License-Identifier: MIT
#pragma once

// The bundle: a map and the content of its files in one file, which is mounted as it is
// (docs/formats/bundle.md). Any change here requires a new kBundleVersion.
//
//     head    magic, version
//     frames  of the stream: all content, one file after another, cut every kFrameSize bytes
//     index   BundleIndex, which ends with the map's bytes
//     footer  place and SHA-256 of the index; that hash is the bundle's id

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/coder.hpp"
#include "base/content_hash.hpp"

namespace heddle {

/// One piece of the stream, compressed by itself, or stored as it is where that is not smaller.
struct BundleFrame {
  std::uint64_t offset = 0;  ///< in the bundle
  std::uint32_t size = 0;    ///< of the stored bytes; that of the piece: they are not compressed
  ContentHash hash;          ///< of the stored bytes
};

/// Uncompressed bytes of each frame but the last.
inline constexpr std::uint64_t kFrameSize = std::uint64_t{1} << 20;

/// The place of a file that is not in the bundle.
inline constexpr std::uint64_t kAtOrigin = UINT64_MAX;

/// `ID.source` is a symbolic link to another copy of the bundle `ID.bundle` beside it, from which
/// damaged frames are read. fs-ship makes it.
inline constexpr const char* kBundleEnding = ".bundle";
inline constexpr const char* kSourceEnding = ".source";

/// What a bundle says of itself.
struct BundleIndex {
  ContentHash id;
  std::uint64_t stream_size = 0;
  std::vector<BundleFrame> frames;
  std::vector<std::uint64_t> objects;             ///< place in the stream, by ObjectId
  std::vector<std::vector<std::uint64_t>> trees;  ///< likewise, by tree and TreeNodeId

  std::size_t frame_length(std::size_t number) const {
    const std::uint64_t left = stream_size - number * kFrameSize;
    return static_cast<std::size_t>(left < kFrameSize ? left : kFrameSize);
  }
};

template <class Coder, class T>
requires std::same_as<std::remove_const_t<T>, BundleFrame>
void fields(Coder& coder, T& f) { coder(f.offset, f.size, f.hash.bytes); }

template <class Coder, class T>
requires std::same_as<std::remove_const_t<T>, BundleIndex>
void fields(Coder& coder, T& i) { coder(i.stream_size, i.frames, i.objects, i.trees); }

namespace bundle_format {

inline constexpr std::string_view kMagic = "HEDDLBDL";
inline constexpr std::string_view kFooterMagic = "HEDDLEND";
inline constexpr std::uint32_t kBundleVersion = 1;
inline constexpr std::size_t kHeadSize = 16;
inline constexpr std::size_t kFooterSize = 64;
/// A map of the largest size, and the tables of 16 million files and 4 TiB.
inline constexpr std::uint64_t kMaxIndex = std::uint64_t{640} << 20;
inline constexpr std::uint64_t kMaxStream = std::uint64_t{1} << 42;

inline std::string head() {
  Encoder coder;
  coder(kBundleVersion, std::uint32_t{0});
  return std::string(kMagic) + coder.take();
}

struct Footer {
  std::uint64_t reserved = 0;
  std::uint64_t offset = 0;  ///< of the index
  std::uint64_t size = 0;
  ContentHash id;
};
template <class Coder, class T>
requires std::same_as<std::remove_const_t<T>, Footer>
void fields(Coder& coder, T& f) { coder(f.reserved, f.offset, f.size, f.id.bytes); }

}  // namespace bundle_format

}  // namespace heddle
