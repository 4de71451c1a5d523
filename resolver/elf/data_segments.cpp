// SPDX-License-Identifier: MIT
#include "resolver/elf/data_segments.hpp"

#include <elf.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "base/fd.hpp"

namespace heddle {
namespace {

/// More than any linker makes; what a damaged number can cost.
constexpr std::size_t kMostHeaders = 256;

/// Fewer bytes than `size` at the end of the file.
Result<std::size_t> read_at(int fd, const std::string& name, std::uint64_t offset, char* to,
                            std::size_t size) {
  std::size_t have = 0;
  while (have < size) {
    const ssize_t n = ::pread(fd, to + have, size - have, static_cast<off_t>(offset + have));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno(name, "cannot read");
    if (n == 0) break;
    have += static_cast<std::size_t>(n);
  }
  return have;
}

bool is_of_this_machine(const Elf64_Ehdr& header) {
  return std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 &&
         header.e_ident[EI_CLASS] == ELFCLASS64 &&
         header.e_ident[EI_DATA] ==
             (std::endian::native == std::endian::little ? ELFDATA2LSB : ELFDATA2MSB) &&
         header.e_phentsize == sizeof(Elf64_Phdr) && header.e_phnum <= kMostHeaders;
}

/// Linkers that do not keep code apart (`-z noseparate-code`, gold) put the file's headers and its
/// constants into the executable segment: that one is read.
bool is_pure_code(const Elf64_Phdr& segment) {
  return (segment.p_flags & PF_X) != 0 && segment.p_offset != 0;
}

}  // namespace

Result<std::string> read_data_segments(int fd, const std::string& name, std::size_t limit) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return fail_errno(name, "cannot stat");
  const auto end_of_file = static_cast<std::uint64_t>(std::max<off_t>(0, status.st_size));
  Elf64_Ehdr header{};
  auto got = read_at(fd, name, 0, reinterpret_cast<char*>(&header), sizeof(header));
  if (!got) return fail(std::move(got.error()));
  if (*got != sizeof(header) || !is_of_this_machine(header) || header.e_phoff > end_of_file)
    return read_all(fd, name, limit);
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  const auto size = segments.size() * sizeof(Elf64_Phdr);
  got = read_at(fd, name, header.e_phoff, reinterpret_cast<char*>(segments.data()), size);
  if (!got) return fail(std::move(got.error()));
  if (*got != size) return read_all(fd, name, limit);

  std::string out;
  for (const auto& segment : segments) {
    if (segment.p_type != PT_LOAD || is_pure_code(segment) || segment.p_offset >= end_of_file)
      continue;
    const auto wanted = std::min<std::uint64_t>(segment.p_filesz, end_of_file - segment.p_offset);
    if (wanted > limit - out.size()) return fail_errno(name, "cannot read", EFBIG);
    const auto at = out.size();
    out.resize(at + wanted);
    got = read_at(fd, name, segment.p_offset, out.data() + at, wanted);
    if (!got) return fail(std::move(got.error()));
    out.resize(at + *got);
  }
  return out;
}

}  // namespace heddle
