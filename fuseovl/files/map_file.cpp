// SPDX-License-Identifier: MIT
#include "fuseovl/files/map_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/content_hash.hpp"
#include "base/file_systems.hpp"
#include "base/open_regular.hpp"
#include "base/try.hpp"
#include "fuseovl/files/file_work.hpp"
#include "fuseovl/files/origins.hpp"
#include "fuseovl/files/read_at.hpp"
#include "fuseovl/session/shared.hpp"
#include "resolver/map/map_format.hpp"

namespace heddle {
namespace {

using std::chrono::milliseconds;

/// How much of a file has to be read to know it. What only is a file may be of any size.
std::size_t known_by(int file, std::size_t size) {
  constexpr std::size_t kHead = 4096;
  char end[map_format::kTrailerSize];
  if (size < sizeof(end)) return size;
  const auto read = read_at(file, end, static_cast<off_t>(size - sizeof(end)), MayBlock::yes);
  const bool is_map =
      read && *read == sizeof(end) && map_format::decode_trailer({end, sizeof(end)});
  return is_map ? size : std::min(size, kHead);
}

/// errno, 0 when all is well.
int copy(int from, int to, std::size_t size, const WorkPlace& place) {
  const auto known = known_by(from, size);
  std::vector<char> buffer(std::min<std::size_t>(known, 1U << 20));
  for (std::size_t done = 0; done < known;) {
    const std::span<char> part(buffer.data(), std::min(buffer.size(), known - done));
    const auto got = read_at(from, part, static_cast<off_t>(done), MayBlock::yes);
    if (!got) return got.error();
    if (*got == 0) break;
    if (auto written = write_all(to, {part.data(), *got}, "copy"); !written)
      return written.error().code();
    done += *got;
    place.moves_on();
  }
  return 0;
}

}  // namespace

Result<MapFile> MapFile::read_within(std::string path, int open, milliseconds limit) {
  struct Found {
    int code = 0;
    struct stat status {};
  };
  const Shared<Found> found;
  Fd bytes(::memfd_create("heddle-map", MFD_CLOEXEC));
  if (!bytes) return fail_errno(path, "cannot be read");
  std::error_code none;
  const auto whole = std::filesystem::absolute(path, none).string();  // the child is elsewhere
  FileWork work{.limit = limit,
                .work =
                    [&](std::size_t, WorkPlace& place) {
                      Result<Fd> own = Fd();
                      if (open < 0) own = open_regular(whole);
                      const int file = open >= 0 ? open : own ? own->get() : -1;
                      found->code = !own                                 ? own.error().code()
                                    : ::fstat(file, &found->status) != 0 ? errno
                                    : !S_ISREG(found->status.st_mode)
                                        ? ENOEXEC
                                        : copy(file, bytes.get(), found->status.st_size, place);
                    },
                .path_of = [&](std::size_t) { return std::string_view(whole); },
                .kept = {bytes.get()}};
  if (open >= 0) work.kept.push_back(open);
  if (work_on_files(1, work)[0].state != WorkResult::State::done)
    return fail(Error(path, "cannot be read", not_answered_for(limit),
                      "--origin-timeout says how long to wait")
                    .because(Cause::silent));
  if (found->code != 0) return fail(map_open_error(path, found->code));
  return MapFile(std::move(path), std::move(bytes), found->status);
}

Result<MapFile> MapFile::of(int open, milliseconds limit) {
  // For messages; it may be the name of another file by now.
  std::error_code none;
  const auto link = "/proc/self/fd/" + std::to_string(open);
  return read_within(std::filesystem::read_symlink(link, none).string(), open, limit);
}

Result<MapFile> MapFile::find(const std::string& path, milliseconds limit) {
  return read_within(path, -1, limit);
}

Result<std::string> MapFile::bytes() const {
  if (::lseek(bytes_.get(), 0, SEEK_SET) < 0) return fail_errno(path_, "cannot read");
  return read_all(bytes_.get(), path_);
}

Result<ContentHash> MapFile::hash() const { return hash_file(bytes_.get(), path_); }

}  // namespace heddle
