// SPDX-License-Identifier: MIT
#include "fuseovl/files/map_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <vector>

#include "base/content_hash.hpp"
#include "base/open_regular.hpp"
#include "fuseovl/files/bounded_work.hpp"
#include "fuseovl/files/local_files.hpp"
#include "fuseovl/files/origins.hpp"
#include "fuseovl/files/read_at.hpp"
#include "fuseovl/session/shared.hpp"
#include "resolver/map/map_format.hpp"

namespace heddle {
namespace {

using std::chrono::milliseconds;

/// As a process in another folder, such as do_within()'s, would call it.
std::string absolute(const std::string& path) {
  std::error_code none;
  const auto whole = std::filesystem::absolute(path, none);
  return none ? path : whole.string();
}

/// EXDEV: it may be another's.
Result<Fd> open_local(const std::string& path) {
  auto file = LocalFiles().open_regular(absolute(path));
  if (!file) return fail(map_open_error(path, file.error().code()));
  return file;
}

Error silent(const std::string& path, milliseconds limit) {
  return Error::with_code(ETIMEDOUT, path, "cannot be read", not_answered_for(limit),
                          "--origin-timeout says how long to wait");
}

Result<Fd> copy_of(int open, const std::string& path) {
  Fd copy(::fcntl(open, F_DUPFD_CLOEXEC, 0));
  if (!copy) return fail_errno(path, "cannot keep");
  return copy;
}

/// By a process that may be left behind.
Result<Fd> open_within(const std::string& path, milliseconds limit) {
  const Shared<int> code;
  const auto whole = absolute(path);
  auto results = do_within(limit, 1, [&](std::size_t, WorkPlace& place) {
    auto file = open_regular(whole);
    *code = file ? 0 : file.error().code();
    if (file) place.give(std::move(*file));
  });
  if (results[0].state != WorkResult::State::done) return fail(silent(path, limit));
  if (*code != 0) return fail(map_open_error(path, *code));
  return std::move(results[0].file);
}

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
int copy(int from, int to, struct stat& status, WorkPlace& place) {
  if (::fstat(from, &status) != 0) return errno;
  if (!S_ISREG(status.st_mode)) return 0;  // its reader says what it is not
  const auto size = known_by(from, static_cast<std::size_t>(status.st_size));
  std::vector<char> buffer(std::size_t{1} << 20);
  for (std::size_t at = 0; at < size; place.moves_on()) {
    const auto piece = std::span(buffer.data(), std::min(buffer.size(), size - at));
    const auto read = read_at(from, piece, static_cast<off_t>(at), MayBlock::yes);
    if (!read) return read.error();
    if (*read == 0) return 0;
    if (const auto written = write_all(to, {buffer.data(), *read}, "map"); !written)
      return written.error().code();
    at += *read;
  }
  return 0;
}

/// What a process that may be left behind has found.
struct Found {
  int code = 0;
  struct stat status {};
};

}  // namespace

Result<MapFile> MapFile::of(int open, milliseconds limit) {
  // For messages; it may be the name of another file by now.
  std::error_code none;
  auto name = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(open), none).string();
  auto file = copy_of(open, name);
  if (!file) return fail(std::move(file.error()));
  MapFile out(std::move(name), std::move(*file));
  if (auto copied = out.copy_within(limit); !copied) return fail(std::move(copied.error()));
  out.file_.reset();
  return out;
}

Result<MapFile> MapFile::find(const std::string& path, milliseconds limit) {
  auto local = open_local(path);
  if (local) {
    MapFile out(path, std::move(*local));
    if (::fstat(out.file_.get(), &out.status_) != 0) return fail_errno(path, "cannot stat");
    return out;
  }
  if (local.error().code() != EXDEV) return fail(std::move(local.error()));
  auto file = open_within(path, limit);
  if (!file) return fail(std::move(file.error()));
  MapFile out(path, std::move(*file));
  if (auto copied = out.copy_within(limit); !copied) return fail(std::move(copied.error()));
  return out;
}

Result<void> MapFile::copy_within(milliseconds limit) {
  copy_ = Fd(::memfd_create("heddle-map", MFD_CLOEXEC));
  if (!copy_) return fail_errno(path_, "cannot be read");
  const Shared<Found> found;
  const auto results = do_within(limit, 1,
                                 [&](std::size_t, WorkPlace& place) {
                                   found->code =
                                       copy(file_.get(), copy_.get(), found->status, place);
                                 },
                                 {copy_.get(), file_.get()});
  if (results[0].state != WorkResult::State::done) return fail(silent(path_, limit));
  if (found->code != 0) return fail_errno(path_, "cannot read", found->code);
  status_ = found->status;
  return {};
}

Result<ContentHash> MapFile::hash() const { return hash_file(readable(), path_); }

}  // namespace heddle
