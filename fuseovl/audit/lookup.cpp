// SPDX-License-Identifier: MIT
#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <linux/limits.h>

#include "fuseovl/audit/index_view.hpp"
#include "fuseovl/audit/kernel.hpp"
#include "resolver/map/library_path.hpp"

namespace heddle::audit {

// Another LD_LIBRARY_PATH.

namespace {

using index_format::fnv1a;
using library_path::Element;

// Beyond these limits ld.so's search costs less than the check.
constexpr unsigned kMostElements = 256;
constexpr unsigned kMostDirectories = 64;
constexpr unsigned long kMostEntries = 100000;

// Never touched, so never allocated, where the value is the map's.
constinit char cwd[PATH_MAX];
constinit char path[PATH_MAX];
alignas(8) constinit char entries[16384];

/// The value that ld.so uses: the last one (rtld.c, process_envvars).
const char* value_of(const StartBlock& start) {
  const char* out = "";
  for (char** entry = start.envp; entry && *entry; ++entry)
    if (const char* value = behind(*entry, "LD_LIBRARY_PATH=")) out = value;
  return out;
}

/// Fills `cwd` if an element is relative; false when the current directory has no name.
bool know_directory(const char* value) {
  bool relative = false;
  library_path::each_element(value, length(value), [&](const Element& element) {
    relative = relative || element.is_relative();
  });
  return !relative || (syscall6(__NR_getcwd, as_long(cwd), sizeof cwd) > 0 &&
                       *cwd == '/');  // not "(unreachable)/..."
}

/// As the index writer computes it.
std::uint64_t hash_of(const char* value) {
  std::uint64_t hash = fnv1a("", 0);
  library_path::put_absolute(value, length(value), cwd, [&](const char* bytes, unsigned long size) {
    hash = fnv1a(bytes, size, hash);
  });
  return hash;
}

class Elements {
 public:
  /// False: too many elements.
  bool split(const char* value) {
    bool fits = true;
    library_path::each_element(value, length(value), [&](const Element& element) {
      fits = fits && count_ < kMostElements;
      if (fits) list_[count_++] = element;
    });
    return fits;
  }
  unsigned count() const { return count_; }
  const Element& operator[](unsigned i) const { return list_[i]; }

  /// Finds the elements [first, last) that have the recorded hash.
  bool find(std::uint32_t recorded, unsigned& first, unsigned& last) const {
    for (first = 0; first < count_; ++first) {
      std::uint64_t hash = fnv1a("", 0);
      const auto put = [&](const char* bytes, unsigned long size) {
        hash = fnv1a(bytes, size, hash);
      };
      for (last = first + 1; last <= count_; ++last) {
        if (last != first + 1) put(":", 1);
        library_path::put_absolute(list_[last - 1], cwd, put);
        if (index_format::search_path(hash, true) == (recorded | 1)) return true;
      }
    }
    return false;
  }

 private:
  Element list_[kMostElements] = {};
  unsigned count_ = 0;
};

/// Sub-directories that ld.so searches before the directory itself (dl-hwcaps.c). A list with one
/// of them is not checked further.
bool is_searched_directory(const char* name, const StartBlock& start) {
  static constexpr char kDirectories[][16] = {"glibc-hwcaps", "tls",      "x86_64", "haswell",
                                              "avx512_1",     "xeon_phi", "atomics"};
  for (const char* directory : kDirectories)
    if (equal(name, directory)) return true;
  const auto* platform = reinterpret_cast<const char*>(start.auxiliary(AT_PLATFORM));
  return platform && equal(name, platform);
}

/// Whether the file `name` in the directory that is the first `size` bytes of `path` is served as
/// `target`.
bool is_same_file(const IndexView& index, unsigned long size, const char* name,
                  const char* target) {
  if (size + 1 + length(name) >= sizeof path) return false;
  path[size] = '/';
  copy(path + size + 1, name);
  struct stat st;
  if (!stat_path(path, st)) return false;
  const char* served = index.target_of_file(
      st.st_dev, st.st_ino, st.st_mtim.tv_sec * INT64_C(1000000000) + st.st_mtim.tv_nsec);
  return served && equal(served, target);
}

/// Whether no file of the element's directory hides one of the index.
bool is_harmless(const IndexView& index, const Element& element, const StartBlock& start) {
  unsigned long size = 0;
  bool plain = true;
  library_path::put_absolute(element, cwd, [&](const char* bytes, unsigned long more) {
    for (unsigned long i = 0; i < more; ++i) {
      plain = plain && bytes[i] != '$' && size < sizeof path - 1;  // $: a token of ld.so's
      if (plain) path[size++] = bytes[i];
    }
  });
  path[size] = '\0';
  if (!plain) return false;
  const long fd =
      syscall6(__NR_openat, AT_FDCWD, as_long(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return fd == -ENOENT || fd == -ENOTDIR;  // EACCES: ld.so may open unlisted names
  unsigned long seen = 0;
  bool good = true;
  long got = 0;
  while (good && (got = syscall6(__NR_getdents64, fd, as_long(entries), sizeof entries)) > 0) {
    for (long at = 0; good && at < got;) {
      const auto& entry = *reinterpret_cast<const DirectoryEntry*>(entries + at);
      at += entry.size;
      good = ++seen <= kMostEntries &&
             (entry.type == DT_REG || !is_searched_directory(entry.name, start));
      const char* const targets[] = {index.target(entry.name),
                                     index.target(entry.name, index_format::kAnyCaller)};
      for (const char* target : targets)
        good = good && (!target || is_same_file(index, size, entry.name, target));
    }
  }
  syscall6(__NR_close, fd);
  return good && got == 0;
}

}  // namespace

LibraryPath compare_library_path(const IndexView& index, const StartBlock& start) {
  const char* value = value_of(start);
  const std::uint32_t recorded = index.search_path();
  const bool used = recorded & 1;
  if (!know_directory(value)) return LibraryPath::other;
  if (index_format::search_path(hash_of(value), used) == recorded) return LibraryPath::same;
  Elements elements;
  if (!elements.split(value)) return LibraryPath::other;
  unsigned first = 0, last = 0;
  if (!elements.find(recorded, first, last)) {
    if (used) return LibraryPath::other;
    first = last = 0;
  }
  if (elements.count() - (last - first) > kMostDirectories) return LibraryPath::other;
  for (unsigned i = 0; i < elements.count(); ++i)
    if ((i < first || i >= last) && !is_harmless(index, elements[i], start))
      return LibraryPath::other;
  return LibraryPath::harmless;
}

bool hwcaps_agree(const IndexView& index, const StartBlock& start) {
  std::uint64_t hash = fnv1a("", 0);
  if (const char* text = start.variable("GLIBC_TUNABLES"))
    tls::each_tunable(text, length(text), [&](const tls::Tunable& tunable) {
      if (tunable.is(tls::kHwcapsName)) hash = fnv1a(tunable.value_text(), tunable.value_size());
    });
  return hash == index.hwcaps();
}

// Names with a slash.

namespace {

constinit char expanded[PATH_MAX];  ///< ld.so copies the answer at once (dl-object.c)

/// What follows a leading $ORIGIN, or nullptr. All other uses of tokens are left to ld.so.
const char* behind_origin(const char* name) {
  const char* rest = behind(name, "$ORIGIN");
  if (!rest) rest = behind(name, "${ORIGIN}");
  return rest && *rest == '/' ? rest : nullptr;
}

/// Writes $ORIGIN of the requester's original file to `expanded`; returns its length, 0 if it is
/// unknown.
unsigned long write_origin(const link_map& requester) {
  unsigned long size = 0;
  if (!requester.l_name || !*requester.l_name) {  // the program: dl-origin.c reads the same link
    const long n = syscall6(__NR_readlinkat, AT_FDCWD, as_long("/proc/self/exe"), as_long(expanded),
                            sizeof expanded);
    size = n > 0 ? static_cast<unsigned long>(n) : 0;
  } else {
    if (*requester.l_name != '/' || length(requester.l_name) >= sizeof expanded) return 0;
    size = static_cast<unsigned long>(copy(expanded, requester.l_name) - expanded);
  }
  while (size > 0 && expanded[size - 1] != '/') --size;
  return size > 0 ? size - 1 : 0;
}

bool has_slash(const char* name) {
  while (*name && *name != '/') ++name;
  return *name == '/';
}

}  // namespace

const char* find_by_path(const IndexView& index, const char* name, const link_map& requester,
                         bool moved) {
  if (!index.chosen() || !has_slash(name)) return nullptr;
  const char* asked = name;
  if (const char* rest = behind_origin(name)) {
    const unsigned long size = write_origin(requester);
    if (size == 0 || size + length(rest) >= sizeof expanded) return nullptr;
    copy(expanded + size, rest);
    asked = expanded;
    if (const char* target = index.target(asked)) return target;
  }
  struct stat st;
  if (!stat_path(asked, st)) return nullptr;
  const char* target = index.target_of_file(
      st.st_dev, st.st_ino, st.st_mtim.tv_sec * INT64_C(1000000000) + st.st_mtim.tv_nsec);
  if (target) return target;
  return moved && asked == expanded ? asked : nullptr;
}

}  // namespace heddle::audit
