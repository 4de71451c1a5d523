// SPDX-License-Identifier: MIT
#include "container-hooks/decision_cache.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "base/atomic_file.hpp"
#include "base/content_hash.hpp"
#include "base/exit_code.hpp"
#include "base/file_stamp.hpp"
#include "container-hooks/helper_program.hpp"
#include "container-hooks/mount_calls.hpp"

namespace heddle {
namespace {

constexpr std::size_t kDecisionLimit = 16U << 20;

/// Size, mtime and first page of an image's file, which every way to unpack or stack an image
/// keeps; device and inode are another in each container. The page holds an ELF file's build id:
/// images whose files all have the epoch's mtime are common.
std::string stamp_of(int root, const std::string& path) {
  struct stat status {};
  const auto place = open_in_root(root, path, 0);
  if (!place || ::fstat(place->get(), &status) != 0 || !S_ISREG(status.st_mode))
    return path + "\t-\n";
  const auto file = open_file("/proc/self/fd/" + std::to_string(place->get()), O_RDONLY);
  char page[4096];
  const ssize_t n = file ? ::pread(file->get(), page, sizeof(page), 0) : -1;
  const auto head = n < 0 ? "-" : hash_bytes({page, static_cast<std::size_t>(n)}).hex();
  const auto stamp = file_stamp(status);
  return path + "\t" + std::to_string(stamp.size) + "\t" + std::to_string(stamp.mtime_ns) + "\t" +
         head + "\n";
}

std::string stamps_of(int root, const Decision& decision) {
  std::string out;
  for (const auto& path : decision.image_files) out += stamp_of(root, path);
  return out;
}

std::string key_of(int root, const ImageQuestion& question) {
  // Of the host what a new MPI would change; a changed file of a known one is fs-mount's to see.
  struct stat host {};
  (void)::stat("/etc/ld.so.cache", &host);
  const auto stamp = file_stamp(host);
  std::string text = std::string(HEDDLE_VERSION) + "\n" + question.program + "\n" +
                     question.mount_point + "\n" + question.mpi + "\n" + question.library_path +
                     "\n" + std::to_string(stamp.size) + "\t" + std::to_string(stamp.mtime_ns) +
                     "\n";
  text += stamp_of(root, question.program) + stamp_of(root, "/etc/ld.so.cache");
  return hash_bytes(text).hex();
}

Result<void> write_file(const std::string& path, const std::string& text) {
  auto file = AtomicFile::create(path);
  if (!file) return fail(std::move(file.error()));
  if (auto written = file->write(text); !written) return written;
  return file->commit();
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
  auto answer = run_helper(request, kDecisionLimit);
  if (!answer) return fail(std::move(answer.error()));
  if (answer->status == exit_done || answer->status == exit_no) return std::move(answer->out);
  return fail(Error({}, answer->last_words.empty() ? "fs-resolve: it failed without a word"
                                                   : answer->last_words));
}

}  // namespace

Result<DecisionCache> DecisionCache::open(const std::string& folder) {
  for (auto slash = folder.find('/', 1); slash != std::string::npos;
       slash = folder.find('/', slash + 1))
    (void)::mkdir(folder.substr(0, slash).c_str(), 0755);
  (void)::mkdir(folder.c_str(), 0700);
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0) return fail_errno(folder, "cannot use as cache");
  if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid() || (status.st_mode & 0022) != 0)
    return fail(folder, "cannot use as cache", "others may write to it",
                "give fs-hook a folder of its own (--cache)");
  return DecisionCache(folder);
}

Result<Decided> DecisionCache::decide(const ImageQuestion& question, bool fresh) const {
  auto root = open_file(question.rootfs, O_PATH | O_DIRECTORY);
  if (!root) return fail(std::move(root.error()));
  const std::string stem = folder_ + "/" + key_of(root->get(), question);
  Decided out;
  out.map = stem + ".map";
  const auto take = [&](const std::string& text) -> Result<Decided> {
    auto decision = parse_decision(text, stem + ".json");
    if (!decision) return fail(std::move(decision.error()));
    out.decision = std::move(*decision);
    out.text = text;
    if (out.decision.outcome != Outcome::swap) out.map.clear();
    return out;
  };
  const auto cached = [&]() -> bool {
    const auto text = read_file(stem + ".json", kDecisionLimit);
    const auto stamps = read_file(stem + ".stamps", kDecisionLimit);
    if (!text || !stamps || !take(*text)) return false;
    return *stamps == stamps_of(root->get(), out.decision);
  };
  // Many containers of one image start at once: one decides, the others wait for it.
  const Fd lock(::open((stem + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock || ::flock(lock.get(), LOCK_EX) != 0) return fail_errno(stem, "cannot lock the cache");
  if (!fresh && cached()) {
    out.from_cache = true;
    return out;
  }
  auto text = ask_fs_resolve(question, folder_, stem + ".map");
  if (!text) return fail(std::move(text.error()));
  out.map = stem + ".map";
  auto decided = take(*text);
  if (!decided) return decided;
  // Only what may start is worth keeping: whoever mends an image wants to be asked again.
  if (decided->decision.outcome == Outcome::incompatible) return decided;
  if (auto kept = write_file(stem + ".json", *text); !kept) return fail(std::move(kept.error()));
  if (auto kept = write_file(stem + ".stamps", stamps_of(root->get(), decided->decision)); !kept)
    return fail(std::move(kept.error()));
  return decided;
}

}  // namespace heddle
