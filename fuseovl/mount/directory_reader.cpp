// SPDX-License-Identifier: MIT
#include "fuseovl/mount/directory_reader.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <vector>

#include "base/fd.hpp"

namespace heddle {
namespace {

constexpr std::size_t kBufferSize = 256 * 1024;

struct RawEntry {  // getdents64(2)
  std::uint64_t ino;
  std::int64_t off;
  unsigned short reclen;
  unsigned char type;
  char name[1];
};

}  // namespace

Result<void> walk_tree(int root,
                       const std::function<void(const std::string&, const DirectoryEntry&)>& visit,
                       const std::function<bool(const std::string&)>& enter) {
  const std::unique_ptr<char[]> buffer(new char[kBufferSize]);
  std::vector<std::string> pending = {""};
  while (!pending.empty()) {
    const std::string directory = std::move(pending.back());
    pending.pop_back();
    if (enter && !directory.empty() && !enter(directory)) continue;
    const Fd fd(::openat(root, directory.empty() ? "." : directory.c_str(),
                         O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd) return fail_errno(directory, "cannot open");
    for (;;) {
      const long n = ::syscall(SYS_getdents64, fd.get(), buffer.get(), kBufferSize);
      if (n < 0) return fail_errno(directory, "cannot list");
      if (n == 0) break;
      for (long at = 0; at < n;) {
        const auto* entry = reinterpret_cast<const RawEntry*>(buffer.get() + at);
        at += entry->reclen;
        const char* name = entry->name;
        if (std::strcmp(name, ".") == 0 || std::strcmp(name, "..") == 0) continue;
        const std::string path = directory.empty() ? name : directory + "/" + name;
        visit(path, {entry->ino, entry->type});
        if (entry->type == DT_DIR) pending.push_back(path);
      }
    }
  }
  return {};
}

}  // namespace heddle
