// SPDX-License-Identifier: MIT
#include "fuseovl/warm_up.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "base/fd.hpp"

namespace heddle {
namespace {

// Below each directory of LD_LIBRARY_PATH ld.so tries these sub-folders first (glibc
// elf/dl-hwcaps_subdirs.c and, up to 2.36, sysdeps/x86/dl-hwcap.h with elf/dl-hwcaps.c).
constexpr const char* kProbedNames[] = {"glibc-hwcaps", "tls",      "x86_64",  "i686",
                                        "haswell",      "avx512_1", "xeon_phi"};

// The kernel asks for as much as the caller's buffer holds (since Linux 6.14, fs/fuse/readdir.c;
// before, a page at a time).
constexpr std::size_t kBufferSize = 256 * 1024;

struct RawEntry {  // getdents64(2)
  std::uint64_t ino;
  std::int64_t off;
  unsigned short reclen;
  unsigned char type;
  char name[1];
};

class Walk {
 public:
  Result<void> directory(int parent, const char* name, const std::string& path) {
    const Fd fd(::openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd) return fail_errno(path, "cannot open");
    for (const char* probed : kProbedNames) (void)::faccessat(fd.get(), probed, F_OK, 0);
    std::vector<std::string> folders;
    for (;;) {
      const long n = ::syscall(SYS_getdents64, fd.get(), buffer_.get(), kBufferSize);
      if (n < 0) return fail_errno(path, "cannot read");
      if (n == 0) break;
      for (long at = 0; at < n;) {
        const auto* entry = reinterpret_cast<const RawEntry*>(buffer_.get() + at);
        at += entry->reclen;
        const char* entry_name = entry->name;
        if (entry->type == DT_DIR && std::strcmp(entry_name, ".") && std::strcmp(entry_name, ".."))
          folders.emplace_back(entry_name);
      }
    }
    for (const auto& folder : folders)
      if (auto done = directory(fd.get(), folder.c_str(), path + "/" + folder); !done) return done;
    return {};
  }

 private:
  // One buffer for all: its entries are copied out before it is used again.
  std::unique_ptr<char[]> buffer_{new char[kBufferSize]};
};

}  // namespace

Result<void> await_ready(int ready_fd) {
  char first = 0;
  ssize_t n;
  do {
    n = ::read(ready_fd, &first, 1);
  } while (n < 0 && errno == EINTR);
  if (n < 0) return fail_errno("fs-mount", "cannot hear from it");
  if (n == 0) return fail("fs-mount", "did not start", "it ended without a word");
  if (first == kReadyByte) return {};
  auto rest = read_all(ready_fd, "fs-mount", 1U << 20);
  return fail(Error({}, first + rest.value_or("")));
}

Result<void> warm_up(const std::string& mount_point) {
  struct stat status {};
  if (::stat(mount_point.c_str(), &status) != 0) return fail_errno(mount_point, "does not answer");
  if (auto walked = Walk().directory(AT_FDCWD, mount_point.c_str(), mount_point); !walked)
    return walked;
  // Answered ENOSYS once, never asked again: OPEN, FLUSH, GETXATTR, LISTXATTR, STATX.
  const std::string own = mount_point + "/.heddle";
  if (auto file = open_file(own + "/index", O_RDONLY); !file) return fail(file.error());
  (void)::getxattr(mount_point.c_str(), "user.heddle", nullptr, 0);
  (void)::listxattr(mount_point.c_str(), nullptr, 0);
  struct statx extended {};
  (void)::statx(AT_FDCWD, mount_point.c_str(), 0, STATX_BASIC_STATS | STATX_BTIME, &extended);
  (void)::access((own + "/" + kWarmSignal).c_str(), F_OK);
  return {};
}

}  // namespace heddle
