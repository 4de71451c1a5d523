// SPDX-License-Identifier: MIT
#include "fsgen/run_cache.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdlib>
#include <ctime>
#include <filesystem>

#include "base/coder.hpp"
#include "base/escape.hpp"
#include "base/file_stamp.hpp"
#include "base/file_systems.hpp"
#include "base/launch/rank.hpp"
#include "base/paths.hpp"
#include "base/task_pool.hpp"
#include "base/trusted_path.hpp"
#include "base/try.hpp"
#include "resolver/elf/cached_facts.hpp"
#include "resolver/map/index_format.hpp"
#include "resolver/map/map_format.hpp"

namespace heddle {

/// A LearnedRun in types that the coder knows.
using LearnedList = std::vector<std::pair<std::string, std::vector<LearnedLibrary>>>;

template <class Coder, IsRecord<CachedRun> T>
void fields(Coder& coder, T& run) {
  coder(run.programs, run.app, run.mount, run.slow_libraries, run.trees, run.map_id, run.serve,
        run.speeds, run.tree_notes, run.late_probes);
}

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kRacy = 2 * kSecond;  // git's racy-git.txt, with the coarsest clock in use
constexpr std::int64_t kDay = 24 * 3600 * kSecond;
constexpr std::int64_t kValidFor = 10 * kSecond;
constexpr std::string_view kMark = "valid-";
constexpr std::size_t kLargest = std::size_t{256} << 20;
constexpr std::size_t kMostFiles = 1024;
constexpr std::size_t kTrailer = sizeof(std::uint64_t) + sizeof(Checksum);

std::string directory_name() {
  return fmt::format("runs-{}-{}-{}", HEDDLE_VERSION, map_format::kMapVersion,
                     index_format::kVersion);
}

LearnedList to_list(const LearnedRun& learned) {
  LearnedList out;
  for (const auto& [program, found] : learned)
    out.push_back({program, {found.begin(), found.end()}});
  return out;
}

LearnedRun from_list(const LearnedList& list) {
  LearnedRun out;
  for (const auto& [program, found] : list) out[program] = {found.begin(), found.end()};
  return out;
}

bool is_unchanged(const Seen::Path& seen, const std::vector<std::string>& names) {
  struct stat st {};
  const bool there =
      ::stat(seen.path.c_str(), &st) == 0 && (!seen.is_directory || S_ISDIR(st.st_mode));
  if (!there || !seen.stamp) return !there && !seen.stamp;
  if (file_stamp(st) == *seen.stamp) return true;
  if (!seen.is_directory || !seen.is_listed) return false;
  std::uint64_t digest = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator at(seen.path, error), end; !error && at != end;
       at.increment(error)) {
    const auto name = at->path().filename().string();
    if (std::binary_search(names.begin(), names.end(), name)) digest ^= Seen::digest_of(name);
  }
  return !error && digest == seen.digest;
}

bool is_unchanged(const Seen& seen) {
  std::atomic<bool> good{true};
  for_each_at_once(seen.paths.size(), [&](std::size_t i) {
    if (good && !is_unchanged(seen.paths[i], seen.names)) good = false;
  });
  return good;
}

std::int64_t modified_ns(int directory, const std::string& name) {
  struct stat st {};
  return ::fstatat(directory, name.c_str(), &st, AT_SYMLINK_NOFOLLOW) == 0 ? file_stamp(st).mtime_ns
                                                                           : 0;
}

/// The file's bytes, if its checksum is right; nullopt: none, or damaged.
std::optional<std::string> read_checked(int directory, const std::string& name) {
  const Fd fd(::openat(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd) return std::nullopt;
  auto bytes = read_all(fd.get(), name, kLargest);
  if (!bytes || bytes->size() < kTrailer) return std::nullopt;
  const auto body = std::string_view(*bytes).substr(0, bytes->size() - sizeof(Checksum));
  Checksum sum;
  Decoder(std::string_view(*bytes).substr(body.size()))(sum.bytes);
  if (checksum_of(body) != sum) return std::nullopt;
  bytes->resize(body.size());
  return std::move(*bytes);
}

std::string with_checksum(std::string bytes) {
  const auto sum = checksum_of(bytes);
  return bytes.append(sum.bytes.begin(), sum.bytes.end());
}

struct Entry {
  CachedRun run;
  Seen seen;
};

std::optional<Entry> read_entry(int directory, const std::string& key) {
  const auto bytes = read_checked(directory, key);
  if (!bytes) return std::nullopt;
  const auto tail = std::string_view(*bytes).substr(bytes->size() - sizeof(std::uint64_t));
  std::uint64_t index_size = 0;
  Decoder tail_decoder(tail);
  tail_decoder(index_size);
  if (index_size > bytes->size() - tail.size()) return std::nullopt;
  Entry out;
  LearnedList learned;
  const auto body = std::string_view(*bytes).substr(index_size);
  Decoder decoder(body.substr(0, body.size() - tail.size()));
  decoder(out.run, out.seen, learned);
  if (!decoder.complete()) return std::nullopt;
  out.run.learned = from_list(learned);
  out.run.index = bytes->substr(0, index_size);
  return out;
}

}  // namespace

bool is_settled(const std::string& path, std::int64_t now_ns) {
  const auto stamp = RunCache::stamp_of(path);
  return stamp && std::max(stamp->mtime_ns, stamp->ctime_ns) < now_ns - kRacy;
}

Result<RunCache> RunCache::open() {
  const auto parent = default_cache_dir();
  if (parent.empty()) {
    const auto wanted = below_home("XDG_CACHE_HOME", "/.cache", "/heddle");
    if (!wanted.empty()) TRY(check_trusted_directory(wanted));
    return fail("", "there is no cache", "neither XDG_CACHE_HOME nor HOME is set");
  }
  auto directory = RunDirectory::find(parent + "/" + directory_name());
  if (!directory) {
    ::mkdir(directory_of(parent).c_str(), 0700);
    ::mkdir(parent.c_str(), 0700);
    directory = RunDirectory::open_at(parent + "/" + directory_name());
  }
  if (!directory) return fail(std::move(directory.error()));
  return RunCache(std::move(*directory));
}

Result<void> RunCache::check() const {
  constexpr std::size_t kUsual = 64 << 10;
  const auto name = "check-" + std::to_string(::getpid());
  auto written = write(name, std::string(kUsual, '\0'));
  directory_.remove(name);
  return written;
}

bool RunCache::is_young(std::int64_t time_ns, std::int64_t started_ns) {
  return time_ns >= started_ns - kRacy;
}

std::optional<FileStamp> RunCache::stamp_of(const std::string& path) {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) return std::nullopt;
  return file_stamp(st);
}

std::optional<CachedRun> RunCache::find(const std::string& key, bool& valid,
                                        const std::function<bool(const CachedRun&)>& holds) const {
  auto entry = read_entry(directory_.get(), key);
  valid = entry && is_valid(key, entry->run, entry->seen, holds);
  return entry ? std::optional(std::move(entry->run)) : std::nullopt;
}

std::optional<CachedRun> RunCache::peek(const std::string& key) const {
  auto entry = read_entry(directory_.get(), key);
  return entry ? std::optional(std::move(entry->run)) : std::nullopt;
}

bool RunCache::is_valid(const std::string& key, const CachedRun& run, const Seen& seen,
                        const std::function<bool(const CachedRun&)>& holds) const {
  const auto still_holds = [&] { return is_unchanged(seen) && (!holds || holds(run)); };
  if (!run.mount) return still_holds();
  return !once_a_job(key, modified_ns(directory_.get(), key), [&] {
            return std::string(still_holds() ? "valid" : "");
          }).empty();
}

std::string RunCache::once_a_job(const std::string& what, std::int64_t after_ns,
                                 const std::function<std::string()>& ask) {
  const auto node = RunDirectory::open();
  const auto rank = rank_from_environment();
  if (!node || !rank) return ask();
  // The ranks of a job's step on a node are children of one launcher, which starts no other.
  const auto mark = fmt::format("{}{}-{}", kMark, ::getppid(), what.substr(0, 32));
  const auto one_at_a_time = node->lock(mark, std::chrono::seconds(30));
  const auto marked = modified_ns(node->get(), mark);
  const Fd fd(::openat(node->get(), mark.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  // Its own mark is of a run before: of a script whose every command has the rank 0, as in sbatch.
  const auto ours = std::to_string(*rank) + " ";
  const auto text = fd ? read_all(fd.get(), mark).value_or("") : "";
  if (!text.empty() && !text.starts_with(ours) && marked > now_ns() - kValidFor &&
      marked > after_ns)
    return text.substr(text.find(' ') + 1);
  // One that is younger may be of a check that goes on, unless its launcher has ended.
  const auto is_over = [&](const std::string& name) {
    const auto launcher = std::atoi(name.c_str() + kMark.size());
    return modified_ns(node->get(), name) < now_ns() - 60 * kValidFor ||
           (launcher > 0 && ::kill(launcher, 0) != 0 && errno == ESRCH);
  };
  for (const auto& name : node->names())
    if (name.starts_with(kMark) && name != mark && is_over(name)) node->remove(name);
  (void)::ftruncate(fd.get(), 0);
  auto answer = ask();
  if (!answer.empty()) {
    const auto line = ours + answer;
    (void)::pwrite(fd.get(), line.data(), line.size(), 0);
  }
  return answer;
}

std::optional<Fd> RunCache::lock(const std::string& key, std::chrono::milliseconds limit) const {
  auto lock = directory_.lock(key, limit);
  if (!lock) return std::nullopt;
  return std::move(*lock);
}

/// Whether there are not too many files. An answer may be in use by an APP that runs, whose
/// children would run unguided without it.
bool RunCache::make_room() const {
  const auto names = directory_.names();
  std::size_t left = names.size();
  const auto drop = [&](const auto& may_go) {
    if (left <= kMostFiles) return;
    for (const auto& name : names)
      if (name != "locks" && may_go(name)) directory_.remove(name);
    left = directory_.names().size();
  };
  drop([](const std::string& name) {
    return name.starts_with("plain-") || name.find(".new-") != name.npos;
  });
  const auto day_ago = now_ns() - kDay;
  drop([&](const std::string& name) { return modified_ns(directory_.get(), name) < day_ago; });
  return left <= kMostFiles;
}

Result<void> RunCache::write(const std::string& name, std::string_view bytes) const {
  const auto& where = directory_.path();
  if (!make_room())
    return fail(where, "cannot write", fmt::format("it has {} files of today", kMostFiles),
                "fs-gen cache clear");
  const auto aside = name + ".new-" + std::to_string(::getpid());
  const Fd fd(::openat(directory_.get(), aside.c_str(),
                       O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  auto done = fd ? Result<void>() : fail_errno(where, "cannot write");
  // Not synced: the checksum detects the result of a crash.
  if (fd) done = write_all(fd.get(), bytes, where);
  if (done && ::renameat(directory_.get(), aside.c_str(), directory_.get(), name.c_str()) != 0)
    done = fail_errno(where, "cannot write");
  if (!done) directory_.remove(aside);
  return done;
}

bool RunCache::is_local() const { return locality_of(directory_.get()) != Locality::remote; }

Result<void> RunCache::store(const std::string& key, const CachedRun& run, Seen seen,
                             std::int64_t started_ns) const {
  for (auto& [path, stamp, is_directory, digest, is_listed] : seen.paths) {
    if (!stamp || !is_young(std::max(stamp->mtime_ns, stamp->ctime_ns), started_ns)) continue;
    if (!is_listed) return fail(path, "changed less than 2 s before the run");
    stamp = FileStamp{};  // of no directory: its entries are compared
  }
  Encoder body;
  body(run, seen, to_list(run.learned));
  Encoder size;
  size(std::uint64_t{run.index.size()});
  return write(key, with_checksum(run.index + body.take() + size.take()));
}

bool RunCache::is_plain(const std::string& key, const std::string& program,
                        const std::function<std::string()>& trees) const {
  const auto bytes = read_checked(directory_.get(), "plain-" + key);
  const auto stamp = stamp_of(program);
  if (!bytes || !stamp) return false;
  std::int64_t marked = 0;
  FileStamp then;
  std::string trees_then;
  Decoder decoder(*bytes);
  decoder(marked, then, trees_then);
  return decoder.complete() && then == *stamp && now_ns() - marked < kDay &&
         (trees_then.empty() || trees_then == trees());
}

void RunCache::mark_plain(const std::string& key, const std::string& program,
                          const std::string& trees) const {
  const auto stamp = stamp_of(program);
  const auto now = now_ns();
  if (!stamp || std::max(stamp->mtime_ns, stamp->ctime_ns) > now - kRacy) return;
  Encoder coder;
  coder(now, *stamp, trees);
  (void)write("plain-" + key, with_checksum(coder.take()));
}

std::string RunCache::show() const {
  std::string out;
  std::size_t plain = 0;
  for (const auto& name : directory_.names()) {
    plain += name.starts_with("plain-");
    const auto entry = read_entry(directory_.get(), name);
    if (!entry) continue;
    std::size_t learned = 0;
    for (const auto& [program, found] : entry->run.learned) learned += found.size();
    const auto programs = entry->run.programs.size();
    out += fmt::format("{}  {}  {} program{}, {} learned name{}, {}, {}\n", name.substr(0, 12),
                       escape_for_terminal(entry->run.app), programs, programs == 1 ? "" : "s",
                       learned, learned == 1 ? "" : "s",
                       entry->run.trees   ? "mount with trees"
                       : entry->run.mount ? "mount"
                                          : "direct",
                       is_unchanged(entry->seen) ? "valid" : "out of date");
  }
  if (plain > 0)
    out += fmt::format("and {} command line{} without anything to gain\n", plain,
                       plain == 1 ? "" : "s");
  return out.empty() ? "the cache is empty\n" : out;
}

void RunCache::clear() const {
  for (const auto& name : directory_.names())
    if (name != "locks") directory_.remove(name);
}

}  // namespace heddle
