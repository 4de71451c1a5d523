// SPDX-License-Identifier: MIT
//
// A bundle at two depths, selected by the first byte: any file; any index behind a valid head,
// with a frame, a footer and the right hashes. What is accepted is read, as a mount does.
#include <sys/mman.h>

#include "base/temp_dir.hpp"
#include "resolver/map/map_format.hpp"
#include "resolver/map/map_reader.hpp"
#include "ship/bundle/bundle_file.hpp"
#include "ship/bundle/frame.hpp"
#include "tests/fuzz/target.hpp"
#include "tests/map/sample_map.hpp"

namespace heddle::fuzz {
namespace {

constexpr std::string_view kPiece = "heddle heddle heddle heddle";

std::string around(const std::string& index) {
  Encoder coder;
  coder(bundle_format::Footer{0, bundle_format::kHeadSize + kPiece.size(), index.size(),
                              hash_bytes(index)});
  return bundle_format::head().append(kPiece).append(index).append(bundle_format::kFooterMagic) +
         coder.take();
}

/// The index of a bundle of three objects, whose content is one frame.
std::string sample_index() {
  static const std::string map = [] {
    const TempDir dir = value_or_throw(TempDir::create("heddle-fuzz"));
    auto content = sample_map(3);
    for (auto& object : content.objects) object.stamp.size = 9;
    value_or_throw(write_map(content, dir.path() + "/map"));
    return value_or_throw(read_file(dir.path() + "/map"));
  }();
  BundleIndex index;
  index.stream_size = kPiece.size();
  index.frames = {
      {bundle_format::kHeadSize, static_cast<std::uint32_t>(kPiece.size()), hash_bytes(kPiece)}};
  index.objects = {0, 9, kAtOrigin};
  Encoder coder;
  coder(index, map);
  return coder.take();
}

void read(std::string_view bytes) {
  const BytesFile file(bytes);
  const auto reader = MapReader::open(file.fd(), "bundle");
  if (!reader || !reader->bundle()) return;
  const BundleIndex& index = *reader->bundle();
  // A frame is at most kFrameSize; many of them are only slow.
  for (std::size_t i = 0; i < std::min<std::size_t>(index.frames.size(), 4); ++i)
    if (const auto piece = read_frame(file.fd(), "bundle", index, i))
      check(piece->size() == index.frame_length(i), "a frame has another length");
  const auto content = reader->read_all();
  if (!content) return;
  for (std::size_t id = 0; id < content->objects.size(); ++id)
    check(index.objects[id] == kAtOrigin ||
              content->objects[id].stamp.size <= index.stream_size - index.objects[id],
          "a file that is not within the stream was accepted");
}

}  // namespace

void run(std::string_view bytes) {
  Input input(bytes);
  const bool any = input.number<std::uint8_t>() % 2 == 0;
  const std::string rest(input.rest());
  read(any ? rest : around(rest));
}

std::vector<std::string> seeds() { return {'\0' + around(sample_index()), '\1' + sample_index()}; }

}  // namespace heddle::fuzz
