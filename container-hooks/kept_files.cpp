// SPDX-License-Identifier: MIT
#include "container-hooks/kept_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "container-hooks/mount_calls.hpp"

namespace heddle {
namespace {

constexpr const char* kOwnFolder = ".heddle";
constexpr std::size_t kMost = std::size_t{64} << 20;  ///< glibc with its family is 4 MB

Result<void> copy_file(const Fd& from, const std::string& name, const Fd& to,
                       const std::string& copy) {
  const Fd source(::openat(from.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  struct stat status {};
  if (!source || ::fstat(source.get(), &status) != 0) return fail_errno(name, "cannot copy it");
  const Fd target(::openat(to.get(), copy.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                           status.st_mode & 0777));
  if (!target) return fail_errno(name, "cannot copy it");
  std::string buffer(std::size_t{1} << 20, '\0');
  for (ssize_t n; (n = ::read(source.get(), buffer.data(), buffer.size())) != 0;) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno(name, "cannot copy it");
    const std::string_view bytes(buffer.data(), static_cast<std::size_t>(n));
    if (auto written = write_all(target.get(), bytes, name); !written) return written;
  }
  // Nobody reads it there any more.
  (void)::posix_fadvise(source.get(), 0, 0, POSIX_FADV_DONTNEED);
  return {};
}

}  // namespace

Result<KeptFiles> KeptFiles::copy(const Fd& overlay, const std::vector<std::string>& names) {
  auto memory = new_tmpfs(kMost, Programs::may_run);
  if (!memory) return fail(std::move(memory.error()));
  std::map<std::string, std::string> files;
  for (const auto& name : names) {
    const auto [file, is_new] = files.emplace(name, std::to_string(files.size()));
    if (!is_new) continue;
    if (auto copied = copy_file(overlay, name, *memory, file->second); !copied)
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
