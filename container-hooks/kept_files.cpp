// SPDX-License-Identifier: MIT
#include "container-hooks/kept_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <span>

#include "base/open_regular.hpp"
#include "container-hooks/hook_progress.hpp"
#include "container-hooks/mount_calls.hpp"

namespace heddle {
namespace {

constexpr const char* kOwnFolder = ".heddle";
constexpr std::size_t kBuffer = std::size_t{256} << 10;
constexpr std::size_t kMost = std::size_t{64} << 20;  ///< glibc with its family is 4 MB

bool is_same(const struct stat& one, const struct stat& other) {
  return one.st_size == other.st_size && one.st_mtim.tv_sec == other.st_mtim.tv_sec &&
         one.st_mtim.tv_nsec == other.st_mtim.tv_nsec;
}

/// The host's file itself where it is what the mount serves: its pages are in memory, each of the
/// mount's would be asked for (18 files of glibc: 10 ms of a start).
Fd open_source(const Fd& overlay, const KeptFile& file, struct stat& status) {
  if (::fstatat(overlay.get(), file.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return {};
  struct stat origin {};
  if (!file.origin.empty())
    if (auto fd = open_regular(file.origin);
        fd && ::fstat(fd->get(), &origin) == 0 && is_same(origin, status))
      return std::move(*fd);
  return Fd(::openat(overlay.get(), file.name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
}

Result<void> copy_file(const Fd& overlay, const KeptFile& file, const Fd& to,
                       const std::string& copy, std::span<char> buffer) {
  note_step("copying", file.origin.empty() ? file.name : file.origin);
  struct stat status {};
  const auto source = open_source(overlay, file, status);
  if (!source) return fail_errno(file.name, "cannot copy it");
  const Fd target(::openat(to.get(), copy.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                           status.st_mode & 0777));
  if (!target) return fail_errno(file.name, "cannot copy it");
  // A shell's umask of 077, which the hook got from it, is none of the container's users'.
  if (::fchmod(target.get(), status.st_mode & 0777) != 0)
    return fail_errno(file.name, "cannot copy its mode");
  for (ssize_t n; (n = ::read(source.get(), buffer.data(), buffer.size())) != 0;) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno(file.name, "cannot copy it");
    const std::string_view bytes(buffer.data(), static_cast<std::size_t>(n));
    if (auto written = write_all(target.get(), bytes, file.name); !written) return written;
  }
  return {};
}

}  // namespace

Result<KeptFiles> KeptFiles::copy(const Fd& overlay, const std::vector<KeptFile>& wanted) {
  auto memory = new_tmpfs(kMost, Programs::may_run);
  if (!memory) return fail(std::move(memory.error()));
  std::map<std::string, std::string> files;
  // Not zeroed: most that is copied is ld.so.cache, of some pages.
  const auto buffer = std::make_unique_for_overwrite<char[]>(kBuffer);
  for (const auto& file : wanted) {
    const auto [copy, is_new] = files.emplace(file.name, std::to_string(files.size()));
    if (!is_new) continue;
    if (auto copied = copy_file(overlay, file, *memory, copy->second, {buffer.get(), kBuffer});
        !copied)
      return fail(std::move(copied.error()));
  }
  const Fd folder(::openat(overlay.get(), kOwnFolder, O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return fail_errno(kOwnFolder, "cannot mount over it");
  if (auto attached = attach_mount(memory->get(), folder.get(), kOwnFolder); !attached)
    return fail(std::move(attached.error()));
  KeptFiles out(std::move(*memory));
  out.files_ = std::move(files);
  return out;
}

KeptFiles::~KeptFiles() {
  if (memory_) detach_mount(memory_.get());
}

Result<Fd> KeptFiles::mount(const std::string& name) const {
  const auto file = files_.find(name);
  if (file == files_.end()) return Fd();
  auto tree = clone_mount(memory_.get(), file->second);
  if (!tree) return tree;
  if (auto done = make_inert(tree->get(), name); !done) return fail(std::move(done.error()));
  return tree;
}

}  // namespace heddle
