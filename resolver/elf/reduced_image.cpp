// SPDX-License-Identifier: MIT
#include "resolver/elf/reduced_image.hpp"

#include <elf.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

#include "resolver/elf/elf_layout.hpp"

namespace heddle {
namespace {

constexpr std::uint64_t kMaxTable = std::uint64_t{1} << 30;
/// LIEF 0.9 reads 1000 dynamic entries (Parser::NB_MAX_DYNAMIC_ENTRIES) and drops the rest.
constexpr std::size_t kDependenciesPerImage = 900;

tl::unexpected<Error> damaged(std::string_view reason) {
  return fail(Error::with_code(EBADMSG, "", "damaged ELF file", reason));
}

struct Part {
  std::vector<std::uint8_t> bytes;
  std::uint64_t at = 0;  ///< offset and address in the image
};

template <class Elf>
class Reducer {
 public:
  Reducer(const FileBytes& file, FactsDetail detail, bool swapped)
      : file_(file), detail_(detail), number_{swapped} {}

  Result<ReducedElf> run() {
    using Step = Result<void> (Reducer::*)();
    for (const Step step : {&Reducer::read_headers, &Reducer::read_interp, &Reducer::read_dynamic,
                            &Reducer::read_strings, &Reducer::read_needs,
                            &Reducer::read_definitions, &Reducer::read_symbols})
      if (auto done = (this->*step)(); !done) return fail(std::move(done.error()));
    read_build_id();

    ReducedElf reduced;
    reduced.dependencies = dependencies_.size();
    reduced.symbols = symbols_.bytes.size() / sizeof(Sym);
    const std::span<const Dyn> all(dependencies_);
    std::size_t done = 0;
    do {
      const auto count = std::min(kDependenciesPerImage, all.size() - done);
      reduced.images.push_back(assemble(all.subspan(done, count), done == 0));
      done += count;
    } while (done < all.size());
    return reduced;
  }

 private:
  using Ehdr = typename Elf::Ehdr;
  using Phdr = typename Elf::Phdr;
  using Dyn = typename Elf::Dyn;
  using Sym = typename Elf::Sym;

  Result<void> read_headers() {
    if (!file_.read(0, &header_, sizeof(header_))) return damaged("it ends within the ELF header");
    const auto type = number_(header_.e_type);
    // Object files and cores have no PT_DYNAMIC; their tables may be huge, and are of no use here.
    if ((type != ET_DYN && type != ET_EXEC) || number_(header_.e_phnum) == 0) return {};
    if (number_(header_.e_phentsize) != sizeof(Phdr))
      return damaged("its program headers have an unexpected size");
    if (number_(header_.e_phnum) == PN_XNUM) return damaged("it has too many program headers");
    segments_.resize(number_(header_.e_phnum));
    if (!file_.read(number_(header_.e_phoff), segments_.data(), segments_.size() * sizeof(Phdr)))
      return damaged("its program headers lie beyond its end");
    return {};
  }

  const Phdr* segment(std::uint32_t type) const {
    for (const auto& s : segments_)
      if (number_(s.p_type) == type) return &s;
    return nullptr;
  }

  /// Where the bytes at `address` stand in the file, and how many follow in the same segment.
  struct Place {
    std::uint64_t offset = 0;
    std::uint64_t left = 0;
  };
  std::optional<Place> place(std::uint64_t address) const {
    for (const auto& s : segments_) {
      const std::uint64_t start = number_(s.p_vaddr);
      const std::uint64_t size = number_(s.p_filesz);
      const std::uint64_t offset = number_(s.p_offset);
      if (number_(s.p_type) != PT_LOAD || address < start || address - start >= size) continue;
      const auto skip = address - start;
      if (offset > file_.size() || skip >= file_.size() - offset) return std::nullopt;
      return Place{offset + skip, std::min(size - skip, file_.size() - offset - skip)};
    }
    return std::nullopt;
  }

  Result<void> read_interp() {
    const auto* s = segment(PT_INTERP);
    if (s == nullptr) return {};
    const std::uint64_t size = number_(s->p_filesz);
    if (size < 2 || size > 4096) return damaged("its interpreter's name has an impossible length");
    if (!file_.append(interp_.bytes, number_(s->p_offset), size))
      return damaged("its interpreter's name lies beyond its end");
    // As the kernel checks it (fs/binfmt_elf.c, load_elf_binary).
    if (interp_.bytes.back() != 0) return damaged("its interpreter's name does not end");
    return {};
  }

  Result<void> read_dynamic() {
    const auto* s = segment(PT_DYNAMIC);
    if (s == nullptr) return {};
    // ld.so reads it where it is mapped; the two agree in any file that a linker made.
    const auto mapped = place(number_(s->p_vaddr));
    const std::uint64_t offset = mapped ? mapped->offset : number_(s->p_offset);
    const std::uint64_t size = std::min<std::uint64_t>(number_(s->p_filesz), kMaxTable);
    std::vector<Dyn> entries(std::min(size, file_.size()) / sizeof(Dyn));
    if (entries.empty()) return damaged("its dynamic section is empty");
    if (!file_.read(offset, entries.data(), entries.size() * sizeof(Dyn)))
      return damaged("its dynamic section lies beyond its end");
    for (const auto& entry : entries) {
      const auto tag = static_cast<std::uint64_t>(number_(entry.d_tag)) & Elf::tag_mask;
      const std::uint64_t value = number_(entry.d_un.d_val);
      if (tag == DT_NULL) break;
      switch (tag) {
        case DT_NEEDED:
        case DT_AUXILIARY:
        case DT_FILTER:
          dependencies_.push_back(entry);
          break;
        case DT_SONAME:
        case DT_RPATH:
        case DT_RUNPATH:
        case DT_FLAGS:
        case DT_FLAGS_1:
          kept_.push_back(entry);
          break;
        case DT_STRTAB:
          strtab_ = value;
          break;
        case DT_STRSZ:
          strsz_ = value;
          break;
        case DT_SYMTAB:
          symtab_ = value;
          break;
        case DT_SYMENT:
          syment_ = value;
          break;
        case DT_HASH:
          hash_ = value;
          break;
        case DT_GNU_HASH:
          gnu_hash_ = value;
          break;
        case DT_VERSYM:
          versym_ = value;
          break;
        case DT_VERNEED:
          verneed_ = value;
          break;
        case DT_VERDEF:
          verdef_ = value;
          break;
        default:
          break;
      }
    }
    return {};
  }

  Result<void> read_strings() {
    if (!strtab_) {
      const bool wanted =
          !dependencies_.empty() || std::any_of(kept_.begin(), kept_.end(),
                                                [this](const Dyn& e) { return names_a_string(e); });
      if (wanted || symtab_ || verneed_ || verdef_) return damaged("it has no string table");
      return {};
    }
    const auto where = place(*strtab_);
    if (!where) return damaged("its string table is in no segment");
    if (strsz_ && *strsz_ > where->left) return damaged("its string table ends beyond its segment");
    const auto size = std::min(strsz_.value_or(where->left), kMaxTable);
    if (!file_.append(strings_.bytes, where->offset, size))
      return damaged("its string table lies beyond its end");
    strings_.bytes.push_back(0);
    for (const auto* entries : {&dependencies_, &kept_})
      for (const auto& entry : *entries)
        if (names_a_string(entry) && !is_string(number_(entry.d_un.d_val)))
          return damaged("a name lies beyond its string table");
    return {};
  }

  bool names_a_string(const Dyn& entry) const {
    const auto tag = static_cast<std::uint64_t>(number_(entry.d_tag)) & Elf::tag_mask;
    return tag != DT_FLAGS && tag != DT_FLAGS_1;
  }
  bool is_string(std::uint64_t offset) const { return offset + 1 < strings_.bytes.size(); }

  /// One version table: a chain of Head, each with a chain of Tail. Every link goes forward, so a
  /// walk ends; the total is bounded because chains of different heads may overlap.
  template <class Head, class Tail, class Links>
  Result<void> read_chains(std::optional<std::uint64_t> address, Part& part, std::uint32_t& heads,
                           const Links& links) {
    if (!address) return {};
    const auto where = place(*address);
    if (!where) return damaged("a version table is in no segment");
    std::uint64_t at = 0;
    std::uint64_t end = 0;
    std::uint64_t total = 0;
    for (;;) {
      Head head;
      if (at + sizeof(head) > where->left || !file_.read(where->offset + at, &head, sizeof(head)))
        return damaged("a version table leaves its segment");
      const auto link = links.head(head);
      if (!link.good) return damaged("a version table has an entry of an unknown kind");
      end = std::max(end, at + sizeof(head));
      std::uint64_t tail_at = at + link.first_tail;
      for (std::uint32_t i = 0; i < link.tails; ++i) {
        Tail tail;
        if (tail_at + sizeof(tail) > where->left ||
            !file_.read(where->offset + tail_at, &tail, sizeof(tail)))
          return damaged("a version table leaves its segment");
        const auto next = links.tail(tail);
        if (!next.good) return damaged("a version's name lies beyond its string table");
        if (++total > 1'000'000) return damaged("a version table does not end");
        end = std::max(end, tail_at + sizeof(tail));
        if (next.next == 0) break;
        tail_at += next.next;
      }
      ++heads;
      if (link.next == 0) break;
      if (++total > 1'000'000) return damaged("a version table does not end");
      at += link.next;
    }
    if (end > kMaxTable || !file_.append(part.bytes, where->offset, end))
      return damaged("a version table lies beyond its end");
    return {};
  }

  struct HeadLink {
    bool good;
    std::uint64_t first_tail;
    std::uint32_t tails;
    std::uint64_t next;
  };
  struct TailLink {
    bool good;
    std::uint64_t next;
  };

  struct NeedLinks {
    const Reducer& r;
    HeadLink head(const Elf64_Verneed& n) const {
      return {r.number_(n.vn_version) == VER_NEED_CURRENT && r.is_string(r.number_(n.vn_file)),
              r.number_(n.vn_aux), r.number_(n.vn_cnt), r.number_(n.vn_next)};
    }
    TailLink tail(const Elf64_Vernaux& a) const {
      return {r.is_string(r.number_(a.vna_name)), r.number_(a.vna_next)};
    }
  };
  struct DefinitionLinks {
    const Reducer& r;
    HeadLink head(const Elf64_Verdef& d) const {
      return {r.number_(d.vd_version) == VER_DEF_CURRENT, r.number_(d.vd_aux), r.number_(d.vd_cnt),
              r.number_(d.vd_next)};
    }
    TailLink tail(const Elf64_Verdaux& a) const {
      return {r.is_string(r.number_(a.vda_name)), r.number_(a.vda_next)};
    }
  };

  // These tables are the same in both classes.
  Result<void> read_needs() {
    return read_chains<Elf64_Verneed, Elf64_Vernaux>(verneed_, needs_, need_count_,
                                                     NeedLinks{*this});
  }
  Result<void> read_definitions() {
    return read_chains<Elf64_Verdef, Elf64_Verdaux>(verdef_, definitions_, definition_count_,
                                                    DefinitionLinks{*this});
  }

  std::optional<std::uint32_t> word(std::uint64_t offset) const {
    std::uint32_t value;
    if (!file_.read(offset, &value, sizeof(value))) return std::nullopt;
    return number_(value);
  }

  /// nullopt: the table says nothing of it, as when it has no defined symbol.
  std::optional<std::uint64_t> count_by_gnu_hash() const {
    const auto where = gnu_hash_ ? place(*gnu_hash_) : std::nullopt;
    if (!where) return std::nullopt;
    const auto buckets = word(where->offset);
    const auto words = word(where->offset + 8);
    if (!buckets || !words) return std::nullopt;
    const std::uint64_t at =
        where->offset + 16 + std::uint64_t{*words} * sizeof(typename Elf::word);
    std::vector<std::uint32_t> first(std::min<std::uint64_t>(*buckets, file_.size() / 4));
    if (!file_.read(at, first.data(), first.size() * 4)) return std::nullopt;
    std::uint32_t last = 0;
    for (const auto bucket : first) last = std::max(last, number_(bucket));
    const auto base = word(where->offset + 4);
    if (last == 0 || !base || last < *base) return std::nullopt;
    const std::uint64_t chains = at + first.size() * 4;
    // The last bucket's chain ends at an odd word; a chain of a million is none.
    for (std::uint64_t i = last; i - last < 1'000'000; ++i) {
      const auto chain = word(chains + (i - *base) * 4);
      if (!chain) return std::nullopt;
      if (*chain & 1) return i + 1;
    }
    return std::nullopt;
  }

  std::optional<std::uint64_t> count_by_sections() const {
    using Shdr = typename Elf::Shdr;
    if (number_(header_.e_shentsize) != sizeof(Shdr)) return std::nullopt;
    std::vector<Shdr> sections(number_(header_.e_shnum));
    if (!file_.read(number_(header_.e_shoff), sections.data(), sections.size() * sizeof(Shdr)))
      return std::nullopt;
    for (const auto& section : sections)
      if (number_(section.sh_type) == SHT_DYNSYM && number_(section.sh_addr) == *symtab_)
        return number_(section.sh_size) / sizeof(Sym);
    return std::nullopt;
  }

  /// PT_DYNAMIC does not say how long DT_SYMTAB is. Exact by DT_HASH; DT_GNU_HASH knows it when any
  /// symbol is defined; else a section header; and else no table stands before the next one starts.
  std::uint64_t count_symbols(const Place& table) const {
    const auto most = std::min(table.left, kMaxTable) / sizeof(Sym);
    if (hash_)
      if (const auto where = place(*hash_))
        if (const auto chains = word(where->offset + 4))
          return std::min<std::uint64_t>(*chains, most);
    if (const auto n = count_by_gnu_hash()) return std::min(*n, most);
    if (const auto n = count_by_sections()) return std::min(*n, most);
    auto count = most;
    for (const auto& other : {strtab_, hash_, gnu_hash_, versym_, verneed_, verdef_})
      if (other && *other > *symtab_) count = std::min(count, (*other - *symtab_) / sizeof(Sym));
    return count;
  }

  Result<void> read_symbols() {
    if (!symtab_) return {};
    if (syment_ && *syment_ != sizeof(Sym)) return damaged("its symbols have an unexpected size");
    const auto where = place(*symtab_);
    if (!where) return damaged("its symbol table is in no segment");
    std::vector<Sym> table(count_symbols(*where));
    if (table.empty()) return {};
    if (!file_.read(where->offset, table.data(), table.size() * sizeof(Sym)))
      return damaged("its symbol table lies beyond its end");
    for (auto& symbol : table) {
      const std::uint64_t name = number_(symbol.st_name);
      if (name != 0 && !is_string(name))
        return damaged("a symbol's name lies beyond its string table");
      // LIEF ends its walk at a symbol whose name is there but empty.
      if (name != 0 && strings_.bytes[name] == 0) symbol.st_name = 0;
    }
    if (detail_ == FactsDetail::loader) {
      table.erase(std::remove_if(table.begin() + 1, table.end(),
                                 [this](const Sym& s) { return !matters_to_loader(s); }),
                  table.end());
      if (table.size() == 1) return {};
    } else if (versym_) {
      const auto versions = place(*versym_);
      if (!versions || table.size() * 2 > versions->left ||
          !file_.append(versions_.bytes, versions->offset, table.size() * 2))
        return damaged("its symbols' versions leave their segment");
    }
    symbols_.bytes.resize(table.size() * sizeof(Sym));
    std::memcpy(symbols_.bytes.data(), table.data(), symbols_.bytes.size());
    return {};
  }

  bool matters_to_loader(const Sym& symbol) const {
    if (number_(symbol.st_shndx) != SHN_UNDEF) return false;
    const auto* name =
        reinterpret_cast<const char*>(strings_.bytes.data() + number_(symbol.st_name));
    // A look at the first letter spares thousands of comparisons.
    return name[0] == 'd' &&
           (std::strcmp(name, "dladdr") == 0 || std::strcmp(name, "dladdr1") == 0 ||
            std::strcmp(name, "dlopen") == 0 || std::strcmp(name, "dlmopen") == 0);
  }

  /// The build id's note alone. Damaged notes are no reason to refuse a file: ld.so takes it.
  void read_build_id() {
    for (const auto& s : segments_) {
      if (number_(s.p_type) != PT_NOTE) continue;
      const std::uint64_t align = number_(s.p_align) == 8 ? 8 : 4;
      std::vector<std::uint8_t> notes;
      if (!file_.append(notes, number_(s.p_offset),
                        std::min<std::uint64_t>(number_(s.p_filesz), 65536)))
        continue;
      std::uint64_t at = 0;
      Elf64_Nhdr note;
      while (at + sizeof(note) <= notes.size()) {
        std::memcpy(&note, notes.data() + at, sizeof(note));
        const std::uint64_t name_size = number_(note.n_namesz);
        const std::uint64_t size = number_(note.n_descsz);
        const auto description = at + sizeof(note) + round_up(name_size, align);
        if (description + size > notes.size()) break;
        if (number_(note.n_type) == NT_GNU_BUILD_ID && name_size == 4 && size > 0 && size <= 64 &&
            std::memcmp(notes.data() + at + sizeof(note), "GNU", 4) == 0) {
          const auto from = notes.begin() + static_cast<std::ptrdiff_t>(at);
          build_id_.bytes.assign(from, from + static_cast<std::ptrdiff_t>(description + size - at));
          build_id_.bytes.resize(round_up(build_id_.bytes.size(), 4));
          return;
        }
        at = round_up(description + size, align);
      }
    }
  }

  static std::uint64_t round_up(std::uint64_t value, std::uint64_t to) {
    return (value + to - 1) / to * to;
  }

  /// LIEF's count of symbols (Parser.tcc, nb_dynsym_gnu_hash): one bucket that starts, and ends, at
  /// the last symbol.
  std::vector<std::uint8_t> gnu_hash_of(std::uint32_t symbols) const {
    std::vector<std::uint32_t> words = {1, symbols - 1, 1, 0};
    words.resize(4 + sizeof(typename Elf::word) / 4);  // one word of Bloom filter
    words.push_back(symbols - 1);
    words.push_back(1);
    for (auto& w : words) w = number_(w);
    std::vector<std::uint8_t> bytes(words.size() * 4);
    std::memcpy(bytes.data(), words.data(), bytes.size());
    return bytes;
  }

  std::vector<std::uint8_t> assemble(std::span<const Dyn> dependencies, bool first) {
    std::vector<Phdr> headers;
    std::vector<Dyn> dynamic(dependencies.begin(), dependencies.end());
    Part gnu_hash;
    if (first) {
      dynamic.insert(dynamic.end(), kept_.begin(), kept_.end());
      if (!symbols_.bytes.empty())
        gnu_hash.bytes =
            gnu_hash_of(static_cast<std::uint32_t>(symbols_.bytes.size() / sizeof(Sym)));
    }
    const bool has_dynamic = segment(PT_DYNAMIC) != nullptr;
    const auto* tls = segment(PT_TLS);
    const std::size_t count = segments_.empty() ? 0
                                                : 1U + !interp_.bytes.empty() + has_dynamic +
                                                      (tls != nullptr) + !build_id_.bytes.empty();
    // Room for the tags added below: at most ten and DT_NULL.
    std::uint64_t end = sizeof(Ehdr) + count * sizeof(Phdr);
    const auto put = [&end](Part& part) {
      part.at = round_up(end, 8);
      end = part.at + part.bytes.size();
    };
    for (auto* part : {&interp_, &strings_, &build_id_}) put(*part);
    if (first)
      for (auto* part : {&symbols_, &versions_, &needs_, &definitions_, &gnu_hash}) put(*part);

    const auto add = [&](std::uint64_t tag, std::uint64_t value) {
      Dyn entry{};
      number_.set(entry.d_tag, tag);
      number_.set(entry.d_un.d_val, value);
      dynamic.push_back(entry);
    };
    if (strtab_) {
      add(DT_STRTAB, strings_.at);
      add(DT_STRSZ, strings_.bytes.size());
    }
    if (first && !symbols_.bytes.empty()) {
      add(DT_SYMTAB, symbols_.at);
      add(DT_SYMENT, sizeof(Sym));
      add(DT_GNU_HASH, gnu_hash.at);
      if (!versions_.bytes.empty()) add(DT_VERSYM, versions_.at);
    }
    if (first && need_count_ > 0) {
      add(DT_VERNEED, needs_.at);
      add(DT_VERNEEDNUM, need_count_);
    }
    if (first && definition_count_ > 0) {
      add(DT_VERDEF, definitions_.at);
      add(DT_VERDEFNUM, definition_count_);
    }
    add(DT_NULL, 0);
    Part table;
    table.bytes.resize(dynamic.size() * sizeof(Dyn));
    std::memcpy(table.bytes.data(), dynamic.data(), table.bytes.size());
    put(table);

    const auto add_header = [&](std::uint32_t type, std::uint64_t at, std::uint64_t file_size,
                                std::uint64_t size, std::uint64_t align) {
      Phdr h{};
      number_.set(h.p_type, type);
      number_.set(h.p_flags, PF_R);
      number_.set(h.p_offset, at);
      number_.set(h.p_vaddr, at);
      number_.set(h.p_paddr, at);
      number_.set(h.p_filesz, file_size);
      number_.set(h.p_memsz, size);
      number_.set(h.p_align, align);
      headers.push_back(h);
    };
    if (count > 0) {
      add_header(PT_LOAD, 0, 0, end, 4096);  // no file size: LIEF would copy all of it once more
      if (!interp_.bytes.empty())
        add_header(PT_INTERP, interp_.at, interp_.bytes.size(), interp_.bytes.size(), 1);
      if (has_dynamic) add_header(PT_DYNAMIC, table.at, table.bytes.size(), table.bytes.size(), 8);
      if (!build_id_.bytes.empty())
        add_header(PT_NOTE, build_id_.at, build_id_.bytes.size(), build_id_.bytes.size(), 4);
      if (tls != nullptr) add_header(PT_TLS, 0, 0, number_(tls->p_memsz), number_(tls->p_align));
    }

    Ehdr header = header_;
    number_.set(header.e_shoff, 0);
    number_.set(header.e_shnum, 0);
    number_.set(header.e_shstrndx, 0);
    number_.set(header.e_phoff, count > 0 ? sizeof(Ehdr) : 0);
    number_.set(header.e_phnum, count);
    std::vector<std::uint8_t> image(end);
    const auto copy = [&image](std::uint64_t at, const void* from, std::size_t size) {
      if (size > 0) std::memcpy(image.data() + at, from, size);
    };
    copy(0, &header, sizeof(header));
    copy(sizeof(Ehdr), headers.data(), headers.size() * sizeof(Phdr));
    for (const auto* part : {&interp_, &strings_, &build_id_, &table})
      copy(part->at, part->bytes.data(), part->bytes.size());
    if (first)
      for (const auto* part : {&symbols_, &versions_, &needs_, &definitions_, &gnu_hash})
        copy(part->at, part->bytes.data(), part->bytes.size());
    return image;
  }

  const FileBytes& file_;
  FactsDetail detail_;
  ElfNumber number_;
  Ehdr header_{};
  std::vector<Phdr> segments_;
  std::vector<Dyn> dependencies_;
  std::vector<Dyn> kept_;
  std::optional<std::uint64_t> strtab_, strsz_, symtab_, syment_, hash_, gnu_hash_, versym_,
      verneed_, verdef_;
  Part interp_, strings_, symbols_, versions_, needs_, definitions_, build_id_;
  std::uint32_t need_count_ = 0;
  std::uint32_t definition_count_ = 0;
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
