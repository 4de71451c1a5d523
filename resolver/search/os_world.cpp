// SPDX-License-Identifier: MIT
#include "resolver/search/os_world.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <set>

#include "base/elf_file.hpp"
#include "base/open_regular.hpp"
#include "base/task_pool.hpp"
#include "base/try.hpp"

namespace heddle {

namespace {

/// With more names looked up in one directory asked() lists the directory instead: a program with
/// hundreds of RPATH directories looks for each library in each of them.
constexpr std::size_t kMostNames = 64;
/// Likewise for the names in all directories.
constexpr std::size_t kMostNamesInAll = 8192;
/// A cache of 100,000 libraries is 15 MiB, the data of an MPI library 4 MiB.
constexpr std::size_t kLargestRead = std::size_t{64} << 20;

/// getdents64's records (getdents(2)); <dirent.h> has no name for the raw form.
struct RawEntry {
  std::uint64_t ino;
  std::int64_t off;
  unsigned short length;
  unsigned char type;
  char name[1];
};

}  // namespace

OsWorld::OsWorld(FactsSource& source)
    : source_(&source), directories_{{{}, {ENOENT, false}}}, listing_{kNothing}, holds_(2, 0) {}

Result<OsWorld> OsWorld::below(FactsSource& source, const std::string& root) {
  OsWorld world(source);
  world.root_ = TRY(open_file(root, O_PATH | O_DIRECTORY));
  return world;
}

Result<Fd> OsWorld::open_unnoted(const std::string& path, int flags) const {
  const std::string& name = path.empty() ? std::string(".") : path;
  if (!root_) return open_file(name, flags);
  return open_in_root(root_.get(), name, flags, 0);
}

void OsWorld::note_opened(const std::string& path) {
  if (root_) opened_.insert(path.empty() ? "." : path);
}

Result<Fd> OsWorld::open(const std::string& path, int flags) {
  note_opened(path);
  return open_unnoted(path, flags);
}

Result<Fd> OsWorld::open_regular(const std::string& path) {
  if (!root_) return heddle::open_regular(path);
  opened_.insert(path);
  return open_regular_in(root_.get(), path);
}

Result<std::string> OsWorld::outside_path(const std::string& path) {
  const Fd fd = TRY(open(path, O_PATH));
  const auto link = "/proc/self/fd/" + std::to_string(fd.get());
  std::array<char, PATH_MAX> target;
  const auto length = ::readlink(link.c_str(), target.data(), target.size());
  if (length <= 0 || target[0] != '/') return fail_errno(path, "cannot tell where it lies");
  return std::string(target.data(), static_cast<std::size_t>(length));
}

World::DirId OsWorld::add(const std::string& path, const ReadDirectory& read) {
  auto listing = read.state.is_directory ? kUnlisted : kNothing;
  if (read.is_listed) {
    // One listing for all paths to a directory: /lib and /usr/lib are mostly the same.
    const auto [known, is_new] = by_id_.try_emplace(read.stamp->id, kUnlisted);
    if (is_new) {
      known->second = static_cast<NameIndex::ListingId>(holds_.size());
      holds_.push_back(0);
      for (const auto& text : read.names) {
        const EntryName name(text);
        names_.add(known->second, name);
        if (name.hash == wanted_hash_ && name.text == wanted_) holds_[known->second] = round_;
      }
    }
    listing = known->second;
  }
  const auto id = static_cast<DirId>(directories_.size());
  by_path_.emplace(path, id);
  directories_.push_back({path, read.state, read.stamp});
  listing_.push_back(listing);
  return id;
}

namespace {

/// False: incomplete, so that each name is to be probed.
bool list_names(int fd, std::vector<std::string>& names) {
  alignas(RawEntry) thread_local std::array<char, 65536> buffer;
  for (;;) {
    const long got = ::syscall(SYS_getdents64, fd, buffer.data(), buffer.size());
    if (got <= 0) return got == 0;
    for (long at = 0; at < got;) {
      RawEntry entry;
      std::memcpy(&entry, buffer.data() + at, offsetof(RawEntry, name));
      names.emplace_back(buffer.data() + at + offsetof(RawEntry, name));
      at += entry.length;
    }
  }
}

}  // namespace

OsWorld::ReadDirectory OsWorld::read_directory(const std::string& path) const {
  struct stat st {};
  if (const auto fd = open_unnoted(path, O_RDONLY | O_DIRECTORY);
      fd && ::fstat(fd->get(), &st) == 0) {
    ReadDirectory out{{}, true, file_stamp(st)};
    out.is_listed = list_names(fd->get(), out.names);
    return out;
  }
  // Unreadable, or no directory: O_PATH tells which.
  const auto bare = path.ends_with('/') && path.size() > 1 ? path.substr(0, path.size() - 1) : path;
  const auto handle = open_unnoted(bare, O_PATH);
  if (const int code = handle ? 0 : handle.error().code(); code != 0) {
    // A shortage of this process: its names are probed, which fails with an error.
    const bool shortage = code == EMFILE || code == ENFILE || code == ENOMEM;
    return shortage ? ReadDirectory{} : ReadDirectory{{code, false}};
  }
  if (::fstat(handle->get(), &st) != 0) return {};
  if (!S_ISDIR(st.st_mode)) return {{0, false}};
  return {{}, false, file_stamp(st)};
}

World::DirId OsWorld::directory(std::string_view path) {
  const std::string key(path);
  if (const auto known = by_path_.find(key); known != by_path_.end()) return known->second;
  note_opened(key);
  return add(key, read_directory(key));
}

void OsWorld::prefetch_directories(const std::vector<std::string>& paths) {
  std::vector<std::string> unknown;
  for (const auto& path : paths)
    if (!by_path_.contains(path)) unknown.push_back(path);
  std::ranges::sort(unknown);
  unknown.erase(std::unique(unknown.begin(), unknown.end()), unknown.end());
  std::vector<ReadDirectory> read(unknown.size());
  for_each_at_once(read.size(), [&](std::size_t i) { read[i] = read_directory(unknown[i]); });
  for (std::size_t i = 0; i < read.size(); ++i) {
    note_opened(unknown[i]);
    add(unknown[i], read[i]);
  }
}

World::DirId OsWorld::subdirectory(DirId base, std::string_view relative) {
  auto path = directories_[base].path;
  auto current = base;
  while (!relative.empty()) {
    const auto end = relative.find('/');
    const auto part = relative.substr(0, end);
    relative = end == relative.npos ? std::string_view() : relative.substr(end + 1);
    const auto& above = directories_[current];
    const auto state = above.state;
    if (!state.is_directory && state.stat_error == ENOENT) return kMissing;
    if (state.is_directory && entry(current, EntryName(part)) == Presence::absent) return kMissing;
    path.append(part).append("/");
    current = directory(path);
  }
  return current;
}

World::DirState OsWorld::state(DirId dir) { return directories_[dir].state; }

void OsWorld::look_for(const EntryName& name) {
  wanted_ = name.text;
  wanted_at_ = name.text.data();
  wanted_hash_ = name.hash;
  if (!root_) names_asked_.insert(wanted_);
  ++round_;
  names_.for_each(name, [&](NameIndex::ListingId listing) { holds_[listing] = round_; });
}

bool OsWorld::probe(DirId dir, const EntryName& name) {
  const auto [slot, is_new] =
      probed_.try_emplace(directories_[dir].path + std::string(name.text), false);
  if (is_new) {
    const auto fd = open(slot->first, O_PATH);
    slot->second = fd || (fd.error().code() != ENOENT && fd.error().code() != ENOTDIR);
  }
  return slot->second;
}

void OsWorld::note(DirId dir, const EntryName& name) {
  if (looked_for_.size() <= dir) looked_for_.resize(directories_.size());
  // One more, to tell that there were more.
  if (auto& names = looked_for_[dir]; names.size() <= kMostNames) names.emplace(name.text);
}

std::vector<std::string> OsWorld::asked() const {
  std::set<std::string> out;
  for (const auto& path : opened_) {
    const auto end = path.find_last_not_of('/');
    if (end != path.npos) out.insert(path.substr(0, end + 1));
  }
  std::size_t all = 0;
  for (const auto& names : looked_for_) all += names.size();
  const auto most = all > kMostNamesInAll ? 0 : kMostNames;
  for (std::size_t dir = 0; dir < looked_for_.size(); ++dir) {
    const auto& names = looked_for_[dir];
    // The current directory is the root.
    const std::string directory = directories_[dir].path.empty() ? "/" : directories_[dir].path;
    if (names.size() > most)
      out.insert(directory);
    else
      for (const auto& name : names) out.insert(directory + name);
  }
  return {out.begin(), out.end()};
}

std::optional<Seen> OsWorld::seen(const std::string& cwd) const {
  Seen out;
  const auto is_known = [&](const std::string& path) {
    return path.starts_with('/') || !cwd.empty();
  };
  const auto absolute = [&](const std::string& path) {
    return path.starts_with('/') ? path : cwd + "/" + path;
  };
  out.names = {names_asked_.begin(), names_asked_.end()};
  std::ranges::sort(out.names);
  std::vector<std::uint64_t> digests(holds_.size());
  for (const auto& text : out.names) {
    const EntryName name(text);
    names_.for_each(name, [&](NameIndex::ListingId listing) { digests[listing] ^= name.hash; });
  }
  for (std::size_t dir = 1; dir < directories_.size(); ++dir) {
    const auto& [path, state, stamp] = directories_[dir];
    if (!is_known(path) || (state.is_directory && !stamp)) return std::nullopt;
    const bool is_listed = listing_[dir] != kUnlisted && listing_[dir] != kNothing;
    out.paths.push_back({absolute(path), stamp, true, digests[listing_[dir]], is_listed});
  }
  for (const auto& [path, facts] : facts_) {
    const bool is_gone = !*facts && facts->error().code() == ENOENT;
    if (!is_known(path) || (!*facts && !is_gone)) return std::nullopt;
    out.paths.push_back({absolute(path), is_gone ? std::nullopt : std::optional((*facts)->stamp)});
  }
  for (const auto& [path, stamp] : read_) {
    if (!is_known(path)) return std::nullopt;
    out.paths.push_back({absolute(path), stamp});
  }
  return out;
}

World::Presence OsWorld::entry(DirId dir, const EntryName& name) {
  if (root_ && dir != kMissing) note(dir, name);
  // Mostly the last call's name, at the same address.
  if (name.hash != wanted_hash_ || round_ == 0 ||
      (name.text.data() != wanted_at_ && name.text != wanted_))
    look_for(name);
  const auto listing = listing_[dir];
  const bool there = listing == kUnlisted ? probe(dir, name) : holds_[listing] == round_;
  return there ? Presence::present : Presence::absent;
}

Result<FileFacts> OsWorld::facts(const std::string& path) {
  if (root_) opened_.insert(path);
  auto& slot = facts_[path];
  if (!slot)
    slot = std::make_shared<const Result<FileFacts>>(source_->facts(path, FactsDetail::loader));
  return *slot;
}

Result<FileFacts> OsWorld::facts_with_symbols(const std::string& path) {
  if (root_) opened_.insert(path);
  return source_->facts(path, FactsDetail::symbols);
}

void OsWorld::prefetch(const std::vector<std::string>& paths) {
  std::vector<std::string> unknown;
  for (const auto& path : paths) {
    if (facts_.contains(path)) continue;
    if (root_) opened_.insert(path);
    unknown.push_back(path);
  }
  if (!unknown.empty()) source_->prefetch(unknown, FactsDetail::loader);
}

Result<std::string> OsWorld::read(const std::string& path, Part part) {
  auto& stamp = read_[path];
  const Fd fd = TRY(open_regular(path));
  struct stat st {};
  if (::fstat(fd.get(), &st) == 0) stamp = file_stamp(st);
  if (part == Part::whole) return read_all(fd.get(), path, kLargestRead);
  const FileBytes bytes = file_bytes(fd.get());
  auto head = bytes.text(0, std::min<std::uint64_t>(bytes.size(), kElfHeaderSize));
  if (!head) return fail_errno(path, "cannot read", EIO);
  return std::move(*head);
}

Result<std::string> OsWorld::read_data(const std::string& path) {
  const Fd fd = TRY(open_regular(path));
  const FileBytes bytes = file_bytes(fd.get());
  const auto elf = ElfFile::read(bytes);
  if (!elf || elf->segments.empty()) return read_all(fd.get(), path, kLargestRead);
  std::string out;
  for (const auto& segment : elf->segments) {
    // Linkers that do not keep code apart (`-z noseparate-code`, gold) put the headers and the
    // constants into the executable segment.
    const bool pure_code = (segment.p_flags & PF_X) != 0 && segment.p_offset != 0;
    if (segment.p_type != PT_LOAD || pure_code || segment.p_offset >= bytes.size()) continue;
    const auto size = std::min(segment.p_filesz, bytes.size() - segment.p_offset);
    if (size > kLargestRead - out.size()) return fail_errno(path, "cannot read", EFBIG);
    const auto part = bytes.text(segment.p_offset, size);
    if (!part) return fail_errno(path, "cannot read", EIO);
    out += *part;
  }
  return out;
}

std::string OsWorld::real_path(const std::string& path) {
  if (!root_) {
    std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr), &std::free);
    return real ? std::string(real.get()) : std::string();
  }
  const auto inside = outside_path(path);
  const auto top = outside_path("/");
  if (!inside || !top || !inside->starts_with(*top)) return {};
  const auto rest = *top == "/" ? *inside : inside->substr(top->size());
  return rest.empty() ? "/" : rest;
}

}  // namespace heddle
