// SPDX-License-Identifier: MIT
#include "tests/search/plain_facts.hpp"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <cstring>

#include "base/fd.hpp"
#include "base/mapped_file.hpp"
#include "base/open_regular.hpp"

namespace heddle::test {

namespace {

struct Elf64 {
  using Header = Elf64_Ehdr;
  using Segment = Elf64_Phdr;
  using Tag = Elf64_Dyn;
};
struct Elf32 {
  using Header = Elf32_Ehdr;
  using Segment = Elf32_Phdr;
  using Tag = Elf32_Dyn;
};

template <class T>
bool get(std::string_view bytes, std::uint64_t offset, T& out) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return false;
  std::memcpy(&out, bytes.data() + offset, sizeof(T));
  return true;
}

template <class Elf>
Result<ElfFacts> parse(std::string_view bytes, const std::string& path) {
  const auto damaged = [&](const char* what) { return fail_errno(path, what, EBADMSG); };
  typename Elf::Header header;
  if (!get(bytes, 0, header)) return damaged("ELF header cut off");
  ElfFacts facts;
  facts.elf_class = header.e_ident[EI_CLASS];
  facts.data_encoding = header.e_ident[EI_DATA];
  facts.os_abi = header.e_ident[EI_OSABI];
  facts.abi_version = header.e_ident[EI_ABIVERSION];
  facts.type = header.e_type;
  facts.machine = header.e_machine;
  if (header.e_phnum != 0 && header.e_phentsize != sizeof(typename Elf::Segment))
    return damaged("odd program header size");

  std::vector<typename Elf::Segment> segments(header.e_phnum);
  for (std::size_t i = 0; i < segments.size(); ++i)
    if (!get(bytes, header.e_phoff + i * sizeof segments[0], segments[i]))
      return damaged("program headers cut off");
  const auto to_offset = [&](std::uint64_t address) -> std::uint64_t {
    for (const auto& s : segments)
      if (s.p_type == PT_LOAD && address >= s.p_vaddr && address - s.p_vaddr < s.p_filesz)
        return s.p_offset + (address - s.p_vaddr);
    return ~UINT64_C(0);
  };
  const auto string_at = [&](std::uint64_t offset, std::string& out) {
    if (offset >= bytes.size()) return false;
    const auto rest = bytes.substr(offset);
    const auto end = rest.find('\0');
    if (end == rest.npos) return false;
    out = rest.substr(0, end);
    return true;
  };

  std::vector<typename Elf::Tag> tags;
  for (const auto& s : segments) {
    if (s.p_type == PT_INTERP) {
      std::string text;
      if (!string_at(s.p_offset, text)) return damaged("PT_INTERP outside the file");
      facts.interp = text;
    } else if (s.p_type == PT_TLS) {
      facts.tls = TlsSegment{s.p_memsz, s.p_align};
    } else if (s.p_type == PT_DYNAMIC && s.p_filesz != 0) {
      facts.dynamic = true;
      for (std::size_t i = 0; i < s.p_filesz / sizeof(typename Elf::Tag); ++i) {
        typename Elf::Tag tag;
        if (!get(bytes, s.p_offset + i * sizeof tag, tag)) return damaged("PT_DYNAMIC cut off");
        if (tag.d_tag == DT_NULL) break;
        tags.push_back(tag);
      }
    }
  }
  std::uint64_t strings = ~UINT64_C(0);
  for (const auto& tag : tags)
    if (tag.d_tag == DT_STRTAB) strings = to_offset(tag.d_un.d_ptr);
  for (const auto& tag : tags) {
    const auto value = tag.d_un.d_val;
    std::string text;
    const auto named = [&] { return strings < bytes.size() && string_at(strings + value, text); };
    switch (static_cast<std::int64_t>(tag.d_tag)) {
      case DT_NEEDED:
      case DT_AUXILIARY:
      case DT_FILTER:
        if (!named()) return damaged("string outside the file");
        facts.dependencies.push_back({tag.d_tag == DT_NEEDED      ? Dependency::Kind::needed
                                      : tag.d_tag == DT_AUXILIARY ? Dependency::Kind::auxiliary
                                                                  : Dependency::Kind::filter,
                                      text});
        break;
      case DT_SONAME:
        if (!named()) return damaged("string outside the file");
        facts.soname = text;
        break;
      case DT_RPATH:
        if (!named()) return damaged("string outside the file");
        facts.rpath = text;
        break;
      case DT_RUNPATH:
        if (!named()) return damaged("string outside the file");
        facts.runpath = text;
        break;
      case DT_FLAGS:
        facts.flags = value;
        break;
      case DT_FLAGS_1:
        facts.flags_1 = value;
        break;
      default:
        break;
    }
  }
  return facts;
}

}  // namespace

Result<ElfFacts> parse_elf(std::string_view bytes, const std::string& path) {
  if (bytes.size() < EI_NIDENT || std::memcmp(bytes.data(), ELFMAG, SELFMAG) != 0)
    return fail_errno(path, "not an ELF file", ENOEXEC);
  if (bytes[EI_CLASS] == ELFCLASS64) return parse<Elf64>(bytes, path);
  if (bytes[EI_CLASS] == ELFCLASS32) return parse<Elf32>(bytes, path);
  return fail_errno(path, "odd ELF class", EBADMSG);
}

Result<FileFacts> PlainFacts::facts(const std::string& path, FactsDetail) {
  ++read;
  const auto fd = root ? open_regular_in(root.get(), path) : open_regular(path);
  if (!fd) return fail(fd.error());
  struct stat st {};
  if (::fstat(fd->get(), &st) != 0) return fail_errno(path, "cannot stat");
  auto mapped = MappedFile::map(fd->get(), path);
  if (!mapped) return fail(mapped.error());
  auto elf = parse_elf(mapped->bytes(), path);
  if (!elf) return fail(elf.error());
  FileFacts out;
  out.stamp = file_stamp(st);
  out.mode = st.st_mode;
  out.elf = std::move(*elf);
  return out;
}

}  // namespace heddle::test
