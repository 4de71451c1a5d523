// SPDX-License-Identifier: MIT
#include "ship/bundle/bundle_file.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/try.hpp"

namespace heddle {
namespace {

using bundle_format::Footer;
using bundle_format::kFooterSize;
using bundle_format::kHeadSize;

tl::unexpected<Error> damaged(const std::string& path, std::string_view why) {
  return fail(Error::with_code(EBADMSG, path, "damaged bundle", why,
                               "copy it again, or make it again with fs-resolve pack"));
}

/// The frames fill the file from the head to the index: no byte of it is unaccounted for.
bool frames_fill(const BundleIndex& index, std::uint64_t end) {
  if (index.stream_size > bundle_format::kMaxStream) return false;
  if (index.frames.size() != (index.stream_size + kFrameSize - 1) / kFrameSize) return false;
  std::uint64_t offset = kHeadSize;
  for (std::size_t i = 0; i < index.frames.size(); ++i) {
    const BundleFrame& frame = index.frames[i];
    if (frame.offset != offset || frame.size == 0 || frame.size > index.frame_length(i))
      return false;
    offset += frame.size;
  }
  return offset == end;
}

bool are_places(const std::vector<std::uint64_t>& places, std::uint64_t stream_size) {
  return std::ranges::all_of(
      places, [&](std::uint64_t place) { return place == kAtOrigin || place <= stream_size; });
}

}  // namespace

bool is_bundle(int file) {
  char magic[8];
  return ::pread(file, magic, sizeof(magic), 0) == sizeof(magic) &&
         std::string_view(magic, sizeof(magic)) == bundle_format::kMagic;
}

Result<std::string> read_piece(int file, const std::string& path, std::uint64_t offset,
                               std::size_t size) {
  std::string out(size, '\0');
  for (std::size_t done = 0; done < size;) {
    const ssize_t n =
        ::pread(file, out.data() + done, size - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno(path, "cannot read");
    if (n == 0) return damaged(path, "it has been cut");
    done += static_cast<std::size_t>(n);
  }
  return out;
}

Result<Footer> read_bundle_footer(int file, const std::string& path) {
  struct stat status {};
  if (::fstat(file, &status) != 0) return fail_errno(path, "cannot stat");
  if (!S_ISREG(status.st_mode) || !is_bundle(file))
    return fail(Error::with_code(ENOEXEC, path, "not a heddle bundle", "",
                                 "fs-resolve pack MAP -o BUNDLE makes one"));
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size < kHeadSize + kFooterSize) return damaged(path, "its end is missing");
  const auto head = TRY(read_piece(file, path, 0, kHeadSize));
  if (head != bundle_format::head()) {
    std::uint32_t version = 0;
    Decoder(std::string_view(head).substr(bundle_format::kMagic.size()))(version);
    if (version == bundle_format::kBundleVersion) return damaged(path, "its head makes no sense");
    return fail(Error::with_code(ENOTSUP, path,
                                 "bundle format version " + std::to_string(version) +
                                     ", this program reads " +
                                     std::to_string(bundle_format::kBundleVersion),
                                 {}, "make it again with fs-resolve pack"));
  }
  const auto bytes = TRY(read_piece(file, path, size - kFooterSize, kFooterSize));
  Footer footer;
  Decoder coder(std::string_view(bytes).substr(bundle_format::kFooterMagic.size()));
  coder(footer);
  if (!bytes.starts_with(bundle_format::kFooterMagic) || !coder.complete())
    return damaged(path, "its end is missing");
  const std::uint64_t end = size - kFooterSize;
  if (footer.reserved != 0 || footer.offset < kHeadSize || footer.offset > end ||
      footer.size != end - footer.offset)
    return damaged(path, "its length is wrong");
  if (footer.size > bundle_format::kMaxIndex) return fail_errno(path, "cannot read", EFBIG);
  return footer;
}

Result<BundleFile> BundleFile::read(int file, const std::string& path,
                                    const ContentHash* expected) {
  const Footer footer = TRY(read_bundle_footer(file, path));
  if (expected && footer.id != *expected)
    return fail(Error::with_code(EBADMSG, path, "not the requested bundle",
                                 "its id is " + footer.id.hex() + ", not " + expected->hex()));
  auto bytes = TRY(read_piece(file, path, footer.offset, static_cast<std::size_t>(footer.size)));
  if (hash_bytes(bytes) != footer.id) return damaged(path, "its index has another hash");
  BundleFile out;
  out.index.id = footer.id;
  Decoder coder(bytes);
  coder(out.index, out.map);
  if (!coder.complete()) return damaged(path, "its index makes no sense");
  if (!frames_fill(out.index, footer.offset)) return damaged(path, "its frames make no sense");
  if (!are_places(out.index.objects, out.index.stream_size) ||
      !std::ranges::all_of(out.index.trees, [&](const auto& places) {
        return are_places(places, out.index.stream_size);
      }))
    return damaged(path, "a file's place makes no sense");
  return out;
}

}  // namespace heddle
