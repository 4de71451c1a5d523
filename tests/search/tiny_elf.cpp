// SPDX-License-Identifier: MIT
#include "tests/search/tiny_elf.hpp"

#include <array>
#include <cstring>

#include "tests/support/build_elf.hpp"

namespace heddle::test {

namespace {

struct Elf64 {
  using Header = Elf64_Ehdr;
  using Segment = Elf64_Phdr;
  using Tag = Elf64_Dyn;
  using Symbol = Elf64_Sym;
};
struct Elf32 {
  using Header = Elf32_Ehdr;
  using Segment = Elf32_Phdr;
  using Tag = Elf32_Dyn;
  using Symbol = Elf32_Sym;
};

template <class T>
void put(std::string& out, std::size_t at, const T& value) {
  if (out.size() < at + sizeof value) out.resize(at + sizeof value);
  std::memcpy(out.data() + at, &value, sizeof value);
}

template <class Elf>
std::string make(const TinyElf& in) {
  using Segment = typename Elf::Segment;
  using Tag = typename Elf::Tag;
  std::string strings(1, '\0');
  const auto string = [&](const std::string& text) {
    const auto at = strings.size();
    strings += text + '\0';
    return at;
  };
  std::vector<std::pair<std::int64_t, std::uint64_t>> tags;
  for (const auto& d : in.dependencies)
    tags.emplace_back(d.kind == Dependency::Kind::needed      ? DT_NEEDED
                      : d.kind == Dependency::Kind::auxiliary ? DT_AUXILIARY
                                                              : DT_FILTER,
                      string(d.name));
  if (in.soname) tags.emplace_back(DT_SONAME, string(*in.soname));
  if (in.rpath) tags.emplace_back(DT_RPATH, string(*in.rpath));
  if (in.runpath) tags.emplace_back(DT_RUNPATH, string(*in.runpath));
  if (in.flags_1 != 0) tags.emplace_back(DT_FLAGS_1, in.flags_1);

  const std::size_t segment_count = 2 + (in.interp ? 2 : 0) + (in.dynamic ? 1 : 0);
  const auto dynamic_at =
      (sizeof(typename Elf::Header) + segment_count * sizeof(Segment) + 15) & ~15UL;
  const auto tag_count = tags.size() + 6;  // STRTAB, SYMTAB, HASH, STRSZ, SYMENT, NULL
  const auto hash_at = dynamic_at + tag_count * sizeof(Tag);
  const auto symbols_at = (hash_at + 5 * sizeof(std::uint32_t) + 7) & ~7UL;
  const auto code_at = symbols_at + sizeof(typename Elf::Symbol);
  // mov edi, 0; mov eax, 60 (exit); syscall
  static constexpr char code[] = "\xbf\0\0\0\0\xb8\x3c\0\0\0\x0f\x05";
  const auto interp_at = code_at + sizeof code;
  const auto interp_size = in.interp ? in.interp->size() + 1 : 0;
  const auto strings_at = interp_at + interp_size;
  const auto size = strings_at + strings.size();
  const std::uint64_t base = in.type == ET_EXEC ? 0x400000 : 0;

  std::string out;
  typename Elf::Header header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = in.elf_class;
  header.e_ident[EI_DATA] = in.data_encoding;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_ident[EI_OSABI] = in.os_abi;
  header.e_ident[EI_ABIVERSION] = in.abi_version;
  header.e_type = in.type;
  header.e_machine = in.machine;
  header.e_version = EV_CURRENT;
  header.e_entry = static_cast<decltype(header.e_entry)>(base + code_at);
  header.e_phoff = sizeof header;
  header.e_ehsize = sizeof header;
  header.e_phentsize = sizeof(Segment);
  header.e_phnum = static_cast<std::uint16_t>(segment_count);
  put(out, 0, header);

  auto at = sizeof header;
  const auto segment = [&](std::uint32_t type, std::uint64_t offset, std::uint64_t length,
                           std::uint32_t flags, std::uint64_t align) {
    using Word = decltype(Segment::p_offset);
    Segment s{};
    s.p_type = type;
    s.p_flags = flags;
    s.p_offset = static_cast<Word>(offset);
    s.p_vaddr = s.p_paddr = static_cast<Word>(base + offset);
    s.p_filesz = s.p_memsz = static_cast<Word>(length);
    s.p_align = static_cast<Word>(align);
    put(out, at, s);
    at += sizeof s;
  };
  // Without PT_PHDR ld.so assumes address 0 for a program (elf/rtld.c, rtld_setup_main_map).
  if (in.interp) segment(PT_PHDR, sizeof header, segment_count * sizeof(Segment), PF_R, 8);
  if (in.interp) segment(PT_INTERP, interp_at, interp_size, PF_R, 1);
  segment(PT_LOAD, 0, size, PF_R | PF_W | PF_X, 0x1000);
  if (in.dynamic) segment(PT_DYNAMIC, dynamic_at, tag_count * sizeof(Tag), PF_R | PF_W, 8);
  segment(PT_GNU_STACK, 0, 0, PF_R | PF_W, 16);

  tags.emplace_back(DT_STRTAB, base + strings_at);
  tags.emplace_back(DT_SYMTAB, base + symbols_at);
  tags.emplace_back(DT_HASH, base + hash_at);
  tags.emplace_back(DT_STRSZ, strings.size());
  tags.emplace_back(DT_SYMENT, sizeof(typename Elf::Symbol));
  tags.emplace_back(DT_NULL, 0);
  at = dynamic_at;
  for (const auto& [tag, value] : tags) {
    Tag entry{};
    entry.d_tag = static_cast<decltype(entry.d_tag)>(tag);
    entry.d_un.d_val = static_cast<decltype(entry.d_un.d_val)>(value);
    put(out, at, entry);
    at += sizeof entry;
  }
  put(out, hash_at, std::array<std::uint32_t, 4>{1, 1, 0, 0});  // one empty bucket, one symbol
  put(out, symbols_at, typename Elf::Symbol{});
  out.resize(size);
  std::memcpy(out.data() + code_at, code, sizeof code);
  if (in.interp) std::memcpy(out.data() + interp_at, in.interp->c_str(), interp_size);
  std::memcpy(out.data() + strings_at, strings.data(), strings.size());
  return out;
}

}  // namespace

std::string TinyElf::bytes() const {
  return elf_class == ELFCLASS32 ? make<Elf32>(*this) : make<Elf64>(*this);
}

void write_elf(const std::string& path, const TinyElf& elf) {
  write_text_file(path, elf.bytes(), 0755);
}

}  // namespace heddle::test
