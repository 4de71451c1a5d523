// SPDX-License-Identifier: MIT
#include "fuseovl/audit/path_search.hpp"

#include <limits.h>

#include "fuseovl/audit/kernel.hpp"
#include "fuseovl/audit/text.hpp"

namespace heddle::audit {
namespace {

constinit char expanded[PATH_MAX];  ///< ld.so copies what we answer (dl-object.c) before it goes on

/// Behind a leading $ORIGIN, or nullptr. Elsewhere in a name, and as other tokens, dlopen's callers
/// do not use them; ld.so deals with those.
const char* behind_origin(const char* name) {
  const char* rest = behind(name, "$ORIGIN");
  if (!rest) rest = behind(name, "${ORIGIN}");
  return rest && *rest == '/' ? rest : nullptr;
}

/// Writes the folder of the requester's own file, as ld.so would know it without us, to `expanded`;
/// returns its length, 0 if it cannot be told. `moved`: ld.so's $ORIGIN is the view's instead.
unsigned long write_origin(const IndexView& index, const link_map& requester, bool& moved) {
  unsigned long size = 0;
  if (!requester.l_name || !*requester.l_name) {  // the program: dl-origin.c reads the same link
    const long n = syscall6(__NR_readlinkat, AT_FDCWD, as_long("/proc/self/exe"), as_long(expanded),
                            sizeof expanded);
    size = n > 0 ? static_cast<unsigned long>(n) : 0;
  } else {
    const char* own = index.origin_of(requester.l_name);
    moved = own && !equal(own, requester.l_name);
    if (!own) own = requester.l_name;
    if (*own != '/' || length(own) >= sizeof expanded) return 0;
    size = static_cast<unsigned long>(copy(expanded, own) - expanded);
  }
  while (size > 0 && expanded[size - 1] != '/') --size;
  return size > 0 ? size - 1 : 0;
}

bool has_slash(const char* name) {
  while (*name && *name != '/') ++name;
  return *name == '/';
}

}  // namespace

const char* find_by_path(const IndexView& index, const char* name, const link_map& requester) {
  if (!index.chosen() || !has_slash(name)) return nullptr;
  bool moved = false;
  const char* path = name;
  if (const char* rest = behind_origin(name)) {
    const unsigned long size = write_origin(index, requester, moved);
    if (size == 0 || size + length(rest) >= sizeof expanded) return nullptr;
    copy(expanded + size, rest);
    path = expanded;
    if (const char* target = index.target(path)) return target;
  }
  struct stat st;
  if (!stat_path(path, st)) return nullptr;
  const char* target = index.target_of_file(
      st.st_dev, st.st_ino, st.st_mtim.tv_sec * INT64_C(1000000000) + st.st_mtim.tv_nsec);
  if (target) return target;
  return moved ? path : nullptr;
}

}  // namespace heddle::audit
