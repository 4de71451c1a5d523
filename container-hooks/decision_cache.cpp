// SPDX-License-Identifier: MIT
#include "container-hooks/decision_cache.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>

#include <cstdio>
#include <optional>

#include "base/content_hash.hpp"
#include "base/exit_code.hpp"
#include "base/file_stamp.hpp"
#include "container-hooks/entry_lock.hpp"
#include "container-hooks/helper_program.hpp"
#include "container-hooks/hook_progress.hpp"
#include "container-hooks/image_contents.hpp"
#include "container-hooks/packed_decision.hpp"

namespace heddle {
namespace {

constexpr std::size_t kDecisionLimit = 16U << 20;

constexpr const char* kLibraryCache = "/etc/ld.so.cache";

/// All that a decision is asked by, but for the image itself.
std::string text_of(const ImageQuestion& question) {
  // Of the host what a new MPI would change; a changed file of a known one is fs-mount's to see.
  struct stat host {};
  (void)::stat(kLibraryCache, &host);
  const auto stamp = file_stamp(host);
  std::string text = HEDDLE_VERSION;
  for (const auto& word :
       {question.program, question.mount_point, question.mpi, question.library_path})
    text += "\n" + word;
  for (const auto number : {static_cast<std::int64_t>(stamp.id.ino),
                            static_cast<std::int64_t>(stamp.size), stamp.mtime_ns, stamp.ctime_ns})
    text += "\n" + std::to_string(number);
  return text + "\n";
}

/// Whole or not at all for all that look, but not for a machine that loses its power: what is then
/// cut off is decided on anew, and a container's start need not wait for the disk (0.1 s and more
/// where it is busy).
Result<void> write_file(const std::string& path, const std::string& text) {
  const auto aside = path + "." + std::to_string(::getpid()) + ".new";
  const auto file = open_file(aside, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0644);
  if (!file) return fail(file.error());
  if (auto written = write_all(file->get(), text, aside); !written) return written;
  if (::rename(aside.c_str(), path.c_str()) != 0) return fail_errno(path, "cannot write");
  return {};
}

Result<std::string> ask_fs_resolve(const ImageQuestion& question, const std::string& folder,
                                   const std::string& map) {
  HelperRequest request;
  request.name = "fs-resolve";
  request.arguments = {
      "build", "--into",     question.rootfs, "--program",          question.program,
      "--mpi", question.mpi, "--at",          question.mount_point, "-o",
      map,     "--json"};
  if (!question.library_path.empty())
    request.arguments.insert(request.arguments.end(), {"--library-path", question.library_path});
  request.environment = {"XDG_CACHE_HOME=" + folder};
  request.reader = question.asker;
  note_step("waiting for fs-resolve, which decides on", question.rootfs);
  auto answer = run_helper(request, kDecisionLimit);
  if (!answer) return fail(std::move(answer.error()));
  if (answer->status == exit_done || answer->status == exit_no) return std::move(answer->out);
  return fail(Error({}, answer->last_words.empty() ? "fs-resolve: it failed without a word"
                                                   : answer->last_words));
}

/// ImageContents with its memory, of the image that a question is about, in the cache's folder.
class KnownContents {
 public:
  KnownContents(const std::string& folder, const Fd& root, const ImageQuestion& question)
      : contents_(root), question_(text_of(question)) {
    const auto copy = contents_.copy_id(question.program);
    path_ = folder + "/" + hash_bytes(question_ + copy).hex() + ".seen";
    const auto file = open_file(path_, O_RDONLY);
    struct stat status {};
    is_new_copy_ = !file;
    if (file && ::fstat(file->get(), &status) == 0) {
      contents_.recall(read_all(file->get(), path_, kDecisionLimit).value_or(""));
      mark_used(file->get(), status.st_mtim.tv_sec);
    }
    key_ = hash_bytes(question_ + contents_.of({question.program, kLibraryCache})).hex();
  }

  /// Of the question about an image with that program and these libraries.
  const std::string& key() const { return key_; }
  std::string of(const std::vector<std::string>& paths) { return contents_.of(paths); }
  /// For the next start; what cannot be kept is read again. True: a file was added to the folder.
  bool remember() const {
    const auto text = contents_.remembered();
    return !text.empty() && write_file(path_, text).has_value() && is_new_copy_;
  }

 private:
  ImageContents contents_;
  std::string question_;
  std::string path_;
  bool is_new_copy_ = true;
  std::string key_;
};

/// One image's files in the cache.
class Entry {
 public:
  Entry(const std::string& folder, KnownContents& contents)
      : folder_(folder), stem_(folder + "/" + contents.key()), contents_(contents) {}

  /// Many containers of one image start at once: one decides, and the others wait for it, also
  /// where the host's files have changed since the last decision. What is there they compare with
  /// their images side by side: that may mean to read all its libraries.
  Result<Decided> decided(const ImageQuestion& question) {
    const auto lock_path = stem_ + ".lock";
    asked_ = stamp_of_decision();
    for (;;) {
      {
        note_step("waiting for another fs-hook, which holds", lock_path);
        const auto lock = lock_entry(lock_path, Access::look, Wait::yes, question.asker);
        if (!lock) return fail(lock.error());
        if (auto found = cached(question.stale_map)) return std::move(*found);
      }
      const auto lock = lock_entry(lock_path, Access::change, Wait::no);
      if (!lock && lock.error().code() != EWOULDBLOCK) return fail(lock.error());
      if (lock) {
        if (auto found = cached(question.stale_map)) return std::move(*found);
        return decide(question);
      }
      ::poll(nullptr, 0, 1);  // it may be another's look
    }
  }

 private:
  FileStamp stamp_of_decision() const {
    struct stat status {};
    (void)::stat((stem_ + ".decision").c_str(), &status);
    return file_stamp(status);
  }

  /// Whoever mends an image, or the host, wants to be asked again after a refusal: it is for those
  /// who asked before it was there.
  bool is_old_refusal(const PackedDecision& packed, const struct stat& status) const {
    return packed.decision.outcome == Outcome::incompatible && file_stamp(status) == asked_;
  }

  /// What was decided on this very image, unless part of it has gone or it is `stale`.
  std::optional<Decided> cached(const std::string& stale) {
    const auto file = open_file(stem_ + ".decision", O_RDONLY);
    struct stat status {};
    if (!file || ::fstat(file->get(), &status) != 0) return std::nullopt;
    const auto bytes = read_all(file->get(), stem_, kDecisionLimit);
    if (!bytes) return std::nullopt;
    auto packed = unpack(*bytes, stem_);
    if (!packed || (!stale.empty() && packed->map_id == stale) || is_old_refusal(*packed, status) ||
        packed->contents != contents_.of(packed->decision.image_files))
      return std::nullopt;
    Decided out{std::move(packed->decision), {}, std::move(packed->map_id), true, {}};
    if (out.decision.outcome == Outcome::swap && !take_map(out)) return std::nullopt;
    mark_used(file->get(), status.st_mtim.tv_sec);
    return out;
  }

  Result<Decided> decide(const ImageQuestion& question) {
    auto text = ask_fs_resolve(question, folder_, stem_ + ".map");
    if (!text) return fail(std::move(text.error()));
    auto decision = parse_decision(*text, stem_ + ".json");
    if (!decision) return fail(std::move(decision.error()));
    Decided out{std::move(*decision), {}, {}, false, {}};
    if (out.decision.outcome == Outcome::swap)
      if (auto kept = keep_map(out); !kept) return fail(std::move(kept.error()));
    const PackedDecision packed{out.decision, contents_.of(out.decision.image_files), out.map_id};
    if (auto kept = write_file(stem_ + ".json", *text); !kept) return fail(std::move(kept.error()));
    if (auto kept = write_file(stem_ + ".decision", pack(packed)); !kept)
      return fail(std::move(kept.error()));
    return out;
  }

  /// The new map, named by its content: fs-mount opens it by path when this entry is no longer
  /// locked, and a map of another image that looks like this one may have been made meanwhile.
  Result<void> keep_map(Decided& out) const {
    const auto made = stem_ + ".map";
    auto id = hash_of(made);
    if (!id) return fail(std::move(id.error()));
    out.map_id = std::move(*id);
    const auto kept = map_path(out.map_id);
    // One that is there may be in use, and that is to be seen.
    if (hash_of(kept).value_or("") == out.map_id)
      (void)::unlink(made.c_str());
    else if (::rename(made.c_str(), kept.c_str()) != 0)
      return fail_errno(kept, "cannot write");
    if (auto taken = take_map(out); !taken) return taken;
    remove_other_maps(out.map);
    return {};
  }

  Result<void> take_map(Decided& out) const {
    out.map = map_path(out.map_id);
    auto map = open_file(out.map, O_RDONLY);
    if (!map) return fail(std::move(map.error()));
    hold_entry(*map);
    out.in_use = std::move(*map);
    return {};
  }

  std::string map_path(const std::string& id) const { return stem_ + "." + id + ".map"; }

  static Result<std::string> hash_of(const std::string& map) {
    const auto file = open_file(map, O_RDONLY);
    if (!file) return fail(file.error());
    const auto hash = hash_file(file->get(), map);
    if (!hash) return fail(hash.error());
    return hash->hex();
  }

  std::string folder_;
  std::string stem_;
  KnownContents& contents_;
  FileStamp asked_;  ///< of the decision that was there when we asked
};

}  // namespace

Result<DecisionCache> DecisionCache::open(const std::string& folder, const CacheLimits& limits) {
  for (auto slash = folder.find('/', 1); slash != std::string::npos;
       slash = folder.find('/', slash + 1))
    (void)::mkdir(folder.substr(0, slash).c_str(), 0755);
  (void)::mkdir(folder.c_str(), 0700);
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0) return fail_errno(folder, "cannot use as cache");
  if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid() || (status.st_mode & 0022) != 0)
    return fail(folder, "cannot use as cache", "others may write to it",
                "give fs-hook a folder of its own (--cache)");
  return DecisionCache(folder, limits);
}

Result<Decided> DecisionCache::decide(const ImageQuestion& question) const {
  auto root = open_file(question.rootfs, O_PATH | O_DIRECTORY);
  if (!root) return fail(std::move(root.error()));
  KnownContents contents(folder_, *root, question);
  Entry entry(folder_, contents);
  auto decided = entry.decided(question);
  const bool is_new_copy = contents.remember();
  if (is_new_copy || (decided && !decided->from_cache)) prune_decisions(folder_, limits_);
  return decided;
}

}  // namespace heddle
