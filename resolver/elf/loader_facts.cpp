// SPDX-License-Identifier: MIT
#include "resolver/elf/loader_facts.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

#include "base/try.hpp"

namespace heddle {
namespace {

/// Of a version table, whose chains may overlap or loop.
constexpr std::uint64_t kMostLinks = 1'000'000;

std::optional<Dependency::Kind> dependency_kind(std::int64_t tag) {
  if (tag == DT_NEEDED) return Dependency::Kind::needed;
  if (tag == DT_AUXILIARY) return Dependency::Kind::auxiliary;
  if (tag == DT_FILTER) return Dependency::Kind::filter;
  return std::nullopt;
}

class Reader {
 public:
  explicit Reader(const ElfFile& elf) : elf_(elf) {}

  Result<ElfFacts> run(SymbolTable* symbols) {
    read_header();
    facts_.interp = TRY(elf_.interpreter());
    if (!facts_.interp) TRY(check_library_header());
    entries_ = TRY(elf_.dynamic_entries());
    TRY(read_strings());
    TRY(read_dynamic());
    if (const auto at = value_of(DT_VERNEED)) TRY(read_version_needs(*at));
    if (const auto at = value_of(DT_VERDEF)) TRY(read_version_definitions(*at));
    TRY(read_symbols(symbols));
    read_build_id();
    if (symbols != nullptr) {
      symbols->names = std::move(strings_);
      symbols->version_names = std::move(version_names_);
    }
    return std::move(facts_);
  }

 private:
  void read_header() {
    const auto& header = elf_.header;
    facts_.elf_class = header.e_ident[EI_CLASS];
    facts_.data_encoding = header.e_ident[EI_DATA];
    facts_.os_abi = header.e_ident[EI_OSABI];
    facts_.abi_version = header.e_ident[EI_ABIVERSION];
    facts_.type = header.e_type;
    facts_.machine = header.e_machine;
    facts_.dynamic = elf_.filled_segment(PT_DYNAMIC) != nullptr;
    if (const auto* tls = elf_.segment(PT_TLS)) facts_.tls = TlsSegment{tls->p_memsz, tls->p_align};
  }

  /// ld.so dies of such a library (dl-load.c, open_verify); the kernel starts such a program.
  Result<void> check_library_header() const {
    const auto* ident = elf_.header.e_ident;
    if (ident[EI_VERSION] != EV_CURRENT || elf_.header.e_version != EV_CURRENT)
      return damaged_elf("its ELF version is unknown");
    if (std::any_of(ident + EI_PAD, ident + EI_NIDENT, [](unsigned char c) { return c != 0; }))
      return damaged_elf("there is something in the padding of its ELF header");
    return {};
  }

  /// Of several entries with one tag the last counts (elf/get-dynamic-info.h).
  std::optional<std::uint64_t> value_of(std::int64_t tag) const {
    const auto found = std::find_if(entries_.rbegin(), entries_.rend(),
                                    [tag](const Elf64_Dyn& entry) { return entry.d_tag == tag; });
    return found == entries_.rend() ? std::nullopt : std::optional(found->d_un.d_val);
  }

  Result<void> read_strings() {
    const auto address = value_of(DT_STRTAB);
    if (!address) return {};
    const auto where = elf_.place(*address);
    if (!where) return damaged_elf("its string table is in no segment");
    const auto size = value_of(DT_STRSZ).value_or(where->left);
    if (size > where->left) return damaged_elf("its string table ends beyond its segment");
    auto text = elf_.file().text(where->offset, size);
    if (!text) return damaged_elf("its string table lies beyond its end");
    strings_ = std::move(*text);
    strings_end_ = where->offset + size;
    return {};
  }

  Result<std::string> string_at(std::uint64_t offset) const {
    if (offset >= strings_.size()) return damaged_elf("a name lies beyond its string table");
    return std::string(strings_.c_str() + offset);
  }

  Result<void> read_dynamic() {
    for (const auto& entry : entries_) {
      const auto kind = dependency_kind(entry.d_tag);
      if (!kind) continue;
      auto name = TRY(string_at(entry.d_un.d_val));
      facts_.dependencies.push_back({*kind, std::move(name)});
    }
    if (const auto value = value_of(DT_SONAME)) facts_.soname = TRY(string_at(*value));
    if (const auto value = value_of(DT_RPATH)) facts_.rpath = TRY(string_at(*value));
    if (const auto value = value_of(DT_RUNPATH)) facts_.runpath = TRY(string_at(*value));
    facts_.flags = value_of(DT_FLAGS).value_or(0);
    facts_.flags_1 = value_of(DT_FLAGS_1).value_or(0);
    return {};
  }

  // A version table is a chain of heads, each with a chain of tails; the structures are the same in
  // both classes.

  /// The structure at `at` of the version table in `table`.
  template <class Entry>
  Result<Entry> entry_at(const ElfFile::Place& table, std::uint64_t at) {
    Entry entry;
    if (++links_ > kMostLinks) return damaged_elf("a version table does not end");
    if (at > table.left || sizeof(entry) > table.left - at ||
        !elf_.file().read(table.offset + at, &entry, sizeof(entry)))
      return damaged_elf("a version table leaves its segment");
    return entry;
  }
  Result<ElfFile::Place> version_table(std::uint64_t address) const {
    const auto table = elf_.place(address);
    if (!table) return damaged_elf("a version table is in no segment");
    return *table;
  }

  Result<void> read_version_needs(std::uint64_t address) {
    const auto table = TRY(version_table(address));
    for (std::uint64_t at = 0;;) {
      const auto need = TRY(entry_at<Elf64_Verneed>(table, at));
      if (elf_.number(need.vn_version) != VER_NEED_CURRENT)
        return damaged_elf("a version table has an entry of an unknown kind");
      const auto file = TRY(string_at(elf_.number(need.vn_file)));
      auto tail_at = at + elf_.number(need.vn_aux);
      for (unsigned left = elf_.number(need.vn_cnt); left > 0; --left) {
        const auto tail = TRY(entry_at<Elf64_Vernaux>(table, tail_at));
        auto name = TRY(string_at(elf_.number(tail.vna_name)));
        version_names_.emplace(elf_.number(tail.vna_other) & 0x7FFFU, name);
        facts_.version_needs.push_back(
            {file, std::move(name), (elf_.number(tail.vna_flags) & VER_FLG_WEAK) != 0});
        if (tail.vna_next == 0) break;
        tail_at += elf_.number(tail.vna_next);
      }
      if (need.vn_next == 0) return {};
      at += elf_.number(need.vn_next);
    }
  }

  Result<void> read_version_definitions(std::uint64_t address) {
    const auto table = TRY(version_table(address));
    for (std::uint64_t at = 0;;) {
      const auto definition = TRY(entry_at<Elf64_Verdef>(table, at));
      if (elf_.number(definition.vd_version) != VER_DEF_CURRENT)
        return damaged_elf("a version table has an entry of an unknown kind");
      if (definition.vd_cnt != 0) {  // the tails behind the first are the versions it inherits
        const auto tail = TRY(entry_at<Elf64_Verdaux>(table, at + elf_.number(definition.vd_aux)));
        const auto name = TRY(string_at(elf_.number(tail.vda_name)));
        version_names_.emplace(elf_.number(definition.vd_ndx) & 0x7FFFU, name);
        if ((elf_.number(definition.vd_flags) & VER_FLG_BASE) == 0)
          facts_.version_definitions.push_back(name);
      }
      if (definition.vd_next == 0) return {};
      at += elf_.number(definition.vd_next);
    }
  }

  /// How many symbols DT_GNU_HASH knows of; nullopt when it does not tell: it lists the defined
  /// ones only.
  std::optional<std::uint64_t> count_by_gnu_hash(std::uint64_t address) const {
    const auto where = elf_.place(address);
    if (!where) return std::nullopt;
    const auto buckets = elf_.word(where->offset);
    const auto base = elf_.word(where->offset + 4);
    const auto bloom_words = elf_.word(where->offset + 8);
    if (!buckets || !base || !bloom_words) return std::nullopt;
    const auto at = where->offset + 16 + std::uint64_t{*bloom_words} * (elf_.is_64() ? 8 : 4);
    std::vector<std::uint32_t> first(std::min<std::uint64_t>(*buckets, elf_.file().size() / 4));
    if (!elf_.file().read(at, first.data(), first.size() * 4)) return std::nullopt;
    std::uint32_t last = 0;
    for (const auto bucket : first) last = std::max(last, elf_.number(bucket));
    if (last == 0 || last < *base) return std::nullopt;
    const auto chains = at + first.size() * 4;
    // The last bucket's chain ends at an odd word; a chain of a million is none.
    for (std::uint64_t i = last; i - last < 1'000'000; ++i) {
      const auto chain = elf_.word(chains + (i - *base) * 4);
      if (!chain) return std::nullopt;
      if (*chain & 1) return i + 1;
    }
    return std::nullopt;
  }

  /// Exact by DT_HASH; DT_GNU_HASH tells when any symbol is defined; else a section header does;
  /// else the table ends where the next one starts. Never more than the segment has room for.
  std::uint64_t count_symbols(std::uint64_t address, const ElfFile::Place& table) const {
    const std::uint64_t size = elf_.is_64() ? sizeof(Elf64_Sym) : sizeof(Elf32_Sym);
    const auto most = table.left / size;
    if (const auto hash = value_of(DT_HASH))
      if (const auto where = elf_.place(*hash))
        if (const auto chains = elf_.word(where->offset + 4))
          return std::min<std::uint64_t>(*chains, most);
    if (const auto hash = value_of(DT_GNU_HASH))
      if (const auto count = count_by_gnu_hash(*hash)) return std::min(*count, most);
    for (const auto& section : elf_.sections())
      if (section.sh_type == SHT_DYNSYM && section.sh_addr == address)
        return std::min<std::uint64_t>(section.sh_size / size, most);
    auto count = most;
    for (const auto tag : {DT_STRTAB, DT_HASH, DT_GNU_HASH, DT_VERSYM, DT_VERNEED, DT_VERDEF})
      if (const auto other = value_of(tag); other && *other > address)
        count = std::min(count, (*other - address) / size);
    return count;
  }

  Result<void> read_symbols(SymbolTable* out) {
    const auto address = value_of(DT_SYMTAB);
    if (!address) return {};
    const std::uint64_t size = elf_.is_64() ? sizeof(Elf64_Sym) : sizeof(Elf32_Sym);
    if (value_of(DT_SYMENT).value_or(size) != size)
      return damaged_elf("its symbols have an unexpected size");
    const auto where = elf_.place(*address);
    if (!where) return damaged_elf("its symbol table is in no segment");
    const auto count = count_symbols(*address, *where);
    const auto table = elf_.table<Elf64_Sym>(where->offset, count);
    if (!table) return damaged_elf("its symbol table lies beyond its end");
    for (const auto& symbol : *table) {
      if (symbol.st_name == 0) continue;
      if (symbol.st_name >= strings_.size())
        return damaged_elf("a symbol's name lies beyond its string table");
      // The first letter spares thousands of comparisons.
      if (symbol.st_shndx != SHN_UNDEF || strings_[symbol.st_name] != 'd' ||
          ELF64_ST_BIND(symbol.st_info) == STB_LOCAL)
        continue;
      const std::string_view name = strings_.c_str() + symbol.st_name;
      facts_.imports_dladdr |= name == "dladdr" || name == "dladdr1";
      facts_.imports_dlopen |= name == "dlopen" || name == "dlmopen";
    }
    if (out == nullptr) return {};
    out->count = count;
    out->address = *address;
    out->strings = value_of(DT_STRTAB).value_or(0);
    out->end = std::max(strings_end_, where->offset + count * size);
    if (facts_.interp) read_copies(*out);
    const auto versions_at = value_of(DT_VERSYM);
    if (!versions_at) return {};
    const auto versions = elf_.place(*versions_at);
    out->versions.resize(count);
    if (!versions || count * 2 > versions->left ||
        !elf_.file().read(versions->offset, out->versions.data(), count * 2))
      return damaged_elf("its symbols' versions leave their segment");
    for (auto& version : out->versions) version = elf_.number(version) & 0x7FFFU;
    return {};
  }

  /// None where the relocations are not in the file: those of debug information.
  void read_copies(SymbolTable& out) const {
    const unsigned kind = facts_.machine == EM_X86_64    ? R_X86_64_COPY
                          : facts_.machine == EM_AARCH64 ? R_AARCH64_COPY
                                                         : 0;
    const auto address = value_of(DT_RELA);
    const auto size = value_of(DT_RELASZ).value_or(0);
    const auto where = address && kind != 0 && elf_.is_64() ? elf_.place(*address) : std::nullopt;
    if (!where || size > where->left) return;
    std::vector<Elf64_Rela> all(size / sizeof(Elf64_Rela));
    if (!elf_.file().read(where->offset, all.data(), all.size() * sizeof(Elf64_Rela))) return;
    for (const auto& one : all) {
      const auto info = elf_.number(one.r_info);
      if (ELF64_R_TYPE(info) == kind) out.copied.insert(ELF64_R_SYM(info));
    }
  }

  void read_build_id() {
    elf_.visit_notes([this](std::uint32_t type, std::string_view owner, std::string_view id) {
      if (type != NT_GNU_BUILD_ID || owner != "GNU" || id.empty() || id.size() > 64) return false;
      for (const unsigned char byte : id) {
        constexpr const char* digits = "0123456789abcdef";
        facts_.build_id += digits[byte >> 4];
        facts_.build_id += digits[byte & 15];
      }
      return true;
    });
  }

  const ElfFile& elf_;
  ElfFacts facts_;
  std::vector<Elf64_Dyn> entries_;
  std::string strings_;  ///< DT_STRTAB
  std::uint64_t strings_end_ = 0;
  std::map<unsigned, std::string> version_names_;
  std::uint64_t links_ = 0;
};

}  // namespace

Result<ElfFacts> read_loader_facts(const ElfFile& elf, SymbolTable* symbols) {
  return Reader(elf).run(symbols);
}

}  // namespace heddle
