// SPDX-License-Identifier: MIT
#include "fuseovl/audit/isatty.hpp"

#include <errno.h>

#include "fuseovl/audit/kernel.hpp"
#include "fuseovl/audit/loaded_object.hpp"

namespace heddle::audit {
namespace {

#if defined(__x86_64__)
constexpr unsigned long kJumpSlot = R_X86_64_JUMP_SLOT;
constexpr unsigned long kGlobalData = R_X86_64_GLOB_DAT;
#elif defined(__aarch64__)
constexpr unsigned long kJumpSlot = R_AARCH64_JUMP_SLOT;
constexpr unsigned long kGlobalData = R_AARCH64_GLOB_DAT;
#endif

/// The C library's, of the program's namespace.
int (*libc_isatty)(int) = nullptr;
int* (*libc_errno)() = nullptr;

/// Of files that are open for writing fstat(2) and statx(2) may wait for a file server.
int quick_isatty(int fd) {
  const long flags = syscall6(__NR_fcntl, fd, F_GETFL);
  struct statx st;
  if (flags < 0 || (flags & (O_ACCMODE | O_PATH)) != O_RDONLY ||
      syscall6(__NR_statx, fd, as_long(""), AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE,
               as_long(&st)) != 0 ||
      !S_ISREG(st.stx_mode))
    return libc_isatty(fd);
  *libc_errno() = ENOTTY;
  return 0;
}

bool is_function(const ElfW(Sym) * symbol) {
  return symbol && ELF64_ST_TYPE(symbol->st_info) == STT_FUNC;
}

/// Whether the first object that defines isatty() is the one of errno: the C library, and no
/// LD_PRELOAD comes before it.
bool find_libc(const StartBlock& start, const link_map& program) {
  const unsigned long vdso = start.auxiliary(AT_SYSINFO_EHDR);
  for (const link_map* map = &program; map; map = map->l_next) {
    const auto at = reinterpret_cast<unsigned long>(map->l_ld);
    if (vdso && at > vdso && at - vdso < 65536) continue;  // it may be linked above where it is
    const LoadedObject object(*map);
    if (!object.hashes) return false;  // DT_HASH alone: it may define anything
    const auto* found = object.definition("isatty");
    if (!found) continue;
    const auto* error = object.definition("__errno_location");
    if (!is_function(found) || !is_function(error)) return false;
    libc_isatty = reinterpret_cast<int (*)(int)>(map->l_addr + found->st_value);
    libc_errno = reinterpret_cast<int* (*)()>(map->l_addr + error->st_value);
    return true;
  }
  return false;
}

/// The Python in which calls are redirected.
struct Python {
  const link_map& map;
  Segments segments;
  unsigned long page_size;

  unsigned long begin(const ElfW(Phdr) & segment) const { return map.l_addr + segment.p_vaddr; }
  /// The flags of the loaded segment with the address; 0: none.
  unsigned flags_at(unsigned long address) const {
    for (unsigned long i = 0; i < segments.count; ++i) {
      const auto& segment = segments.first[i];
      if (segment.p_type == PT_LOAD && address >= begin(segment) &&
          address - begin(segment) < segment.p_memsz)
        return segment.p_flags;
    }
    return 0;
  }
  /// Whether ld.so has made the page read only (dl-reloc.c, _dl_protect_relro(): whole pages).
  bool is_protected(unsigned long address) const {
    for (unsigned long i = 0; i < segments.count; ++i) {
      const auto& segment = segments.first[i];
      if (segment.p_type == PT_GNU_RELRO && address >= (begin(segment) & -page_size) &&
          address < ((begin(segment) + segment.p_memsz) & -page_size))
        return true;
    }
    return false;
  }
  /// Lets the slot at `at` point to quick_isatty(). Left as it is: one that points to neither the C
  /// library's isatty() nor to the object's own code, by which ld.so binds it later.
  void redirect(unsigned long at) const {
    if (!(flags_at(at) & PF_W)) return;
    auto* slot = reinterpret_cast<unsigned long*>(at);
    unsigned long old = __atomic_load_n(slot, __ATOMIC_RELAXED);
    if (old != reinterpret_cast<unsigned long>(libc_isatty) && !(flags_at(old) & PF_X)) return;
    const auto page = static_cast<long>(at & -page_size), size = static_cast<long>(page_size);
    const bool closed = is_protected(at);
    if (closed && syscall6(__NR_mprotect, page, size, PROT_READ | PROT_WRITE) != 0) return;
    __atomic_compare_exchange_n(slot, &old, reinterpret_cast<unsigned long>(&quick_isatty), false,
                                __ATOMIC_RELEASE, __ATOMIC_RELAXED);
    if (closed) syscall6(__NR_mprotect, page, size, PROT_READ);
  }
};

}  // namespace

void answer_isatty(const StartBlock& start, const link_map& program, const link_map* libpython) {
  const bool is_program = LoadedObject(program).definition("Py_Main");
  if (!is_program && !(libpython && LoadedObject(*libpython).definition("Py_Main"))) return;
  if (!find_libc(start, program)) return;
  const link_map& map = is_program ? program : *libpython;
  const unsigned long page_size = start.auxiliary(AT_PAGESZ);
  // Without AT_BASE ld.so is the command, and the headers are its own.
  const bool are_own = is_program && start.auxiliary(AT_BASE);
  const auto* headers = reinterpret_cast<const ElfW(Phdr)*>(start.auxiliary(AT_PHDR));
  const Python python{
      map, are_own ? Segments{headers, start.auxiliary(AT_PHNUM)} : segments_of(map, page_size),
      page_size};
  const LoadedObject object(map);
  const auto visit = [&](const ElfW(Rela) * all, unsigned long size) {
    for (unsigned long i = 0; i < size / sizeof *all; ++i) {
      const unsigned long type = ELF64_R_TYPE(all[i].r_info);
      if ((type == kJumpSlot || type == kGlobalData) &&
          equal(object.name_of(ELF64_R_SYM(all[i].r_info)), "isatty"))
        python.redirect(map.l_addr + all[i].r_offset);
    }
  };
  visit(object.calls, object.calls_size);
  visit(object.data, object.data_size);
}

}  // namespace heddle::audit
