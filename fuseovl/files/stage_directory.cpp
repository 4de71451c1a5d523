// SPDX-License-Identifier: MIT
#include "fuseovl/files/stage_directory.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "base/try.hpp"
#include "fuseovl/files/read_at.hpp"

namespace heddle {
namespace {

/// A directory of ours below `parent`, made when it is not there.
Result<Fd> private_directory(int parent, const std::string& name, const std::string& shown) {
  if (::mkdirat(parent, name.c_str(), 0700) != 0 && errno != EEXIST)
    return fail_errno(shown, "cannot stage there");
  Fd directory(::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status {};
  if (!directory || ::fstat(directory.get(), &status) != 0)
    return fail_errno(shown, "cannot stage there");
  if (status.st_uid != ::geteuid())
    return fail(shown, "cannot stage there", "it belongs to another user");
  if ((status.st_mode & 077) != 0)
    return fail(shown, "cannot stage there", "others may use it",
                "its mode has to be 0700: what is in it is trusted");
  if (::faccessat(directory.get(), ".", W_OK, AT_EACCESS) != 0)
    return fail_errno(shown, "cannot stage there");
  return directory;
}

void for_each_name(int directory, const std::function<void(const std::string&)>& call) {
  Fd own(::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!own) return;
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::fdopendir(own.get()), ::closedir);
  if (!listing) return;
  (void)own.release();
  while (const dirent* entry = ::readdir(listing.get()))
    if (entry->d_name[0] != '.') call(entry->d_name);
}

/// `name` of `directory`, locked; nullopt: another process has it locked.
Result<std::optional<Fd>> create_locked(int directory, const std::string& name) {
  for (;;) {
    Fd file(::openat(directory, name.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file) return fail_errno(name, "cannot write");
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return std::optional<Fd>();
      return fail_errno(name, "cannot lock");
    }
    // Who had it until now has renamed or removed it: what is locked has to be what is there.
    struct stat mine {
    }, there{};
    if (::fstat(file.get(), &mine) != 0) return fail_errno(name, "cannot stat");
    if (::fstatat(directory, name.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0 &&
        file_id(mine) == file_id(there))
      return std::optional(std::move(file));
  }
}

/// A new file of `directory` that is named after this process, locked.
Result<Fd> create_own(int directory) {
  for (unsigned i = 0;; ++i) {
    const auto name = std::to_string(::getpid()) + "-" + std::to_string(i);
    auto file = TRY(create_locked(directory, name));
    // Else it is another's of ours, or of another process namespace.
    if (file) return std::move(*file);
  }
}

/// Calls with each file of `directory` that a living process has locked; removes the others. Were
/// one just being made, create_locked() makes another.
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

// So much is set aside at once: to look at a directory of thousands of copies for each file takes
// longer than most copies.
constexpr std::uint64_t kPiece = 64U << 20;

}  // namespace

Result<StageDirectory> StageDirectory::open(const std::string& directory) {
  const Fd parent(::open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  struct stat status {};
  if (!parent || ::fstat(parent.get(), &status) != 0)
    return fail_errno(directory, "cannot stage there");
  // Who may rename our directory in it could put another in its place: as in /tmp, only its owner
  // may.
  if ((status.st_mode & 022) != 0 && !(status.st_mode & S_ISVTX))
    return fail(directory, "cannot stage there", "others may rename what is in it",
                "chmod +t, or take a directory of your own");
  if (status.st_uid != 0 && status.st_uid != ::geteuid())
    return fail(directory, "cannot stage there", "it belongs to another user");
  StageDirectory out;
  const std::string name = "heddle-" + std::to_string(::geteuid());
  out.path_ = directory + "/" + name;
  const Fd own = TRY(private_directory(parent.get(), name, out.path_));
  for (const auto& [part, fd] :
       {std::pair("objects", &out.objects_), std::pair("copying", &out.copying_),
        std::pair("users", &out.users_), std::pair("rooms", &out.rooms_)})
    *fd = TRY(private_directory(own.get(), part, out.path_ + "/" + part));
  return out;
}

Result<Fd> StageDirectory::announce(std::span<const ContentHash> hashes) const {
  Fd file = TRY(create_own(users_.get()));
  std::string bytes;
  for (const auto& hash : hashes) bytes.append(hash.bytes.begin(), hash.bytes.end());
  TRY(write_all(file.get(), bytes, path_));
  if (::ftruncate(file.get(), static_cast<off_t>(bytes.size())) != 0)
    return fail_errno(path_, "cannot write");
  return file;
}

std::unordered_set<std::string> StageDirectory::announced() const {
  std::unordered_set<std::string> out;
  for_each_locked(users_.get(), [&](const Fd& file) {
    const auto bytes = read_all(file.get(), "users").value_or("");
    ContentHash hash;
    for (std::size_t at = 0; at + hash.bytes.size() <= bytes.size(); at += hash.bytes.size()) {
      std::memcpy(hash.bytes.data(), bytes.data() + at, hash.bytes.size());
      out.insert(hash.hex());
    }
  });
  return out;
}

Result<Fd> StageDirectory::lock_rooms() const {
  // A lock belongs to an open file, and a forked process has ours in common with us.
  Fd own(::openat(rooms_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!own || ::flock(own.get(), LOCK_EX) != 0) return fail_errno(path_ + "/rooms", "cannot lock");
  return own;
}

Result<Fd> StageDirectory::make_room_file() const {
  Fd file = TRY(create_own(rooms_.get()));
  if (::ftruncate(file.get(), 0) != 0) return fail_errno(path_, "cannot write");
  return file;
}

std::uint64_t StageDirectory::set_aside() const {
  std::uint64_t sum = 0;
  for_each_locked(rooms_.get(), [&](const Fd& file) {
    struct stat status {};
    if (::fstat(file.get(), &status) == 0) sum += static_cast<std::uint64_t>(status.st_size);
  });
  return sum;
}

std::optional<FileStamp> StageDirectory::verify(const ContentHash& hash, std::uint64_t size) const {
  const auto name = hash.hex();
  const Fd file(::openat(objects(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat before {
  }, after{};
  if (!file || ::fstat(file.get(), &before) != 0) return std::nullopt;
  if (S_ISREG(before.st_mode) && before.st_uid == ::geteuid() &&
      static_cast<std::uint64_t>(before.st_size) == size) {
    const auto found = hash_file(file.get(), name);
    if (!found) return std::nullopt;
    if (*found == hash && ::fstat(file.get(), &after) == 0 && before.st_size == after.st_size &&
        file_stamp(before).mtime_ns == file_stamp(after).mtime_ns) {
      // Noted by hand: file systems are mounted noatime, and relatime is coarse.
      constexpr timespec now_and_unchanged[] = {{0, UTIME_NOW}, {0, UTIME_OMIT}};
      (void)::futimens(file.get(), now_and_unchanged);
      return file_stamp(after);
    }
  }
  ::unlinkat(objects(), name.c_str(), 0);
  return std::nullopt;
}

Result<StageDirectory::Copy> StageDirectory::copy(int source, const ContentHash& hash,
                                                  std::uint64_t size) const {
  const auto name = hash.hex();
  const auto file = TRY(create_locked(copying_.get(), name));
  if (!file) return Copy{};
  auto copied = fill(*file, source, hash, size);
  if (copied && copied->how == Copied::done &&
      ::renameat(copying_.get(), name.c_str(), objects(), name.c_str()) == 0)
    return copied;
  if (copied && copied->how == Copied::done) copied = fail_errno(path_, "cannot rename");
  ::unlinkat(copying_.get(), name.c_str(), 0);
  return copied;
}

Result<StageDirectory::Copy> StageDirectory::fill(const Fd& file, int source,
                                                  const ContentHash& hash,
                                                  std::uint64_t size) const {
  struct stat status {};
  // Who had the lock before may have made it.
  if (::fstatat(objects(), hash.hex().c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) return Copy{};
  if (::ftruncate(file.get(), 0) != 0) return fail_errno(path_, "cannot write");
  auto copied = copy_bytes(source, file.get(), size);
  if (!copied) return fail_errno(path_, "cannot write", copied.error().code());
  if (!*copied) return Copy{Copied::no, {}};
  const auto found = TRY(hash_file(file.get(), path_));
  if (found != hash) return Copy{Copied::no, {}};
  if (::fstat(file.get(), &status) != 0) return fail_errno(path_, "cannot stat");
  return Copy{Copied::done, file_stamp(status)};
}

std::vector<StageDirectory::Entry> StageDirectory::entries() const {
  std::vector<Entry> out;
  for_each_name(objects(), [&](const std::string& name) {
    struct stat status {};
    if (::fstatat(objects(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return;
    out.push_back({status.st_atim.tv_sec * INT64_C(1000000000) + status.st_atim.tv_nsec,
                   static_cast<std::uint64_t>(status.st_size), name});
  });
  return out;
}

std::uint64_t StageDirectory::used() const {
  std::uint64_t sum = 0;
  for (const auto& entry : entries()) sum += entry.size;
  return sum;
}

StageDirectory::Plan StageDirectory::plan(std::uint64_t budget, std::uint64_t wanted) const {
  auto all = entries();
  std::uint64_t sum = wanted;
  for (const auto& entry : all) sum += entry.size;
  Plan out;
  if (sum <= budget) return out;
  const auto in_use = announced();
  std::sort(all.begin(), all.end(),
            [](const Entry& a, const Entry& b) { return a.used_ns < b.used_ns; });
  for (auto& entry : all) {
    if (sum <= budget) break;
    if (in_use.count(entry.name) != 0) continue;
    sum -= entry.size;
    out.goes.push_back(std::move(entry));
  }
  out.fits = sum <= budget;
  return out;
}

bool StageDirectory::could_hold(std::uint64_t budget, std::uint64_t wanted) const {
  return plan(budget, wanted).fits;
}

bool StageDirectory::trim(std::uint64_t budget, std::uint64_t wanted) const {
  const auto planned = plan(budget, wanted);
  if (wanted > 0 && !planned.fits) return false;
  for (const auto& entry : planned.goes)
    if (::unlinkat(objects(), entry.name.c_str(), 0) != 0 && errno != ENOENT) return false;
  return planned.fits;
}

void StageDirectory::sweep() const {
  for (const Fd* directory : {&users_, &rooms_, &copying_})
    for_each_locked(directory->get(), [](const Fd&) {});
}

Result<StageRoom::Got> StageRoom::take(std::uint64_t size) {
  if (size <= left_) return Got::yes;
  if (!file_) file_ = TRY(directory_.make_room_file());
  const Fd lock = TRY(directory_.lock_rooms());
  set(0);
  const auto others = directory_.set_aside();
  for (const auto wanted : {std::max(size, std::min(kPiece, budget_ / 4)), size}) {
    if (!directory_.trim(budget_, others + wanted)) continue;
    set(wanted);
    return Got::yes;
  }
  return others > 0 && directory_.could_hold(budget_, size) ? Got::later : Got::no;
}

void StageRoom::used(std::uint64_t size) { set(left_ - std::min(left_, size)); }

void StageRoom::set(std::uint64_t size) {
  if (file_) (void)::ftruncate(file_.get(), static_cast<off_t>(size));
  left_ = size;
}

}  // namespace heddle
