// SPDX-License-Identifier: MIT
#include "resolver/search/verify.hpp"

#include <cstring>

#include "base/elf_file.hpp"

namespace heddle {

namespace {

constexpr std::uint8_t kAbiVersionEnd = 4;  // LIBC_ABI_MAX: default, UNIQUE, IFUNC, ABSOLUTE

bool is_abi_known(std::uint8_t os_abi, std::uint8_t version) {
  return version == 0 || (os_abi == ELFOSABI_GNU && version < kAbiVersionEnd);
}

Candidate fatal(std::string reason) {
  Candidate out;
  out.verdict = Candidate::Verdict::fatal;
  out.reason = std::move(reason);
  return out;
}

Candidate passed_over(std::uint8_t elf_class, const LoaderProfile& loader) {
  Candidate out;
  // What ld.so says when nothing else turns up; about a foreign machine it just says "no such
  // file".
  if (elf_class != loader.elf_class)
    out.reason =
        std::string("wrong ELF class: ELFCLASS") + (loader.elf_class == ELFCLASS64 ? "32" : "64");
  out.verdict = Candidate::Verdict::passed_over;
  out.error = ENOENT;
  return out;
}

/// For a file whose facts cannot be had: the checks of open_verify on its header, in its order and
/// with its words. `otherwise` is the reason when the header is in order.
Candidate verify_head(World& world, const LoaderProfile& loader, const std::string& path,
                      const Error& otherwise) {
  const auto head = world.head(path);
  if (!head)
    return fatal("cannot read file data: " + std::string(std::strerror(head.error().code())));
  // In this machine's byte order, whatever the file says: so does ld.so.
  const auto header = ElfFile::raw_header(*head, loader.elf_class);
  if (!header) return fatal("file too short");
  const auto byte = [&](std::size_t i) { return header->e_ident[i]; };
  const auto machine = header->e_machine;
  if (std::memcmp(head->data(), ELFMAG, SELFMAG) != 0) return fatal("invalid ELF header");
  if (byte(EI_CLASS) != loader.elf_class) return passed_over(byte(EI_CLASS), loader);
  bool ident_good = byte(EI_DATA) == ELFDATA2LSB && byte(EI_VERSION) == EV_CURRENT &&
                    (byte(EI_OSABI) == ELFOSABI_SYSV || byte(EI_OSABI) == ELFOSABI_GNU) &&
                    is_abi_known(byte(EI_OSABI), byte(EI_ABIVERSION));
  for (std::size_t i = EI_PAD; i < EI_NIDENT; ++i) ident_good = ident_good && byte(i) == 0;
  if (!ident_good) {
    if (machine != loader.machine) return passed_over(loader.elf_class, loader);
    if (byte(EI_DATA) != ELFDATA2LSB) return fatal("ELF file data encoding not little-endian");
    if (byte(EI_VERSION) != EV_CURRENT)
      return fatal("ELF file version ident does not match current one");
    if (byte(EI_OSABI) != ELFOSABI_SYSV && byte(EI_OSABI) != ELFOSABI_GNU)
      return fatal("ELF file OS ABI invalid");
    if (!is_abi_known(byte(EI_OSABI), byte(EI_ABIVERSION)))
      return fatal("ELF file ABI version invalid");
    return fatal("nonzero padding in e_ident");
  }
  if (header->e_version != EV_CURRENT) return fatal("ELF file version does not match current one");
  if (machine != loader.machine) return passed_over(loader.elf_class, loader);
  if (header->e_type != ET_DYN && header->e_type != ET_EXEC)
    return fatal("only ET_DYN and ET_EXEC can be loaded");
  const auto entry_size = loader.elf_class == ELFCLASS64 ? sizeof(Elf64_Phdr) : sizeof(Elf32_Phdr);
  if (header->e_phentsize != entry_size) return fatal("ELF file's phentsize not the expected size");
  return fatal(otherwise.message());
}

}  // namespace

Candidate verify_candidate(World& world, const LoaderProfile& loader, const std::string& path) {
  auto facts = world.facts(path);
  if (!facts) {
    const int code = facts.error().code();
    if (code == ENOEXEC || code == EBADMSG || code == EISDIR)
      return verify_head(world, loader, path, facts.error());
    // A shortage of ours is no answer about the file: searching on would find a wrong one.
    if (code == 0 || code == EMFILE || code == ENFILE || code == ENOMEM || code == EPROTO)
      return fatal(facts.error().message());
    Candidate out;
    out.error = code;
    return out;
  }
  const auto& elf = facts->elf;
  if (elf.elf_class != loader.elf_class) return passed_over(elf.elf_class, loader);
  // ld.so reads the machine of a big-endian file in its own order: only the raw bytes tell.
  const bool in_order = elf.data_encoding == ELFDATA2LSB &&
                        (elf.os_abi == ELFOSABI_SYSV || elf.os_abi == ELFOSABI_GNU) &&
                        is_abi_known(elf.os_abi, elf.abi_version) &&
                        (elf.type == ET_DYN || elf.type == ET_EXEC);
  if (!in_order)
    return verify_head(world, loader, path, Error(path, "not a file that ld.so can load"));
  if (elf.machine != loader.machine) return passed_over(elf.elf_class, loader);
  Candidate out;
  out.verdict = Candidate::Verdict::usable;
  out.file = std::move(*facts);
  return out;
}

std::string refusal_to_map(const ElfFacts& elf) {
  // The order of _dl_map_object_from_fd.
  if (elf.type == ET_EXEC) return "cannot dynamically load executable";
  if (!elf.dynamic) return "object file has no dynamic section";
  if ((elf.flags_1 & DF_1_PIE) != 0)
    return "cannot dynamically load position-independent executable";
  return {};
}

}  // namespace heddle
