// SPDX-License-Identifier: MIT
#include "ship/receive_bundle.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/escape.hpp"
#include "base/exit_code.hpp"
#include "base/open_regular.hpp"
#include "base/run_directory.hpp"
#include "base/temp_dir.hpp"
#include "base/trusted_path.hpp"
#include "base/try.hpp"
#include "ship/bundle/bundle_file.hpp"
#include "ship/bundle/frame.hpp"
#include "ship/job_directory.hpp"

namespace heddle::ship {
namespace {

using State = Answer::State;

constexpr const char* kNoRoom = "no room for the bundle";

/// As Slurm names it, else the host's name.
std::string node_name() {
  if (const char* name = std::getenv("SLURMD_NODENAME"); name != nullptr && *name != '\0')
    return name;
  char name[256] = "";
  (void)::gethostname(name, sizeof(name) - 1);
  return name;
}

std::string step_id() {
  const char* job = std::getenv("SLURM_JOB_ID");
  const char* step = std::getenv("SLURM_STEP_ID");
  return job != nullptr && step != nullptr ? fmt::format("{}.{}", job, step) : std::string();
}

/// 0: not a number.
std::uint64_t to_number(std::string_view text) {
  std::uint64_t out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size() ? out : 0;
}

/// Removes directories of this user's Slurm jobs that have ended without an epilog. Job numbers
/// ascend, so that a job with a higher one may be younger than the list of live jobs. In `o.to`
/// only trusted users may rename (make_directory()).
void remove_old_directories(const ReceiveOptions& o) {
  const auto own = to_number(o.job);
  // A list without the own job is not the list of this cluster.
  if (own == 0 || std::ranges::count(o.live, o.job) == 0) return;
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(o.to.c_str()), ::closedir);
  if (!listing) return;
  const auto prefix = job_directory_prefix();
  while (const dirent* entry = ::readdir(listing.get())) {
    const std::string name = entry->d_name;
    if (!name.starts_with(prefix)) continue;
    const auto job = name.substr(prefix.size());
    if (to_number(job) == 0 || to_number(job) >= own || std::ranges::count(o.live, job) != 0)
      continue;
    // Only what this user alone can change. In another's directory names could be exchanged for
    // links while it is removed, which then would remove any file of this user.
    const auto there = RunDirectory::find(o.to + "/" + name);
    if (there && std::ranges::count(there->names(), kSlurmMark) != 0)
      (void)remove_tree(there->path());
  }
}

/// The engine would fail on all nodes for one that has no room.
Result<void> check_space(int directory, const ReceiveOptions& o) {
  struct statvfs there {};
  struct statfs type {};
  if (::fstatvfs(directory, &there) != 0 || ::fstatfs(directory, &type) != 0)
    return fail_errno(o.to, "cannot be used");
  const auto left = std::uint64_t{there.f_bavail} * there.f_frsize;
  if (left < o.size)
    return fail(
        Error::with_code(ENOSPC, o.to, kNoRoom, fmt::format("{} bytes of {}", left, o.size)));
  // A tmpfs would take the memory from this step. Else a file of that size shows quotas and limits.
  if (type.f_type == TMPFS_MAGIC) return {};
  const Fd file(::openat(directory, o.part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  const int code = !file                                                            ? errno
                   : ::fallocate(file.get(), 0, 0, static_cast<off_t>(o.size)) != 0 ? errno
                                                                                    : 0;
  (void)::unlinkat(directory, o.part.c_str(), 0);
  if (code == 0 || code == EOPNOTSUPP || code == ENOSYS) return {};
  return fail_errno(o.to, kNoRoom, code);
}

enum class Check { index, frames };

/// Whether the open file is the bundle: its size, and its index by the id. A copy's frames as well,
/// as it replaces the source for the whole job; they were written a moment ago.
Result<void> check_bundle(int file, const std::string& name, const ReceiveOptions& o, Check what) {
  struct stat status {};
  if (::fstat(file, &status) != 0) return fail_errno(name, "cannot be used");
  if (!S_ISREG(status.st_mode)) return fail(name, "not a regular file");
  if (static_cast<std::uint64_t>(status.st_size) != o.size)
    return fail(name, "not whole", fmt::format("{} bytes of {}", status.st_size, o.size));
  const auto footer = TRY(read_bundle_footer(file, name));
  if (footer.id.hex() != o.id) return fail(name, "another bundle", footer.id.hex());
  const auto bundle = TRY(BundleFile::read(file, name, &footer.id));
  if (what == Check::index) return {};
  return check_frames(file, name, bundle.index);
}

Result<void> check_received(int directory, const std::string& name, const ReceiveOptions& o) {
  const Fd file(::openat(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file) return fail_errno(name, "has not arrived");
  TRY(check_bundle(file.get(), name, o, Check::frames));
  // On a read-only file system only where it has that mode already.
  struct stat status {};
  if (::fstat(file.get(), &status) != 0 ||
      ((status.st_mode & 07777) != 0400 && ::fchmod(file.get(), 0400) != 0))
    return fail_errno(name, "cannot be used");
  return {};
}

class Receiver {
 public:
  explicit Receiver(const ReceiveOptions& options) : o_(options), bundle_(options.id + ".bundle") {
    answer_.node = node_name();
    answer_.step = step_id();
  }

  int run() {
    if (o_.shared) return finish(check_source(), "shared");
    if (auto made = make_directory(); !made)
      return has_copy() ? finish({}, "copy") : finish(made, "");
    remove_old_directories(o_);
    if (check_received(directory_.get(), bundle_, o_)) return finish({}, "copy");
    link_source();
    if (auto room = check_space(directory_.get(), o_); !room) return finish(room, "");
    answer(State::ready);
    if (!told_to_go()) return exit_done;
    return finish(take(), "copy");
  }

 private:
  Result<void> make_directory() {
    for (int attempt = 0;; ++attempt) {
      auto made = enter_directory();
      // The end of the job's last session may have removed the directory meanwhile.
      if (made || made.error().code() != ENOENT || attempt == 3) return made;
    }
  }
  Result<void> enter_directory() {
    const auto path = job_directory(o_.to, o_.job);
    // Of the directory itself this is checked again by its descriptor, as others may add names to
    // /tmp; above it only trusted users may rename.
    const auto directory = TRY(RunDirectory::open_at(path));
    TRY(check_trusted_directory(path));
    // As sessions take it to remove the directory (launch/session/node_agent.cpp).
    const Fd lock = TRY(directory.lock("sessions", std::chrono::seconds(60)));
    directory_ = TRY(open_file(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
    for (const auto& name : directory.names())
      if (name.starts_with(o_.id + ".part")) directory.remove(name);
    if (std::ranges::count(o_.live, o_.job) != 0)
      (void)Fd(::openat(directory_.get(), kSlurmMark, O_WRONLY | O_CREAT | O_CLOEXEC, 0400));
    // Read where the copy is damaged later; the mount finds it beside the copy.
    const auto other = o_.id + kSourceEnding;
    directory.remove(other);
    if (::symlinkat(o_.source.c_str(), directory_.get(), other.c_str()) != 0 && errno == ENOENT)
      return fail_errno(path, "cannot be used");
    return {};
  }

  /// Whether there is a checked copy in a directory that cannot be written.
  bool has_copy() {
    const auto path = job_directory(o_.to, o_.job);
    const auto there = RunDirectory::find(path);
    return there && check_trusted_directory(path) && check_received(there->get(), bundle_, o_);
  }

  /// bundle_path() names a readable bundle from here on, whatever happens to this process.
  void link_source() {
    (void)::unlinkat(directory_.get(), bundle_.c_str(), 0);
    if (::symlinkat(o_.source.c_str(), directory_.get(), bundle_.c_str()) == 0)
      answer_.source = "shared";
  }

  Result<void> check_source() {
    const Fd file = TRY(open_regular(o_.source));
    return check_bundle(file.get(), o_.source, o_, Check::index);
  }

  Result<void> take() {
    TRY(check_received(directory_.get(), o_.part, o_));
    if (::renameat(directory_.get(), o_.part.c_str(), directory_.get(), bundle_.c_str()) != 0)
      return fail_errno(o_.part, "cannot be renamed");
    return {};
  }

  static bool told_to_go() {
    char first = 0;
    ssize_t got = 0;
    while ((got = ::read(STDIN_FILENO, &first, 1)) < 0 && errno == EINTR) {
    }
    return got == 1;
  }

  int finish(const Result<void>& done, const char* source) {
    if (done) {
      answer_.source = source;
      answer(State::ok);
      return exit_done;
    }
    if (directory_) (void)::unlinkat(directory_.get(), o_.part.c_str(), 0);
    // Only now, so that nodes that receive it do not read the shared file system.
    if (answer_.source == "shared" && !check_source()) {
      (void)::unlinkat(directory_.get(), bundle_.c_str(), 0);
      answer_.source = "none";
    }
    answer_.error = done.error().message();
    answer(State::failed);
    return exit_done;  // the answer says it; srun would report a status a second time
  }

  void answer(State state) {
    answer_.state = state;
    (void)write_all(STDOUT_FILENO, to_line(answer_), "stdout");
  }

  const ReceiveOptions& o_;
  const std::string bundle_;
  Answer answer_;
  Fd directory_;
};

constexpr const char* kStates[] = {"ready", "ok", "failed"};

}  // namespace

std::string to_line(const Answer& answer) {
  const nlohmann::json out = {{"node", to_json_text(answer.node)},
                              {"state", kStates[static_cast<int>(answer.state)]},
                              {"step", to_json_text(answer.step)},
                              {"source", answer.source},
                              {"error", to_json_text(answer.error)}};
  return out.dump() + "\n";
}

Result<Answer> parse_answer(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  const auto text = [&](const char* name) {
    const auto at = json.find(name);
    return at != json.end() && at->is_string() ? at->get<std::string>() : std::string();
  };
  if (!json.is_object() || text("node").empty()) return fail("answer", "not one", line);
  const auto state = std::ranges::find(kStates, text("state"));
  if (state == std::end(kStates)) return fail("answer", "not one", line);
  return Answer{text("node"), static_cast<State>(state - kStates), text("step"), text("source"),
                text("error")};
}

int receive_bundle(const ReceiveOptions& options) {
  ::signal(SIGXFSZ, SIG_IGN);  // check_space() reports the limit
  return Receiver(options).run();
}

}  // namespace heddle::ship
