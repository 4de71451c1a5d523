// SPDX-License-Identifier: MIT
#include "record/slim_copy.hpp"

#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>

#include "base/fd.hpp"

namespace heddle {
namespace {

using trace::Op;
namespace fs = std::filesystem;

/// Folders down to `path`, with the modes of those they stand for.
Result<void> make_folders(const std::string& path, const std::string& target) {
  for (std::size_t at = 1; at != std::string::npos && at <= path.size();) {
    at = path.find('/', at);
    const std::string source = path.substr(0, at);
    struct stat st {};
    if (::lstat(source.c_str(), &st) == 0 && S_ISDIR(st.st_mode)) {
      const std::string made = target + source;
      if (::mkdir(made.c_str(), st.st_mode & 07777) != 0 && errno != EEXIST)
        return fail_errno(made, "cannot make the folder");
    }
    if (at != std::string::npos) ++at;
  }
  return {};
}

Result<void> copy_file(const std::string& source, const std::string& to, const struct stat& st) {
  auto from = open_file(source, O_RDONLY | O_NONBLOCK);
  if (!from) return fail(std::move(from.error()));
  auto made = open_file(to, O_WRONLY | O_CREAT | O_EXCL, 0600);
  if (!made) return fail(std::move(made.error()));
  for (;;) {
    const ssize_t n = ::sendfile(made->get(), from->get(), nullptr, 1U << 30);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno(to, "cannot copy");
    if (n == 0) break;
  }
  // The owner first: chown takes set-uid away. A user keeps his own.
  [[maybe_unused]] const int ignored = ::fchown(made->get(), st.st_uid, st.st_gid);
  const timespec times[2] = {st.st_atim, st.st_mtim};
  if (::fchmod(made->get(), st.st_mode & 07777) != 0 || ::futimens(made->get(), times) != 0)
    return fail_errno(to, "cannot set the mode");
  return {};
}

/// Files on the root's own file system, as it counts them itself (folders too); 0 where it does not
/// (btrfs). To walk through millions of them would take minutes.
std::uint64_t count_files() {
  struct statvfs st {};
  return ::statvfs("/", &st) == 0 && st.f_files > st.f_ffree ? st.f_files - st.f_ffree : 0;
}

}  // namespace

void UsedFiles::begin_run(const trace::RunHeader&, int) {}

void UsedFiles::event(const trace::Event& event) {
  if (event.error != 0) return;
  const std::string path(event.resolved.empty() ? event.path : event.resolved);
  switch (event.op) {
    case Op::create:
    case Op::mkdir:
    case Op::symlink:
    case Op::mknod:
      created_.insert(path);
      break;
    case Op::rename:
    case Op::link:
      created_.insert(std::string(event.target));
      break;
    case Op::open:
    case Op::exec:
    case Op::stat:
    case Op::access:
    case Op::readlink:
    case Op::opendir:
      if (!path.empty() && !created_.contains(path)) paths_.insert(path);
      break;
    default:
      break;
  }
}

Result<SlimResult> copy_slim(const UsedFiles& used, const std::string& target) {
  std::error_code error;
  fs::create_directories(target, error);
  if (error) return fail_errno(target, "cannot make the folder", error.value());
  if (!fs::is_empty(target, error))
    return fail_errno(target, "cannot copy into it", ENOTEMPTY, "name a new folder");
  SlimResult out;
  for (const auto& path : used.paths()) {
    struct stat st {};
    if (::lstat(path.c_str(), &st) != 0) continue;
    const std::string to = target + path;
    if (auto made = make_folders(path, target); !made) return fail(std::move(made.error()));
    if (S_ISLNK(st.st_mode)) {
      fs::copy_symlink(path, to, error);
      if (error) return fail_errno(to, "cannot copy the link", error.value());
      ++out.links;
    } else if (S_ISREG(st.st_mode)) {
      if (auto copied = copy_file(path, to, st); !copied) return fail(std::move(copied.error()));
      ++out.files;
      out.bytes += static_cast<std::uint64_t>(st.st_size);
    }
  }
  // What programs expect to find empty: the kernel's own folders and those for temporary files.
  for (const char* name : {"/proc", "/sys", "/dev", "/run", "/tmp"})
    if (fs::is_directory(name, error)) (void)make_folders(name, target);
  out.all_files = count_files();
  return out;
}

}  // namespace heddle
