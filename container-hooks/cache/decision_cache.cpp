// SPDX-License-Identifier: MIT
#include "container-hooks/cache/decision_cache.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <map>
#include <optional>
#include <vector>

#include "base/content_hash.hpp"
#include "base/exit_code.hpp"
#include "base/file_stamp.hpp"
#include "base/temp_dir.hpp"
#include "base/try.hpp"
#include "container-hooks/cache/image_contents.hpp"
#include "container-hooks/host/programs.hpp"
#include "container-hooks/host/watched_work.hpp"
#include "container-hooks/oci/json_text.hpp"

namespace heddle::hook {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kDecisionLimit = 16U << 20;
constexpr const char* kLibraryCache = "/etc/ld.so.cache";
constexpr int kLongestPauseMs = 10;  ///< a decision takes 100 ms
constexpr std::time_t kHour = 60 * 60;
constexpr std::time_t kDay = 24 * kHour;
constexpr const char* kScratch = "heddle-hook";
constexpr std::size_t kKeyLength = 64;  ///< hex digits of the key that names an entry's files
constexpr std::size_t kDecisionRoom = 1U << 20;

/// All that a decision depends on except the image.
std::string text_of(const ImageQuestion& question) {
  // A new MPI on the host changes ld.so.cache; changed files of a known MPI are found by fs-mount.
  struct stat host {};
  (void)::stat(kLibraryCache, &host);
  const auto stamp = file_stamp(host);
  std::string text = HEDDLE_VERSION;
  for (const auto& word : {question.program, question.mount_point, question.mpi, question.path,
                           question.library_path, question.preload})
    text += "\n" + word;
  for (const auto number : {static_cast<std::int64_t>(stamp.id.ino),
                            static_cast<std::int64_t>(stamp.size), stamp.mtime_ns, stamp.ctime_ns})
    text += "\n" + std::to_string(number);
  return text + "\n";
}

/// Readers see all of it or nothing. Not fsynced, which takes 0.1 s on a busy disk: a file that a
/// power cut damages is decided anew.
Result<void> write_file(const std::string& path, const std::string& text) {
  auto aside = path + ".XXXXXX";
  const Fd file(::mkostemp(aside.data(), O_CLOEXEC));
  if (!file) return fail_errno(path, "cannot write");
  TRY(write_all(file.get(), text, aside));
  if (::rename(aside.c_str(), path.c_str()) != 0) return fail_errno(path, "cannot write");
  return {};
}

/// Fails with the reason when a decision has no room in `directory`: fs-resolve's own failure has
/// no errno.
Result<void> check_room(const std::string& directory) {
  auto probe = directory + "/room.XXXXXX";
  const Fd file(::mkostemp(probe.data(), O_CLOEXEC));
  if (!file) return fail_errno(directory, "cannot write");
  (void)::unlink(probe.c_str());
  return write_all(file.get(), std::string(kDecisionRoom, '\0'), directory);
}

Result<std::string> ask_fs_resolve(const ImageQuestion& question, const std::string& directory,
                                   const std::string& map) {
  HelperRequest request;
  request.name = "fs-resolve";
  request.arguments = {
      "build", "--into",     question.rootfs, "--program",          question.program,
      "--mpi", question.mpi, "--at",          question.mount_point, "-o",
      map,     "--json"};
  if (!question.path.empty()) request.arguments.push_back("--path=" + question.path);
  if (!question.library_path.empty())
    request.arguments.push_back("--library-path=" + question.library_path);
  if (!question.preload.empty()) request.arguments.push_back("--preload=" + question.preload);
  request.environment = {"XDG_CACHE_HOME=" + directory};
  request.reader = question.reader;
  note_step("waiting for fs-resolve, which decides on", question.rootfs);
  auto answer = TRY(run_helper(request, kDecisionLimit));
  if (answer.status == exit_done || answer.status == exit_no) return std::move(answer.out);
  TRY(check_room(directory));
  const auto words = one_line(request.name, answer.err);
  return fail(Error({}, words.empty() ? "fs-resolve: failed without a message" : words));
}

/// Removes temporary directories of hooks that were killed. In a sticky `parent` no other user can
/// exchange this user's.
void remove_old_scratch(const std::string& parent) {
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator(parent, gone)) {
    struct stat status {};
    if (entry.path().filename().string().starts_with(std::string(kScratch) + "-") &&
        ::lstat(entry.path().c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
        status.st_uid == ::geteuid() && std::time(nullptr) - status.st_mtim.tv_sec > kHour)
      (void)remove_tree(entry.path());
  }
}

bool lock_now(const Fd& file) { return ::flock(file.get(), LOCK_EX | LOCK_NB) == 0; }

/// Sets the modification time, at most once a day: most starts write nothing.
void mark_used(const Fd& file, const struct stat& status) {
  if (std::time(nullptr) - status.st_mtim.tv_sec >= kDay) (void)::futimens(file.get(), nullptr);
}

/// Whether `path` still names the open file: pruning removes locks and maps that it has locked.
bool is_named(const Fd& file, const std::string& path) {
  struct stat held {};
  struct stat named {};
  return ::fstat(file.get(), &held) == 0 && ::stat(path.c_str(), &named) == 0 &&
         file_id(held) == file_id(named);
}

std::vector<fs::path> files_of(const std::string& stem) {
  const fs::path entry(stem);
  std::vector<fs::path> out;
  std::error_code gone;
  for (const auto& file : fs::directory_iterator(entry.parent_path(), gone))
    if (file.path().filename().string().starts_with(entry.filename().string() + "."))
      out.push_back(file.path());
  return out;
}

/// The maps of the entry except `kept`, locked; those in use without a descriptor.
std::vector<std::pair<fs::path, Fd>> lock_maps(const std::string& stem, const fs::path& kept) {
  std::vector<std::pair<fs::path, Fd>> out;
  for (const auto& file : files_of(stem)) {
    if (file.extension() != ".map" || file == kept) continue;
    auto map = open_file(file, O_RDONLY | O_NONBLOCK);
    out.emplace_back(file, map && lock_now(*map) ? std::move(*map) : Fd());
  }
  return out;
}

/// One image's files in the cache.
class Entry {
 public:
  Entry(const std::string& directory, const Fd& root, const ImageQuestion& question)
      : directory_(directory), question_(question), contents_(root) {
    const auto text = text_of(question);
    seen_ =
        directory + "/" + hash_bytes(text + contents_.copy_id(question.program)).hex() + ".seen";
    const auto file = open_file(seen_, O_RDONLY | O_NONBLOCK);
    struct stat status {};
    is_new_copy_ = !file;
    if (file && ::fstat(file->get(), &status) == 0) {
      contents_.recall(read_all(file->get(), seen_, kDecisionLimit).value_or(""));
      mark_used(*file, status);
    }
    stem_ =
        directory + "/" + hash_bytes(text + contents_.of({question.program, kLibraryCache})).hex();
    struct stat before {};
    (void)::stat((stem_ + ".json").c_str(), &before);
    asked_ = file_stamp(before);
  }

  /// Of containers of one image that start at once, one decides and the others wait for it.
  Result<Decided> decided() {
    const auto lock_path = stem_ + ".lock";
    Fd lock;
    for (int pause_ms = 1;; pause_ms = std::min(2 * pause_ms, kLongestPauseMs)) {
      if (auto found = cached()) return std::move(*found);
      if (!lock) lock = TRY(open_file(lock_path, O_RDWR | O_CREAT, 0600));
      if (lock_now(lock)) {
        if (!is_named(lock, lock_path)) {
          lock.reset();
          continue;
        }
        if (auto found = cached()) return std::move(*found);
        return decide();
      }
      if (errno != EWOULDBLOCK && errno != EINTR)
        return fail_errno(lock_path, "cannot lock the cache");
      note_step("waiting for another fs-hook, which holds", lock_path);
      pollfd reader{question_.reader, 0, 0};
      if (::poll(&reader, 1, pause_ms) > 0)
        return fail_errno(lock_path, "stopped waiting", ECANCELED);
    }
  }

  /// Stores the hashes for the next start of this copy. True: a file was added.
  bool remember() const {
    const auto text = contents_.remembered();
    return !text.empty() && write_file(seen_, text).has_value() && is_new_copy_;
  }

 private:
  /// The decision on this very image, if its map is there and it is not outdated.
  std::optional<Decided> cached() {
    const auto file = open_file(stem_ + ".json", O_RDONLY | O_NONBLOCK);
    struct stat status {};
    if (!file || ::fstat(file->get(), &status) != 0 || file_stamp(status) == rejected_)
      return std::nullopt;
    auto text = read_all(file->get(), stem_, kDecisionLimit);
    auto decision = text ? parse_decision(*text, stem_) : Result<Decision>(fail(text.error()));
    if (!decision || (!question_.stale_map.empty() && decision->map_id == question_.stale_map) ||
        (decision->outcome == Outcome::incompatible && file_stamp(status) == asked_) ||
        decision->contents != hash_bytes(contents_.of(image_files(*decision))).hex()) {
      rejected_ = file_stamp(status);
      return std::nullopt;
    }
    Decided out{std::move(*decision), {}, true, {}};
    if (out.decision.outcome == Outcome::swap && !take_map(out)) return std::nullopt;
    mark_used(*file, status);
    return out;
  }

  Result<Decided> decide() {
    const auto made = stem_ + ".map";
    const auto answer = TRY(ask_fs_resolve(question_, directory_, made));
    Decided out;
    out.decision = TRY(parse_decision(answer, stem_ + ".json"));
    out.decision.contents = hash_bytes(contents_.of(image_files(out.decision))).hex();
    if (out.decision.outcome == Outcome::swap) TRY(keep_map(out, made));
    TRY(write_file(stem_ + ".json", to_json(out.decision)));
    return out;
  }

  /// The map is named by its content: fs-mount opens it by path without the entry's lock, when
  /// another image of the same key may have a new map.
  Result<void> keep_map(Decided& out, const std::string& made) const {
    const auto file = TRY(open_file(made, O_RDONLY));
    const auto id = TRY(hash_file(file.get(), made));
    out.decision.map_id = id.hex();
    const auto kept = map_path(out);
    const auto there = open_file(kept, O_RDONLY | O_NONBLOCK);
    if (there && hash_file(there->get(), kept) == id)
      (void)::unlink(made.c_str());
    else if (::rename(made.c_str(), kept.c_str()) != 0)
      return fail_errno(kept, "cannot write");
    TRY(take_map(out));
    for (const auto& [map, locked] : lock_maps(stem_, kept))
      if (locked) (void)::unlink(map.c_str());
    return {};
  }

  Result<void> take_map(Decided& out) const {
    out.map = map_path(out);
    out.in_use = TRY(open_file(out.map, O_RDONLY | O_NONBLOCK));
    if (::flock(out.in_use.get(), LOCK_SH | LOCK_NB) != 0 || !is_named(out.in_use, out.map))
      return fail_errno(out.map, "cannot use", ENOENT);
    return {};
  }

  std::string map_path(const Decided& out) const {
    return stem_ + "." + out.decision.map_id + ".map";
  }

  std::string directory_;
  const ImageQuestion& question_;
  ImageContents contents_;
  std::string seen_;
  bool is_new_copy_ = true;
  std::string stem_;
  FileStamp asked_;     ///< of KEY.json when this process started to wait
  FileStamp rejected_;  ///< of a KEY.json that does not apply
};

/// Removes all its files, also temporary ones of killed processes; the lock last.
bool remove_entry(const std::string& stem) {
  const auto lock_path = stem + ".lock";
  const auto lock = open_file(lock_path, O_RDWR | O_CREAT, 0600);
  if (!lock || !lock_now(*lock) || !is_named(*lock, lock_path)) return false;
  const auto maps = lock_maps(stem, {});
  if (std::any_of(maps.begin(), maps.end(), [](const auto& map) { return !map.second; }))
    return false;
  std::error_code gone;
  for (const auto& file : files_of(stem))
    if (file != lock_path) fs::remove(file, gone);
  fs::remove(lock_path, gone);
  return true;
}

}  // namespace

Result<DecisionCache> DecisionCache::open(const std::string& directory, const CacheLimits& limits) {
  std::error_code error;
  fs::create_directories(fs::path(directory).parent_path(), error);
  const int made = error ? error.value() : ::mkdir(directory.c_str(), 0700) == 0 ? 0 : errno;
  struct stat status {};
  if (::stat(directory.c_str(), &status) != 0)
    return fail_errno(directory, "cannot use as cache", made);
  if (status.st_uid != ::geteuid()) return fail_errno(directory, "cannot use as cache", EPERM);
  if (!S_ISDIR(status.st_mode) || (status.st_mode & 0022) != 0)
    return fail(directory, "cannot use as cache", "others may write to it",
                "give fs-hook a directory of its own (--cache)");
  return DecisionCache(directory, limits);
}

Result<Decided> DecisionCache::decide(const ImageQuestion& question) const {
  const auto root = TRY(open_file(question.rootfs, O_PATH | O_DIRECTORY));
  Entry entry(directory_, root, question);
  auto decided = entry.decided();
  const bool is_new_copy = entry.remember();
  if (is_new_copy || (decided && !decided->from_cache)) prune_decisions(directory_, limits_);
  return decided;
}

Result<Decided> decide_image(const std::string& directory, const CacheLimits& limits,
                             const ImageQuestion& question) {
  const auto decide_in = [&](const std::string& place) -> Result<Decided> {
    const auto cache = TRY(DecisionCache::open(place, limits));
    return cache.decide(question);
  };
  auto decided = decide_in(directory);
  const auto lacks_cache = [](const Result<Decided>& result) {
    // ENOENT: it was removed meanwhile.
    constexpr int kCodes[] = {ENOSPC, EDQUOT, EROFS, EACCES, EPERM, ENOENT, EISDIR};
    return !result && std::ranges::count(kCodes, result.error().code()) != 0;
  };
  if (!lacks_cache(decided)) return decided;
  constexpr const char* kParents[] = {"/run", "/dev/shm", "/tmp"};
  for (const char* parent : kParents) remove_old_scratch(parent);
  for (const char* parent : kParents) {
    auto scratch = TempDir::create(kScratch, parent);
    if (!scratch) continue;
    auto again = decide_in(scratch->path());
    if (lacks_cache(again)) continue;
    if (!again) return again;
    again->decision.warnings.push_back(decided.error().message() +
                                       ": decided without the cache, as at each start");
    again->scratch = scratch->release();
    return again;
  }
  return decided;
}

void prune_decisions(const std::string& directory, const CacheLimits& limits) {
  struct Use {
    std::uint64_t bytes = 0;
    std::int64_t last = 0;
  };
  std::map<std::string, Use> by_key;
  std::error_code gone;
  std::uint64_t bytes = 0;
  for (const auto& file : fs::directory_iterator(directory, gone)) {
    const auto name = file.path().filename().string();
    struct stat status {};
    if (name.find('.') != kKeyLength || name.find_first_not_of("0123456789abcdef") != kKeyLength ||
        ::lstat(file.path().c_str(), &status) != 0 || !S_ISREG(status.st_mode))
      continue;
    auto& use = by_key[name.substr(0, kKeyLength)];
    use.bytes += static_cast<std::uint64_t>(status.st_size);
    use.last = std::max<std::int64_t>(use.last, status.st_mtim.tv_sec);
    bytes += static_cast<std::uint64_t>(status.st_size);
  }
  std::vector<std::pair<std::string, Use>> entries(by_key.begin(), by_key.end());
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.second.last < b.second.last; });
  const auto oldest = std::time(nullptr) - std::chrono::seconds(limits.unused).count();
  for (const auto& [key, use] : entries) {
    if (use.last >= oldest && bytes <= limits.bytes) break;
    if (remove_entry(directory + "/" + key)) bytes -= use.bytes;
  }
}

}  // namespace heddle::hook
