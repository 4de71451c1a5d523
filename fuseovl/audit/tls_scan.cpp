// SPDX-License-Identifier: MIT

// The TLS of a program that the index does not know, added up before ld.so searches for its first
// library. No name is tried that may not exist: each directory of a search path is listed once, and
// ld.so.cache is read. A library that is found neither way (in hwcaps directories, by tokens other
// than $ORIGIN, by a relative directory, in a very large one) does not count; TlsGuard sees it when
// it is mapped.

#include <elf.h>
#include <linux/limits.h>

#include "fuseovl/audit/kernel.hpp"
#include "fuseovl/audit/process.hpp"
#include "resolver/map/index_format.hpp"
#include "resolver/map/library_path.hpp"

namespace heddle::audit {
namespace {

using index_format::fnv1a;
using library_path::Element;

constexpr unsigned long kLibcTls = 160;  // of glibc's own libraries; 151 in 2.36

#if defined(__x86_64__)
constexpr unsigned kMachine = EM_X86_64;
constexpr unsigned kCacheFlags = 0x303;  // dl-cache.h: FLAG_X8664_LIB64 | FLAG_ELF_LIBC6
#elif defined(__aarch64__)
constexpr unsigned kMachine = EM_AARCH64;
constexpr unsigned kCacheFlags = 0xa03;  // FLAG_AARCH64_LIB64 | FLAG_ELF_LIBC6
#endif

/// struct cache_file_new of glibc's sysdeps/generic/dl-cache.h.
struct CacheHeader {
  char magic[20];
  unsigned count;
  unsigned unused[6];
};
struct CacheEntry {
  unsigned flags;
  unsigned name;  ///< from the file's start, as `path`
  unsigned path;
  unsigned os_version;
  unsigned long hwcaps;
};

/// A file's bytes; all accesses are checked.
struct Bytes {
  const char* at;
  unsigned long size;

  static Bytes of(const char* path) {
    unsigned long size = 0;
    const void* at = map_file(path, Mapping::lazy, size);
    return {static_cast<const char*>(at), at ? size : 0};
  }
  void release() {
    if (at) unmap(const_cast<char*>(at), size);
  }
  template <class T>
  const T* get(unsigned long offset, unsigned long count = 1) const {
    const bool fits =
        offset % alignof(T) == 0 && offset < size && count <= (size - offset) / sizeof(T);
    return fits ? reinterpret_cast<const T*>(at + offset) : nullptr;
  }
  const char* text(unsigned long offset) const {
    for (unsigned long i = offset; i < size; ++i)
      if (!at[i]) return at + offset;
    return nullptr;
  }
};

bool is_of_glibc(const char* name) {
  static constexpr char kNames[][16] = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2",
                                        "librt.so.1"};
  for (const char* known : kNames)
    if (equal(name, known)) return true;
  return behind(name, "ld-linux") != nullptr;
}

/// Whether the program needs glibc's own libraries only. It is mapped, and ld.so has relocated its
/// dynamic section (elf/get-dynamic-info.h).
bool needs_only_glibc(const StartBlock& start) {
  const auto* segments = reinterpret_cast<const Elf64_Phdr*>(start.auxiliary(AT_PHDR));
  const Elf64_Phdr* const end = segments + (segments ? start.auxiliary(AT_PHNUM) : 0);
  unsigned long base = 0;
  const Elf64_Dyn* dynamic = nullptr;
  for (const Elf64_Phdr* segment = segments; segment != end; ++segment) {
    if (segment->p_type == PT_PHDR) base = start.auxiliary(AT_PHDR) - segment->p_vaddr;
    if (segment->p_type == PT_DYNAMIC)
      dynamic = reinterpret_cast<const Elf64_Dyn*>(base + segment->p_vaddr);
  }
  if (!dynamic || start.variable("LD_PRELOAD")) return false;
  unsigned long strings = 0;
  for (const Elf64_Dyn* entry = dynamic; entry->d_tag != DT_NULL; ++entry)
    if (entry->d_tag == DT_STRTAB) strings = entry->d_un.d_ptr;
  if (strings < base) return false;
  for (const Elf64_Dyn* entry = dynamic; entry->d_tag != DT_NULL; ++entry)
    if (entry->d_tag == DT_NEEDED &&
        !is_of_glibc(reinterpret_cast<const char*>(strings + entry->d_un.d_val)))
      return false;
  return true;
}

/// Lies in zeroed memory of its own, and touches what it needs of that.
class Scan {
 public:
  TlsNeed run(const StartBlock& start, unsigned long area_align) {
    area_align_ = area_align;
    need_.bytes = kLibcTls;
    const long size = syscall6(__NR_readlinkat, AT_FDCWD, as_long("/proc/self/exe"), as_long(text_),
                               PATH_MAX - 1);
    if (size <= 0) return need_;
    used_ = static_cast<unsigned long>(size) + 1;
    if (const char* value = start.variable("LD_LIBRARY_PATH")) list_all(value, text_);
    if (const char* value = start.variable("LD_PRELOAD")) {
      for (const char* end = value; *value; value = *end ? end + 1 : end) {
        for (end = value; *end && *end != ':' && *end != ' ';) ++end;
        if (end != value) want(keep("", 0, value, static_cast<unsigned long>(end - value)), text_);
      }
    }
    read(text_, false);
    for (unsigned long i = 0; i < wanted_count_; ++i)
      if (wanted_[i].path && is_new_file(i)) read(wanted_[i].path, true);
    cache_.release();
    return need_;
  }

 private:
  static constexpr unsigned long kMostWanted = 4096;
  static constexpr unsigned long kMostDirectories = 1024;
  static constexpr unsigned long kMostEntries = 4096;  // of one directory
  static constexpr unsigned long kSlots = 16384;       // a power of two

  /// `a` and `b`, one after the other; nullptr: there is no room.
  const char* keep(const char* a, unsigned long a_size, const char* b, unsigned long b_size) {
    if (a_size + b_size >= sizeof text_ - used_) return nullptr;
    char* out = text_ + used_;
    for (unsigned long i = 0; i < a_size; ++i) out[i] = a[i];
    for (unsigned long i = 0; i < b_size; ++i) out[a_size + i] = b[i];
    used_ += a_size + b_size + 1;
    return out;
  }

  /// `text` with a leading $ORIGIN replaced by the directory of `requester`; nullptr: it has
  /// another token.
  const char* expand(const char* text, unsigned long size, const char* requester) {
    unsigned long skip = 0;
    static constexpr char kTokens[][10] = {"$ORIGIN", "${ORIGIN}"};
    for (const char* token : kTokens)
      if (Element{text, size}.starts_with(token)) skip = length(token);
    for (unsigned long i = skip; i < size; ++i)
      if (text[i] == '$') return nullptr;
    unsigned long origin = skip ? length(requester) : 0;
    while (origin > 0 && requester[origin - 1] != '/') --origin;
    return keep(requester, origin ? origin - 1 : 0, text + skip, size - skip);
  }

  void list_all(const char* value, const char* requester) {
    library_path::each_element(value, length(value), [&](const Element& element) {
      const char* path = expand(element.text, element.size, requester);
      if (path && *path == '/') list(path);
    });
  }

  void list(const char* directory) {
    const unsigned long hash = fnv1a(directory, length(directory));
    for (unsigned long i = 0; i < listed_count_; ++i)
      if (listed_[i] == hash) return;
    if (listed_count_ == kMostDirectories || names_count_ == kSlots / 2) return;
    listed_[listed_count_++] = hash;
    const long fd =
        syscall6(__NR_openat, AT_FDCWD, as_long(directory), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    unsigned long count = 0;
    for (long got; count < kMostEntries &&
                   (got = syscall6(__NR_getdents64, fd, as_long(entries_), sizeof entries_)) > 0;) {
      for (long at = 0; at < got; ++count) {
        const auto& entry = *reinterpret_cast<const DirectoryEntry*>(entries_ + at);
        at += entry.size;
        const unsigned long name = fnv1a(entry.name, length(entry.name));
        if (Name& slot = slot_of(name); !slot.directory && names_count_ < kSlots / 2) {
          slot = {name, directory};  // a directory listed before goes first
          ++names_count_;
        }
      }
    }
    syscall6(__NR_close, fd);
  }

  void want(const char* name, const char* requester) {
    if (!name || is_of_glibc(name) || wanted_count_ == kMostWanted) return;
    const unsigned long size = length(name);
    const unsigned long hash = fnv1a(name, size);
    for (unsigned long i = 0; i < wanted_count_; ++i)
      if (wanted_[i].hash == hash) return;
    bool has_slash = false;
    for (const char* c = name; *c; ++c) has_slash = has_slash || *c == '/';
    const char* path = nullptr;
    if (has_slash)
      path = expand(name, size, requester);
    else if (const char* directory = names_count_ ? slot_of(hash).directory : nullptr; !directory)
      path = find_in_cache(name);
    else if (const char* prefix = keep(directory, length(directory), "/", 1))
      path = keep(prefix, length(prefix), name, size);
    wanted_[wanted_count_++] = {hash, path, 0, 0};
  }

  /// Whether the file `i` is none of those before, which one library that is wanted by two names
  /// is.
  bool is_new_file(unsigned long i) {
    struct stat st;
    if (!stat_path(wanted_[i].path, st)) return false;
    for (unsigned long k = 0; k < i; ++k)
      if (wanted_[k].dev == st.st_dev && wanted_[k].ino == st.st_ino) return false;
    wanted_[i].dev = st.st_dev;
    wanted_[i].ino = st.st_ino;
    return true;
  }

  const char* find_in_cache(const char* name) {
    if (!cache_.at) cache_ = Bytes::of("/etc/ld.so.cache");
    const auto* header = cache_.get<CacheHeader>(0);
    if (!header || !behind(header->magic, "glibc-ld.so.cache1.1")) return nullptr;
    const auto* entries = cache_.get<CacheEntry>(sizeof(CacheHeader), header->count);
    const unsigned long size = length(name) + 1;
    for (unsigned i = 0; entries && i < header->count; ++i) {
      if (entries[i].flags != kCacheFlags) continue;
      const char* text = cache_.get<char>(entries[i].name, size);
      if (text && text[size - 1] == '\0' && equal(text, name)) return cache_.text(entries[i].path);
    }
    return nullptr;
  }

  void read(const char* path, bool is_library) {
    Bytes file = Bytes::of(path);
    read(file, path, is_library);
    file.release();
  }

  /// Adds the file's TLS, and the libraries that it needs.
  void read(const Bytes& file, const char* path, bool is_library) {
    const auto* header = file.get<Elf64_Ehdr>(0);
    if (!header || !behind(reinterpret_cast<const char*>(header->e_ident), ELFMAG "\2\1") ||
        header->e_machine != kMachine || header->e_phentsize != sizeof(Elf64_Phdr))
      return;
    const auto* segments = file.get<Elf64_Phdr>(header->e_phoff, header->e_phnum);
    if (!segments) return;
    const Elf64_Phdr* const end = segments + header->e_phnum;
    const Elf64_Dyn* dynamic = nullptr;
    unsigned long count = 0;
    TlsSegment tls;
    for (const Elf64_Phdr* segment = segments; segment != end; ++segment) {
      if (segment->p_type == PT_TLS) tls = {segment->p_memsz, segment->p_align};
      if (segment->p_type != PT_DYNAMIC) continue;
      count = segment->p_filesz / sizeof(Elf64_Dyn);
      dynamic = file.get<Elf64_Dyn>(segment->p_offset, count);
    }
    if (!dynamic) return;
    unsigned long strings = 0, flags = 0;
    for (unsigned long i = 0; i < count && dynamic[i].d_tag != DT_NULL; ++i) {
      if (dynamic[i].d_tag == DT_STRTAB) strings = dynamic[i].d_un.d_ptr;
      if (dynamic[i].d_tag == DT_FLAGS) flags = dynamic[i].d_un.d_val;
    }
    const Elf64_Phdr* load = segments;
    while (load != end && !(load->p_type == PT_LOAD && strings - load->p_vaddr < load->p_filesz))
      ++load;
    if (load == end) return;
    strings += load->p_offset - load->p_vaddr;
    if (is_library) {
      need_.bytes += tls::block_cost(tls.size, tls.align);
      if (tls.size && tls.align > area_align_ && (flags & DF_STATIC_TLS)) need_.over_aligned = true;
    }
    for (int pass = 0; pass < 2; ++pass) {
      const bool search_paths = pass == 0;
      for (unsigned long i = 0; i < count && dynamic[i].d_tag != DT_NULL; ++i) {
        const bool is_path = dynamic[i].d_tag == DT_RPATH || dynamic[i].d_tag == DT_RUNPATH;
        if (is_path != search_paths || (!is_path && dynamic[i].d_tag != DT_NEEDED)) continue;
        const char* text = file.text(strings + dynamic[i].d_un.d_val);
        if (text) is_path ? list_all(text, path) : want(text, path);
      }
    }
  }

  struct Name {
    unsigned long hash;
    const char* directory;  ///< nullptr: the slot is free
  };
  Name& slot_of(unsigned long hash) {
    unsigned long at = hash % kSlots;
    while (names_[at].directory && names_[at].hash != hash) at = (at + 1) % kSlots;
    return names_[at];
  }
  struct Wanted {
    unsigned long hash;  ///< of the name
    const char* path;    ///< nullptr: not found
    unsigned long dev;
    unsigned long ino;  ///< 0: not read yet
  };

  TlsNeed need_;
  unsigned long area_align_;
  Bytes cache_;
  unsigned long wanted_count_;
  unsigned long listed_count_;
  unsigned long names_count_;
  unsigned long used_;
  Wanted wanted_[kMostWanted];
  unsigned long listed_[kMostDirectories];  ///< hashes
  Name names_[kSlots];                      ///< by the hash of a name
  alignas(8) char entries_[16384];
  char text_[1UL << 20];  ///< begins with the program's path
};

}  // namespace

TlsNeed find_tls_need(const StartBlock& start, unsigned long area_align) {
  if (needs_only_glibc(start)) return {kLibcTls, false};
  void* memory = allocate(sizeof(Scan));
  if (!memory) return {};
  const TlsNeed need = static_cast<Scan*>(memory)->run(start, area_align);
  unmap(memory, sizeof(Scan));
  return need;
}

}  // namespace heddle::audit
