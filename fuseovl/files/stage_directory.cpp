// SPDX-License-Identifier: MIT
#include "fuseovl/files/stage_directory.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <sstream>

#include "base/file_stamp.hpp"
#include "base/try.hpp"
#include "fuseovl/files/origins.hpp"
#include "fuseovl/mount/warm_up.hpp"

namespace heddle {
namespace {

/// A directory of this user below `parent`, which is made if it is missing.
Result<Fd> private_directory(int parent, const std::string& name, const std::string& shown) {
  if (::mkdirat(parent, name.c_str(), 0700) != 0 && errno != EEXIST)
    return fail_errno(shown, "cannot use for staging");
  Fd directory(::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status {};
  if (!directory || ::fstat(directory.get(), &status) != 0)
    return fail_errno(shown, "cannot use for staging");
  if (status.st_uid != ::geteuid())
    return fail(shown, "cannot use for staging", "it belongs to another user");
  if ((status.st_mode & 077) != 0)
    return fail(shown, "cannot use for staging", "others may use it",
                "its mode has to be 0700: what is in it is trusted");
  if (::faccessat(directory.get(), ".", W_OK, AT_EACCESS) != 0)
    return fail_errno(shown, "cannot use for staging");
  return directory;
}

/// `name` in `directory`, locked; nullopt: another process has locked it.
Result<std::optional<Fd>> create_locked(int directory, const std::string& name) {
  for (;;) {
    Fd file(::openat(directory, name.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file) return fail_errno(name, "cannot write");
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return std::optional<Fd>();
      return fail_errno(name, "cannot lock");
    }
    // The process that held the lock may have renamed or removed the file.
    struct stat mine {
    }, there{};
    if (::fstat(file.get(), &mine) != 0) return fail_errno(name, "cannot stat");
    if (::fstatat(directory, name.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0 &&
        file_id(mine) == file_id(there))
      return std::optional(std::move(file));
  }
}

/// Calls `call` with each file of `directory` that a process has locked; removes the others. One
/// that create_locked() has just made is made again.
void for_each_locked(int directory, const std::function<void(const Fd&)>& call) {
  for_each_name(directory, [&](const std::string& name) {
    const Fd file(::openat(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    if (!file) return;
    if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0)
      ::unlinkat(directory, name.c_str(), 0);
    else
      call(file);
  });
}

/// False: `from` cannot be read, or is shorter.
Result<bool> copy_bytes(int from, int to, std::uint64_t size) {
  std::vector<char> buffer(std::min<std::uint64_t>(size, 1U << 20));
  for (std::uint64_t done = 0; done < size;) {
    const auto want = std::min<std::uint64_t>(buffer.size(), size - done);
    const auto got = read_at(from, {buffer.data(), want}, static_cast<off_t>(done), MayBlock::yes);
    if (!got || *got != want) return false;
    TRY(write_all(to, {buffer.data(), want}, "copy"));
    done += want;
  }
  return true;
}

/// Makes `directory` and its missing parents: 0, or the errno of the first that cannot be made. Not
/// with the mode of the umask: open() refuses what a group may write to. Where another user may
/// write above it, the worst is empty directories at a place of theirs.
int make_with_parents(const std::string& directory) {
  int error = 0;
  for (auto end = directory.find('/', 1);; end = directory.find('/', end + 1)) {
    if (::mkdir(directory.substr(0, end).c_str(), 0755) != 0 && errno != EEXIST && error == 0)
      error = errno;
    if (end == directory.npos) return error;
  }
}

}  // namespace

Result<StageDirectory> StageDirectory::open(const std::string& directory) {
  const auto look = [&] { return Fd(::open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)); };
  auto parent = look();
  if (!parent && errno == ENOENT) {
    if (const int error = make_with_parents(directory); error != 0)
      return fail_errno(directory, "cannot use for staging", error);
    parent = look();
  }
  struct stat status {};
  if (!parent || ::fstat(parent.get(), &status) != 0)
    return fail_errno(directory, "cannot use for staging");
  // Only the owner may rename a directory in it, as in /tmp.
  if ((status.st_mode & 022) != 0 && !(status.st_mode & S_ISVTX))
    return fail(directory, "cannot use for staging", "others may rename what is in it",
                "chmod +t, or take a directory of your own");
  if (status.st_uid != 0 && status.st_uid != ::geteuid())
    return fail(directory, "cannot use for staging", "it belongs to another user");
  StageDirectory out;
  const std::string name = "heddle-" + std::to_string(::geteuid());
  out.path_ = directory + "/" + name;
  const Fd own = TRY(private_directory(parent.get(), name, out.path_));
  for (const auto& [part, fd] :
       {std::pair("objects", &out.objects_), std::pair("copying", &out.copying_),
        std::pair("users", &out.users_)})
    *fd = TRY(private_directory(own.get(), part, out.path_ + "/" + part));
  return out;
}

Result<Fd> StageDirectory::join() const {
  for (unsigned i = 0;; ++i) {
    auto file =
        TRY(create_locked(users_.get(), std::to_string(::getpid()) + "-" + std::to_string(i)));
    if (!file) continue;  // another mount of this process, or a process of another PID namespace
    // A dead process may have left claims in it.
    if (::ftruncate(file->get(), 0) != 0) return fail_errno(path_, "cannot write");
    return std::move(*file);
  }
}

/// Held while claims are read and written. Opened anew, as a forked process shares an open file's
/// lock.
Result<Fd> StageDirectory::lock() const {
  Fd out(::openat(users_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!out || ::flock(out.get(), LOCK_EX) != 0) return fail_errno(path_, "cannot lock");
  return out;
}

/// The claims of all mounts but `except`.
StageDirectory::Claims StageDirectory::claimed(const Fd* except) const {
  struct stat own {};
  if (except) (void)::fstat(except->get(), &own);
  Claims out;
  for_each_locked(users_.get(), [&](const Fd& file) {
    struct stat status {};
    if (except && ::fstat(file.get(), &status) == 0 && file_id(status) == file_id(own)) return;
    std::istringstream lines(read_all(file.get(), "users").value_or(""));
    std::uint64_t size = 0;
    for (std::string hash; lines >> hash >> size;) out[hash] = size;
  });
  return out;
}

Result<std::size_t> StageDirectory::claim(const Fd& user, std::span<const Item> items,
                                          std::uint64_t budget) const {
  const Fd one_at_a_time = TRY(lock());
  for_each_locked(copying_.get(), [](const Fd&) {});  // removes those of dead processes
  auto claims = claimed(&user);
  std::uint64_t sum = 0;
  for (const auto& [hash, size] : claims) sum += size;
  std::string lines;
  std::size_t count = 0;
  for (; count < items.size(); ++count) {
    const auto name = items[count].hash.hex();
    if (claims.count(name) == 0) {
      if (items[count].size > budget || sum > budget - items[count].size) break;
      sum += items[count].size;
      claims[name] = items[count].size;
    }
    lines += name + " " + std::to_string(items[count].size) + "\n";
  }
  if (::ftruncate(user.get(), 0) != 0) return fail_errno(path_, "cannot write");
  TRY(write_all(user.get(), lines, path_));
  (void)remove_unclaimed(claims, budget - std::min(sum, budget), 0);
  return count;
}

bool StageDirectory::make_room(std::uint64_t bytes) const {
  const auto one_at_a_time = lock();
  return one_at_a_time && remove_unclaimed(claimed(nullptr), UINT64_MAX, bytes);
}

/// Removes the least recently used first, until at most `most` bytes are left and `least_freed`
/// bytes are free.
bool StageDirectory::remove_unclaimed(const Claims& claims, std::uint64_t most,
                                      std::uint64_t least_freed) const {
  std::multimap<std::int64_t, std::pair<std::string, std::uint64_t>> by_age;
  std::uint64_t sum = 0;
  for_each_name(objects(), [&](const std::string& name) {
    struct stat status {};
    if (claims.count(name) != 0 ||
        ::fstatat(objects(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0)
      return;
    const auto size = static_cast<std::uint64_t>(status.st_size);
    by_age.emplace(nanoseconds(status.st_atim), std::pair(name, size));
    sum += size;
  });
  std::uint64_t freed = 0;
  for (const auto& [used, copy] : by_age) {
    if (sum - freed <= most && freed >= least_freed) break;
    if (::unlinkat(objects(), copy.first.c_str(), 0) == 0) freed += copy.second;
  }
  return freed > 0;
}

std::optional<FileStamp> StageDirectory::verify(const Item& item) const {
  const auto name = item.hash.hex();
  const Fd file(::openat(objects(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat before {
  }, after{};
  if (!file || ::fstat(file.get(), &before) != 0) return std::nullopt;
  if (S_ISREG(before.st_mode) && before.st_uid == ::geteuid() &&
      static_cast<std::uint64_t>(before.st_size) == item.size) {
    const auto found = hash_file(file.get(), name);
    if (!found) return std::nullopt;
    if (*found == item.hash && ::fstat(file.get(), &after) == 0 &&
        before.st_size == after.st_size &&
        file_stamp(before).mtime_ns == file_stamp(after).mtime_ns) {
      // File systems may be mounted noatime or relatime.
      constexpr timespec now_and_unchanged[] = {{0, UTIME_NOW}, {0, UTIME_OMIT}};
      (void)::futimens(file.get(), now_and_unchanged);
      return file_stamp(after);
    }
  }
  ::unlinkat(objects(), name.c_str(), 0);
  return std::nullopt;
}

Result<StageDirectory::Copy> StageDirectory::copy(int source, const Item& item) const {
  const auto name = item.hash.hex();
  const auto file = TRY(create_locked(copying_.get(), name));
  if (!file) return Copy{};
  auto copied = fill(*file, source, item);
  if (copied && copied->how == Copied::done &&
      ::renameat(copying_.get(), name.c_str(), objects(), name.c_str()) == 0)
    return copied;
  if (copied && copied->how == Copied::done) copied = fail_errno(path_, "cannot rename");
  ::unlinkat(copying_.get(), name.c_str(), 0);
  return copied;
}

Result<StageDirectory::Copy> StageDirectory::fill(const Fd& file, int source,
                                                  const Item& item) const {
  struct stat status {};
  // The process that held the lock before may have made it.
  if (::fstatat(objects(), item.hash.hex().c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0)
    return Copy{};
  if (::ftruncate(file.get(), 0) != 0) return fail_errno(path_, "cannot write");
  auto copied = copy_bytes(source, file.get(), item.size);
  if (!copied) return fail_errno(path_, "cannot write", copied.error().code());
  if (!*copied) return Copy{Copied::no, {}};
  const auto found = TRY(hash_file(file.get(), path_));
  if (found != item.hash) return Copy{Copied::no, {}};
  if (::fstat(file.get(), &status) != 0) return fail_errno(path_, "cannot stat");
  return Copy{Copied::done, file_stamp(status)};
}

}  // namespace heddle
