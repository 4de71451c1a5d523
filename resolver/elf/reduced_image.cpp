// SPDX-License-Identifier: MIT
#include "resolver/elf/reduced_image.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <optional>
#include <span>

#include "resolver/elf/build_id_note.hpp"
#include "resolver/elf/elf_source.hpp"
#include "resolver/elf/image_writer.hpp"
#include "resolver/elf/symbol_count.hpp"
#include "resolver/elf/version_chains.hpp"

namespace heddle {
namespace {

/// LIEF 0.9 reads 1000 dynamic entries (Parser::NB_MAX_DYNAMIC_ENTRIES) and drops the rest.
constexpr std::size_t kDependenciesPerImage = 900;

template <class Elf>
class Reducer {
 public:
  Reducer(const FileBytes& file, FactsDetail detail, bool swapped)
      : elf_(file, swapped), detail_(detail), number_{swapped} {}

  Result<ReducedElf> run() {
    if (auto done = elf_.read_headers(); !done) return fail(std::move(done.error()));
    using Step = Result<void> (Reducer::*)();
    for (const Step step : {&Reducer::read_interp, &Reducer::read_dynamic, &Reducer::read_strings,
                            &Reducer::read_versions, &Reducer::read_symbols})
      if (auto done = (this->*step)(); !done) return fail(std::move(done.error()));
    build_id_ = find_build_id(elf_);

    ReducedElf reduced;
    reduced.dependencies = dependencies_.size();
    const std::span<const Dyn> all(dependencies_);
    std::size_t done = 0;
    do {
      const auto count = std::min(kDependenciesPerImage, all.size() - done);
      reduced.images.push_back(write_image(all.subspan(done, count), done == 0));
      done += count;
    } while (done < all.size());
    return reduced;
  }

 private:
  using Dyn = typename Elf::Dyn;
  using Sym = typename Elf::Sym;

  Result<void> read_interp() {
    const auto* s = elf_.filled_segment(PT_INTERP);
    if (s == nullptr) return check_library_header();
    const std::uint64_t size = number_(s->p_filesz);
    if (size < 2 || size > 4096) return damaged("its interpreter's name has an impossible length");
    if (!elf_.file.append(interp_, number_(s->p_offset), size))
      return damaged("its interpreter's name lies beyond its end");
    // As the kernel checks it (fs/binfmt_elf.c, load_elf_binary).
    if (interp_.back() != 0) return damaged("its interpreter's name does not end");
    return {};
  }

  /// ld.so dies of such a library (dl-load.c, open_verify); the kernel starts such a program.
  Result<void> check_library_header() {
    const auto& header = elf_.header;
    const auto* padding = header.e_ident + EI_PAD;
    if (header.e_ident[EI_VERSION] != EV_CURRENT || number_(header.e_version) != EV_CURRENT)
      return damaged("its ELF version is unknown");
    if (std::any_of(padding, header.e_ident + EI_NIDENT, [](unsigned char c) { return c != 0; }))
      return damaged("there is something in the padding of its ELF header");
    return {};
  }

  Result<void> read_dynamic() {
    const auto* s = elf_.filled_segment(PT_DYNAMIC);
    if (s == nullptr) return {};
    // ld.so reads it where it is mapped; the two agree in any file that a linker made.
    const auto mapped = elf_.place(number_(s->p_vaddr));
    const std::uint64_t offset = mapped ? mapped->offset : number_(s->p_offset);
    const std::uint64_t size = std::min<std::uint64_t>(number_(s->p_filesz), elf_.file.size());
    std::vector<Dyn> entries(std::min(size, kMaxTable) / sizeof(Dyn));
    if (entries.empty()) return damaged("its dynamic section is empty");
    if (!elf_.file.read(offset, entries.data(), entries.size() * sizeof(Dyn)))
      return damaged("its dynamic section lies beyond its end");
    for (const auto& entry : entries) {
      if (tag_of(entry) == DT_NULL) break;
      sort_in(entry);
    }
    return {};
  }

  std::uint64_t tag_of(const Dyn& entry) const {
    return static_cast<std::uint64_t>(number_(entry.d_tag)) & Elf::tag_mask;
  }

  void sort_in(const Dyn& entry) {
    const std::uint64_t value = number_(entry.d_un.d_val);
    switch (tag_of(entry)) {
      case DT_NEEDED:
      case DT_AUXILIARY:
      case DT_FILTER:
        return dependencies_.push_back(entry);
      case DT_SONAME:
      case DT_RPATH:
      case DT_RUNPATH:
      case DT_FLAGS:
      case DT_FLAGS_1:
        others_[tag_of(entry)] = entry;  // of several the last counts (elf/get-dynamic-info.h)
        return;
      case DT_STRSZ:
        strsz_ = value;
        return;
      case DT_SYMENT:
        syment_ = value;
        return;
      default:
        break;
    }
    for (const auto& [tag, field] : {std::pair{DT_STRTAB, &TableAddresses::strtab},
                                     {DT_SYMTAB, &TableAddresses::symtab},
                                     {DT_HASH, &TableAddresses::hash},
                                     {DT_GNU_HASH, &TableAddresses::gnu_hash},
                                     {DT_VERSYM, &TableAddresses::versym},
                                     {DT_VERNEED, &TableAddresses::verneed},
                                     {DT_VERDEF, &TableAddresses::verdef}})
      if (tag_of(entry) == static_cast<std::uint64_t>(tag)) at_.*field = value;
  }

  bool is_string(std::uint64_t offset) const { return offset + 1 < strings_.size(); }

  Result<void> read_strings() {
    std::vector<std::uint64_t> wanted;
    for (const auto& entry : dependencies_) wanted.push_back(number_(entry.d_un.d_val));
    for (const auto& [tag, entry] : others_)
      if (tag != DT_FLAGS && tag != DT_FLAGS_1) wanted.push_back(number_(entry.d_un.d_val));
    if (!at_.strtab) {
      if (wanted.empty() && !at_.symtab && !at_.verneed && !at_.verdef) return {};
      return damaged("it has no string table");
    }
    const auto where = elf_.place(*at_.strtab);
    if (!where) return damaged("its string table is in no segment");
    if (strsz_ && *strsz_ > where->left) return damaged("its string table ends beyond its segment");
    if (!elf_.file.append(strings_, where->offset,
                          std::min(strsz_.value_or(where->left), kMaxTable)))
      return damaged("its string table lies beyond its end");
    strings_.push_back(0);
    for (const auto offset : wanted)
      if (!is_string(offset)) return damaged("a name lies beyond its string table");
    return {};
  }

  Result<void> read_versions() {
    const auto names = [this](std::uint64_t offset) { return is_string(offset); };
    if (at_.verneed) {
      auto table =
          read_version_table(elf_, *at_.verneed, NeedChain<decltype(names)>{number_, names});
      if (!table) return fail(std::move(table.error()));
      needs_ = std::move(*table);
    }
    if (at_.verdef) {
      auto table =
          read_version_table(elf_, *at_.verdef, DefinitionChain<decltype(names)>{number_, names});
      if (!table) return fail(std::move(table.error()));
      definitions_ = std::move(*table);
    }
    return {};
  }

  Result<void> read_symbols() {
    if (!at_.symtab) return {};
    if (syment_ && *syment_ != sizeof(Sym)) return damaged("its symbols have an unexpected size");
    const auto where = elf_.place(*at_.symtab);
    if (!where) return damaged("its symbol table is in no segment");
    std::vector<Sym> table(count_symbols(elf_, at_, *where));
    if (table.empty()) return {};
    if (!elf_.file.read(where->offset, table.data(), table.size() * sizeof(Sym)))
      return damaged("its symbol table lies beyond its end");
    for (auto& symbol : table) {
      const std::uint64_t name = number_(symbol.st_name);
      if (name != 0 && !is_string(name))
        return damaged("a symbol's name lies beyond its string table");
      // LIEF ends its walk at a symbol whose name is there but empty.
      if (name != 0 && strings_[name] == 0) symbol.st_name = 0;
    }
    if (detail_ == FactsDetail::loader) {
      const auto useless = [this](const Sym& s) { return !matters_to_loader(s); };
      table.erase(std::remove_if(table.begin() + 1, table.end(), useless), table.end());
    } else if (at_.versym) {
      const auto versions = elf_.place(*at_.versym);
      if (!versions || table.size() * 2 > versions->left ||
          !elf_.file.append(symbol_versions_, versions->offset, table.size() * 2))
        return damaged("its symbols' versions leave their segment");
    }
    if (table.size() > 1) symbols_ = std::move(table);  // more than the null symbol
    return {};
  }

  bool matters_to_loader(const Sym& symbol) const {
    if (number_(symbol.st_shndx) != SHN_UNDEF) return false;
    const auto* name = reinterpret_cast<const char*>(strings_.data() + number_(symbol.st_name));
    // A look at the first letter spares thousands of comparisons.
    return name[0] == 'd' &&
           (std::strcmp(name, "dladdr") == 0 || std::strcmp(name, "dladdr1") == 0 ||
            std::strcmp(name, "dlopen") == 0 || std::strcmp(name, "dlmopen") == 0);
  }

  /// LIEF's count of symbols (Parser.tcc, nb_dynsym_gnu_hash): one bucket that starts, and ends, at
  /// the last symbol.
  std::vector<std::uint32_t> gnu_hash() const {
    const auto last = static_cast<std::uint32_t>(symbols_.size() - 1);
    std::vector<std::uint32_t> words = {1, last, 1, 0};
    words.resize(4 + sizeof(typename Elf::bloom_word) / 4);
    words.insert(words.end(), {last, 1});
    for (auto& word : words) word = number_(word);
    return words;
  }

  std::vector<std::uint8_t> write_image(std::span<const Dyn> dependencies, bool first) {
    ImageWriter<Elf> out(number_, 4);
    if (!interp_.empty())
      out.add_header(PT_INTERP, out.put(interp_), interp_.size(), interp_.size(), 1);
    if (!build_id_.empty())
      out.add_header(PT_NOTE, out.put(build_id_), build_id_.size(), build_id_.size(), 4);
    if (const auto* tls = elf_.segment(PT_TLS))
      out.add_header(PT_TLS, 0, 0, number_(tls->p_memsz), number_(tls->p_align));
    if (elf_.filled_segment(PT_DYNAMIC) != nullptr) {
      out.add_tags(dependencies);
      if (at_.strtab) {
        out.add_tag(DT_STRTAB, out.put(strings_));
        out.add_tag(DT_STRSZ, strings_.size());
      }
      if (first) write_once(out);
      out.put_dynamic();
    }
    return out.finish(elf_.header, !elf_.segments.empty());
  }

  void write_once(ImageWriter<Elf>& out) const {
    for (const auto& [tag, entry] : others_) out.add_tag(tag, number_(entry.d_un.d_val));
    if (!symbols_.empty()) {
      out.add_tag(DT_SYMTAB, out.put(symbols_.data(), symbols_.size() * sizeof(Sym)));
      out.add_tag(DT_SYMENT, sizeof(Sym));
      const auto hash = gnu_hash();
      out.add_tag(DT_GNU_HASH, out.put(hash.data(), hash.size() * 4));
      if (!symbol_versions_.empty()) out.add_tag(DT_VERSYM, out.put(symbol_versions_));
    }
    if (needs_.entries > 0) {
      out.add_tag(DT_VERNEED, out.put(needs_.bytes));
      out.add_tag(DT_VERNEEDNUM, needs_.entries);
    }
    if (definitions_.entries > 0) {
      out.add_tag(DT_VERDEF, out.put(definitions_.bytes));
      out.add_tag(DT_VERDEFNUM, definitions_.entries);
    }
  }

  ElfSource<Elf> elf_;
  FactsDetail detail_;
  ElfNumber number_;
  TableAddresses at_;
  std::optional<std::uint64_t> strsz_, syment_;
  std::vector<Dyn> dependencies_;        ///< DT_NEEDED, DT_AUXILIARY, DT_FILTER
  std::map<std::uint64_t, Dyn> others_;  ///< further entries that stay as they are, by tag
  std::vector<std::uint8_t> interp_, strings_, symbol_versions_, build_id_;
  std::vector<Sym> symbols_;
  VersionTable needs_, definitions_;
};

}  // namespace

Result<ReducedElf> reduce_elf(const FileBytes& file, FactsDetail detail) {
  std::array<unsigned char, EI_NIDENT> ident{};
  if (!file.read(0, ident.data(), ident.size()) || std::memcmp(ident.data(), ELFMAG, SELFMAG) != 0)
    return fail(Error::with_code(ENOEXEC, "", "not an ELF file"));
  if (ident[EI_DATA] != ELFDATA2LSB && ident[EI_DATA] != ELFDATA2MSB)
    return damaged("its byte order is unknown");
  const bool swapped =
      (ident[EI_DATA] == ELFDATA2MSB) == (std::endian::native == std::endian::little);
  if (ident[EI_CLASS] == ELFCLASS64) return Reducer<Elf64Layout>(file, detail, swapped).run();
  if (ident[EI_CLASS] == ELFCLASS32) return Reducer<Elf32Layout>(file, detail, swapped).run();
  return damaged("its class is neither 32 nor 64 bit");
}

}  // namespace heddle
