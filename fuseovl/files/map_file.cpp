// SPDX-License-Identifier: MIT
#include "fuseovl/files/map_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <vector>

#include "base/file_systems.hpp"
#include "base/open_regular.hpp"
#include "base/try.hpp"
#include "fuseovl/files/file_work.hpp"
#include "fuseovl/files/origins.hpp"
#include "fuseovl/session/shared.hpp"
#include "ship/bundle/bundle_file.hpp"

namespace heddle {
namespace {

using std::chrono::milliseconds;

/// A longer file is no map.
constexpr std::size_t kMostBytes = std::size_t{1} << 30;
constexpr std::uint64_t kHead = bundle_format::kHeadSize;
constexpr std::uint64_t kFooter = bundle_format::kFooterSize;

/// The bytes from `begin` to `end`, to the same place. 0, or an errno.
int copy(int from, int to, std::uint64_t begin, std::uint64_t end, const WorkPlace& place) {
  std::vector<char> buffer(std::min<std::size_t>(end - begin, 1U << 20));
  if (::lseek(to, static_cast<off_t>(begin), SEEK_SET) < 0) return errno;
  for (auto done = begin; done < end;) {
    const std::span piece(buffer.data(), std::min<std::size_t>(buffer.size(), end - done));
    const auto got = read_at(from, piece, static_cast<off_t>(done), MayBlock::yes);
    if (!got) return got.error();
    if (*got == 0) break;
    if (auto written = write_all(to, {piece.data(), *got}, "copy"); !written)
      return written.error().code();
    done += *got;
    place.moves_on();
  }
  return 0;
}

/// Of a bundle only head, index and footer, with a hole between them. 0, or an errno.
int copy(int from, int to, const struct stat& status, const WorkPlace& place) {
  if (!S_ISREG(status.st_mode)) return ENOEXEC;
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (!is_bundle(from)) return size > kMostBytes ? ENOEXEC : copy(from, to, 0, size, place);
  // Without an index its reader says what is wrong.
  const auto footer = read_bundle_footer(from, {});
  const auto index = footer ? footer->offset : size - std::min(size, kFooter);
  if (const int code = copy(from, to, 0, std::min(size, kHead), place)) return code;
  return copy(from, to, index, size, place);
}

/// A regular file that only root and this user may write to, without waiting for a file server. The
/// writer of another's file could keep the readers waiting.
Fd open_own(const std::string& path) {
  const Fd handle = LocalRoot().open(path, O_PATH);
  struct stat status {};
  const bool is_ours = handle && ::fstat(handle.get(), &status) == 0 &&
                       (status.st_uid == 0 || status.st_uid == ::geteuid()) &&
                       (status.st_mode & 022) == 0;
  auto file = is_ours ? open_regular_at(handle.get(), path) : Result<Fd>(Fd());
  return file ? std::move(*file) : Fd();
}

/// Of the descriptor `open`, or where that is -1, of the file at `path`.
Result<MapFile> copy_of(std::string path, int open, milliseconds limit) {
  struct Found {
    int code = 0;
    struct stat status {};
  };
  const Shared<Found> found;
  Fd bytes(::memfd_create("heddle-map", MFD_CLOEXEC));
  if (!bytes) return fail_errno(path, "cannot be read");
  std::error_code none;
  const auto whole = std::filesystem::absolute(path, none).string();  // the child is elsewhere
  const auto read = [&](Result<Fd> own, WorkPlace& place) {
    const int file = open >= 0 ? open : own ? own->get() : -1;
    found->code = !own ? own.error().code()
                  : ::fstat(file, &found->status) != 0
                      ? errno
                      : copy(file, bytes.get(), found->status, place);
    if (found->code == 0 && own && *own && is_bundle(bytes.get())) place.give(std::move(*own));
  };
  FileWork work{
      .limit = limit,
      .work = [&](std::size_t,
                  WorkPlace& place) { read(open >= 0 ? Fd() : open_regular(whole), place); },
      .path_of = [&](std::size_t) { return std::string_view(whole); },
      .try_in_caller =
          [&](std::size_t, WorkPlace& place) {
            Fd own = open >= 0 ? Fd() : open_own(whole);
            return own && (read(std::move(own), place), true);
          },
      .kept = {bytes.get()}};
  if (open >= 0) work.kept.push_back(open);
  auto result = std::move(work_on_files(1, work)[0]);
  if (result.state != WorkResult::State::done)
    return fail(Error(path, "cannot be read", not_answered_for(limit),
                      "--origin-timeout says how long to wait")
                    .because(Cause::silent));
  if (found->code != 0) return fail(map_open_error(path, found->code));
  MapFile out{std::move(path), std::move(bytes), found->status, Fd()};
  if (!is_bundle(out.content.get())) return out;
  out.bundle = open < 0 ? std::move(result.file) : Fd(::fcntl(open, F_DUPFD_CLOEXEC, 0));
  if (!out.bundle) return fail_errno(out.path, "cannot be read", EMFILE);
  return out;
}

}  // namespace

Result<MapFile> MapFile::of(int open, milliseconds limit) {
  // For messages only: the name may be another file's by now.
  std::error_code none;
  const auto link = "/proc/self/fd/" + std::to_string(open);
  return copy_of(std::filesystem::read_symlink(link, none).string(), open, limit);
}

Result<MapFile> MapFile::find(std::string path, milliseconds limit) {
  return copy_of(std::move(path), -1, limit);
}

Result<MapContent> MapFile::read_all() const {
  auto reader = TRY(read());
  return reader.read_all();
}

Result<ContentHash> MapFile::hash() const {
  auto reader = TRY(read());
  return reader.id();
}

}  // namespace heddle
