// SPDX-License-Identifier: MIT
#include "base/elf_file.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "base/try.hpp"

namespace heddle {
namespace {

/// Longer tables are damaged. In bytes.
constexpr std::uint64_t kLongestTable = std::uint64_t{1} << 30;
constexpr std::uint64_t kLongestNotes = 65536;

// Each copies the needed fields, whose names are the same in both classes.
template <class From, class Number>
void copy_record(const From& from, Elf64_Ehdr& to, const Number& number) {
  std::memcpy(to.e_ident, from.e_ident, EI_NIDENT);
  to.e_type = number(from.e_type);
  to.e_machine = number(from.e_machine);
  to.e_version = number(from.e_version);
  to.e_phoff = number(from.e_phoff);
  to.e_shoff = number(from.e_shoff);
  to.e_phentsize = number(from.e_phentsize);
  to.e_phnum = number(from.e_phnum);
  to.e_shentsize = number(from.e_shentsize);
  to.e_shnum = number(from.e_shnum);
}
template <class From, class Number>
void copy_record(const From& from, Elf64_Phdr& to, const Number& number) {
  to.p_type = number(from.p_type);
  to.p_flags = number(from.p_flags);
  to.p_offset = number(from.p_offset);
  to.p_vaddr = number(from.p_vaddr);
  to.p_filesz = number(from.p_filesz);
  to.p_memsz = number(from.p_memsz);
  to.p_align = number(from.p_align);
}
template <class From, class Number>
void copy_record(const From& from, Elf64_Shdr& to, const Number& number) {
  to.sh_type = number(from.sh_type);
  to.sh_addr = number(from.sh_addr);
  to.sh_offset = number(from.sh_offset);
  to.sh_size = number(from.sh_size);
  to.sh_addralign = number(from.sh_addralign);
}
template <class From, class Number>
void copy_record(const From& from, Elf64_Dyn& to, const Number& number) {
  to.d_tag = number(from.d_tag);
  if constexpr (sizeof(from.d_tag) == 4) to.d_tag &= 0xFFFF'FFFF;  // it is signed
  to.d_un.d_val = number(from.d_un.d_val);
}
template <class From, class Number>
void copy_record(const From& from, Elf64_Sym& to, const Number& number) {
  to.st_name = number(from.st_name);
  to.st_info = from.st_info;
  to.st_other = from.st_other;
  to.st_shndx = number(from.st_shndx);
}

template <class Wide, class A, class B, class Else>
using If = std::conditional_t<std::is_same_v<Wide, A>, B, Else>;
/// The 32-bit structure of the same name.
template <class Wide>
using Narrow = If<Wide, Elf64_Ehdr, Elf32_Ehdr,
                  If<Wide, Elf64_Phdr, Elf32_Phdr,
                     If<Wide, Elf64_Shdr, Elf32_Shdr, If<Wide, Elf64_Dyn, Elf32_Dyn, Elf32_Sym>>>>;

template <class Wide>
std::size_t record_size(bool is_64) {
  return is_64 ? sizeof(Wide) : sizeof(Narrow<Wide>);
}

template <class Wide, class Number>
Wide read_record(const char* raw, bool is_64, const Number& number) {
  Wide out{};
  const auto read_as = [&](auto from) {
    std::memcpy(&from, raw, sizeof(from));
    copy_record(from, out, number);
  };
  if (is_64)
    read_as(Wide{});
  else
    read_as(Narrow<Wide>{});
  return out;
}

std::uint64_t round_up(std::uint64_t value, std::uint64_t to) { return (value + to - 1) / to * to; }

}  // namespace

bool FileBytes::read(std::uint64_t offset, void* to, std::uint64_t count) const {
  if (offset > size_ || count > size_ - offset) return false;
  if (fd_ < 0) {
    if (count > 0) std::memcpy(to, content_.data() + offset, count);
    return true;
  }
  auto* bytes = static_cast<char*>(to);
  while (count > 0) {
    const ssize_t n = ::pread(fd_, bytes, count, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes += n;
    offset += static_cast<std::uint64_t>(n);
    count -= static_cast<std::uint64_t>(n);
  }
  return true;
}

std::optional<std::string> FileBytes::text(std::uint64_t offset, std::uint64_t count) const {
  if (offset > size_ || count > size_ - offset) return std::nullopt;
  std::string out(count, '\0');
  if (!read(offset, out.data(), count)) return std::nullopt;
  return out;
}

FileBytes file_bytes(int fd) {
  struct stat st {};
  if (::fstat(fd, &st) != 0 || st.st_size < 0) return FileBytes({});
  return {fd, static_cast<std::uint64_t>(st.st_size)};
}

tl::unexpected<Error> damaged_elf(std::string_view reason) {
  return fail(Error::with_code(EBADMSG, "", "damaged ELF file", reason));
}

Result<ElfFile> ElfFile::read(const FileBytes& file) {
  ElfFile elf(file);
  char raw[sizeof(Elf64_Ehdr)] = {};
  if (!file.read(0, raw, EI_NIDENT) || std::memcmp(raw, ELFMAG, SELFMAG) != 0)
    return fail(Error::with_code(ENOEXEC, "", "not an ELF file"));
  const auto order = static_cast<std::uint8_t>(raw[EI_DATA]);
  if (order != ELFDATA2LSB && order != ELFDATA2MSB) return damaged_elf("its byte order is unknown");
  elf.swapped_ = (order == ELFDATA2MSB) == (std::endian::native == std::endian::little);
  if (raw[EI_CLASS] != ELFCLASS64 && raw[EI_CLASS] != ELFCLASS32)
    return damaged_elf("its class is neither 32 nor 64 bit");
  const bool is_64 = raw[EI_CLASS] == ELFCLASS64;
  if (!file.read(0, raw, record_size<Elf64_Ehdr>(is_64)))
    return damaged_elf("it ends within the ELF header");
  elf.header = read_record<Elf64_Ehdr>(raw, is_64, [&](auto value) { return elf.number(value); });
  TRY(elf.read_program_headers());
  return elf;
}

Result<void> ElfFile::read_program_headers() {
  // Object and core files have no PT_DYNAMIC, and their tables may be huge.
  if ((header.e_type != ET_DYN && header.e_type != ET_EXEC) || header.e_phnum == 0) return {};
  if (header.e_phentsize != record_size<Elf64_Phdr>(is_64()))
    return damaged_elf("its program headers have an unexpected size");
  if (header.e_phnum == PN_XNUM) return damaged_elf("it has too many program headers");
  auto read = table<Elf64_Phdr>(header.e_phoff, header.e_phnum);
  if (!read) return damaged_elf("its program headers lie beyond its end");
  segments = std::move(*read);
  return {};
}

std::optional<Elf64_Ehdr> ElfFile::raw_header(std::string_view head, std::uint8_t elf_class) {
  const bool is_64 = elf_class == ELFCLASS64;
  if (head.size() < record_size<Elf64_Ehdr>(is_64)) return std::nullopt;
  return read_record<Elf64_Ehdr>(head.data(), is_64, [](auto value) { return value; });
}

const Elf64_Phdr* ElfFile::segment(std::uint32_t type) const {
  const auto found = std::find_if(segments.begin(), segments.end(),
                                  [type](const Elf64_Phdr& s) { return s.p_type == type; });
  return found == segments.end() ? nullptr : &*found;
}

const Elf64_Phdr* ElfFile::filled_segment(std::uint32_t type) const {
  const auto* found = segment(type);
  return found != nullptr && found->p_filesz > 0 ? found : nullptr;
}

std::optional<ElfFile::Place> ElfFile::place(std::uint64_t address) const {
  for (const auto& s : segments) {
    if (s.p_type != PT_LOAD || address < s.p_vaddr || address - s.p_vaddr >= s.p_filesz) continue;
    const auto skip = address - s.p_vaddr;
    if (s.p_offset > file_->size() || skip >= file_->size() - s.p_offset) return std::nullopt;
    const auto offset = s.p_offset + skip;
    return Place{offset, std::min(s.p_filesz - skip, file_->size() - offset)};
  }
  return std::nullopt;
}

Result<std::optional<std::string>> ElfFile::interpreter() const {
  const auto* s = filled_segment(PT_INTERP);
  if (s == nullptr) return std::optional<std::string>();
  if (s->p_filesz < 2 || s->p_filesz > 4096)
    return damaged_elf("its interpreter's name has an impossible length");
  const auto name = file_->text(s->p_offset, s->p_filesz);
  if (!name) return damaged_elf("its interpreter's name lies beyond its end");
  if (name->back() != '\0') return damaged_elf("its interpreter's name is not terminated");
  return std::optional<std::string>(name->c_str());
}

Result<std::vector<Elf64_Dyn>> ElfFile::dynamic_entries() const {
  const auto* s = filled_segment(PT_DYNAMIC);
  if (s == nullptr) return std::vector<Elf64_Dyn>();
  // ld.so reads it at its mapped address; the two agree in any file of a linker.
  const auto mapped = place(s->p_vaddr);
  const auto size = std::min({s->p_filesz, file_->size(), kLongestTable});
  const auto count = size / record_size<Elf64_Dyn>(is_64());
  if (count == 0) return damaged_elf("its dynamic section is empty");
  auto entries = table<Elf64_Dyn>(mapped ? mapped->offset : s->p_offset, count);
  if (!entries) return damaged_elf("its dynamic section lies beyond its end");
  entries->erase(std::find_if(entries->begin(), entries->end(),
                              [](const Elf64_Dyn& entry) { return entry.d_tag == DT_NULL; }),
                 entries->end());
  return std::move(*entries);
}

std::vector<Elf64_Shdr> ElfFile::sections() const {
  if (header.e_shentsize != record_size<Elf64_Shdr>(is_64())) return {};
  return table<Elf64_Shdr>(header.e_shoff, header.e_shnum).value_or(std::vector<Elf64_Shdr>());
}

bool ElfFile::visit_notes_at(std::uint64_t offset, std::uint64_t size, std::uint64_t align,
                             const NoteVisitor& visit) const {
  const auto notes = file_->text(offset, std::min(size, kLongestNotes));
  if (!notes) return false;
  const std::string_view bytes = *notes;
  align = align == 8 ? 8 : 4;
  Elf64_Nhdr note;  // the same in both classes
  for (std::uint64_t at = 0; at + sizeof(note) <= bytes.size();) {
    std::memcpy(&note, bytes.data() + at, sizeof(note));
    const std::uint64_t owner_size = number(note.n_namesz);
    const std::uint64_t text_size = number(note.n_descsz);
    const auto text = at + round_up(sizeof(note) + owner_size, align);
    if (text + text_size > bytes.size()) return false;
    auto owner = bytes.substr(at + sizeof(note), owner_size);
    if (owner.ends_with('\0')) owner.remove_suffix(1);
    if (visit(number(note.n_type), owner, bytes.substr(text, text_size))) return true;
    at = round_up(text + text_size, align);
  }
  return false;
}

void ElfFile::visit_notes(const NoteVisitor& visit) const {
  for (const auto& s : segments)
    if (s.p_type == PT_NOTE && visit_notes_at(s.p_offset, s.p_filesz, s.p_align, visit)) return;
  if (segments.empty()) return;
  for (const auto& s : sections())
    if (s.sh_type == SHT_NOTE && visit_notes_at(s.sh_offset, s.sh_size, s.sh_addralign, visit))
      return;
}

template <class Wide>
std::optional<std::vector<Wide>> ElfFile::table(std::uint64_t offset, std::uint64_t count) const {
  const auto size = record_size<Wide>(is_64());
  if (count > kLongestTable / size || offset > file_->size() ||
      count * size > file_->size() - offset)
    return std::nullopt;
  std::vector<Wide> out(count);
  if (is_64() && !swapped_) {
    if (!file_->read(offset, out.data(), count * size)) return std::nullopt;
    return out;
  }
  const auto raw = file_->text(offset, count * size);
  if (!raw) return std::nullopt;
  for (std::size_t i = 0; i < count; ++i)
    out[i] = read_record<Wide>(raw->data() + i * size, is_64(),
                               [this](auto value) { return this->number(value); });
  return out;
}
template std::optional<std::vector<Elf64_Sym>> ElfFile::table(std::uint64_t, std::uint64_t) const;

std::optional<std::uint32_t> ElfFile::word(std::uint64_t offset) const {
  std::uint32_t value;
  if (!file_->read(offset, &value, sizeof(value))) return std::nullopt;
  return number(value);
}

}  // namespace heddle
