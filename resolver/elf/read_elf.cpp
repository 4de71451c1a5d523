// SPDX-License-Identifier: MIT
#include "resolver/elf/read_elf.hpp"

#include "resolver/elf/file_bytes.hpp"
#include "resolver/elf/lief_reader.hpp"
#include "resolver/elf/reduced_image.hpp"

namespace heddle {
namespace {

Result<ElfFacts> read_reduced(const ReducedElf& reduced, FactsDetail detail) {
  auto facts = read_with_lief(reduced.images.front(), ImageKind::reduced, detail);
  if (!facts) return facts;
  for (std::size_t i = 1; i < reduced.images.size(); ++i) {
    auto more = read_with_lief(reduced.images[i], ImageKind::reduced, detail);
    if (!more) return more;
    for (auto& dependency : more->dependencies)
      facts->dependencies.push_back(std::move(dependency));
  }
  if (facts->dependencies.size() != reduced.dependencies)
    return fail(Error::with_code(EBADMSG, "", "damaged ELF file", "LIEF lost some of it"));
  return facts;
}

Result<ElfFacts> read_whole(const FileBytes& file, FactsDetail detail) {
  std::vector<std::uint8_t> image;
  if (!file.append(image, 0, file.size()))
    return fail(Error::with_code(EBADMSG, "", "cut short while it is read"));
  return read_with_lief(image, ImageKind::whole_file, detail);
}

}  // namespace

Result<ReadElf> read_elf(int fd, std::uint64_t size, FactsDetail detail, ParseMode mode) try {
  FileBytes file(fd, size);
  const auto hash = file.hash();
  if (!hash) return fail(hash.error());
  // What reduce_elf() finds damaged is damaged; LIEF would only crash on it, or guess.
  const auto reduced = reduce_elf(file, detail);
  if (!reduced) return fail(reduced.error());
  auto facts =
      mode == ParseMode::full_only ? read_whole(file, detail) : read_reduced(*reduced, detail);
  if (!facts && mode == ParseMode::automatic) facts = read_whole(file, detail);
  if (!facts) return fail(std::move(facts.error()));
  return ReadElf{*hash, std::move(*facts)};
} catch (const std::bad_alloc&) {
  return fail(
      Error::with_code(EBADMSG, "", "damaged ELF file", "it takes more memory than allowed"));
}

}  // namespace heddle
