// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <vector>

#include "base/escape.hpp"
#include "base/log.hpp"
#include "base/open_regular.hpp"
#include "base/trusted_path.hpp"
#include "base/try.hpp"
#include "record/recorded_run.hpp"
#include "record/trace/trace_reader.hpp"

namespace heddle {
namespace {

using trace::Op;
namespace fs = std::filesystem;

constexpr std::size_t kTop = 10;

double ms(std::uint64_t ns) { return static_cast<double>(ns) / 1e6; }

std::string top_lines(const std::map<std::string, std::uint64_t>& counts) {
  std::vector<std::pair<std::string, std::uint64_t>> list(counts.begin(), counts.end());
  std::stable_sort(list.begin(), list.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  if (list.size() > kTop) list.resize(kTop);
  std::string out;
  for (const auto& [path, count] : list)
    out += fmt::format("  {:>9}  {}\n", count, escape_for_terminal(path));
  return out;
}

/// Whether `path` names a shared library: `x.so`, `x.so.1.2`.
bool is_library_name(std::string_view path) {
  const auto name = path.substr(path.rfind('/') + 1);
  const auto at = name.rfind(".so");
  if (at == std::string_view::npos || at == 0) return false;
  const auto rest = name.substr(at + 3);
  return rest.empty() ||
         (rest[0] == '.' && rest.find_first_not_of(".0123456789") == std::string_view::npos);
}

class Summary final : public trace::TraceSink {
 public:
  void begin_run(const trace::RunHeader&, int) override {}
  void event(const trace::Event& event) override {
    auto& process = processes_[event.pid];
    ++process.events;
    // Logged on close with the executable at the open: for APP's own file still fs-record.
    const bool late = event.op == Op::close || event.op == Op::read || event.op == Op::write;
    if (!event.exe.empty() && !late) process.exe = event.exe;
    const bool opens = event.op == Op::open || event.op == Op::create || event.op == Op::exec;
    if (opens) ++paths_[std::string(event.path)];
    if (event.error != 0 && event.op == Op::lookup) {
      ++process.misses;
      ++missing_directories_[std::string(
          event.path.substr(0, std::max<std::size_t>(event.path.rfind('/'), 1)))];
    }
    if (!opens || event.error != 0) return;
    ++process.opens;
    if (event.op != Op::open || !is_library_name(event.path)) return;
    ++process.libraries;
    if (process.first_library_ns == 0) process.first_library_ns = event.ns;
    process.last_library_ns = event.ns;
  }
  void end_run(const trace::RunFooter& footer, trace::Ending ending) override {
    footer_ = footer;
    is_complete_ = is_complete_ && trace::is_complete(footer, ending);
  }
  bool is_complete() const { return is_complete_; }
  /// Several lines, each ended by a newline.
  std::string text() const {
    std::string out =
        fmt::format("{} events in {:.1f} ms, {} failed{}\n", footer_.events, ms(footer_.end_ns),
                    footer_.failed, footer_.complete ? "" : "; the trace is incomplete");
    out += "opened most:\n" + top_lines(paths_);
    if (!missing_directories_.empty())
      out += "missed most, by directory:\n" + top_lines(missing_directories_);
    out += "processes:\n";
    out += fmt::format("  {:>8} {:>9} {:>7} {:>8} {:>9} {:>12} {:>12}  {}\n", "pid", "events",
                       "opens", "misses", "libraries", "first lib ms", "last lib ms", "executable");
    for (const auto& [pid, p] : processes_)
      out += fmt::format("  {:>8} {:>9} {:>7} {:>8} {:>9} {:>12} {:>12}  {}\n", pid, p.events,
                         p.opens, p.misses, p.libraries,
                         p.libraries ? fmt::format("{:.1f}", ms(p.first_library_ns)) : "-",
                         p.libraries ? fmt::format("{:.1f}", ms(p.last_library_ns)) : "-",
                         escape_for_terminal(p.exe));
    return out;
  }

 private:
  struct Process {
    std::string exe;
    std::uint64_t events = 0, opens = 0, misses = 0, libraries = 0;
    std::uint64_t first_library_ns = 0, last_library_ns = 0;
  };
  trace::RunFooter footer_;
  bool is_complete_ = true;
  std::map<std::string, std::uint64_t> paths_, missing_directories_;
  std::map<std::int32_t, Process> processes_;
};

/// The existing files that a run used: opened, executed, tested, followed (links) or listed.
class UsedFiles final : public trace::TraceSink {
 public:
  void begin_run(const trace::RunHeader&, int) override {}
  void event(const trace::Event& event) override {
    if (event.error != 0) return;
    const std::string path(event.resolved.empty() ? event.path : event.resolved);
    switch (event.op) {
      case Op::create:
      case Op::mkdir:
      case Op::symlink:
      case Op::mknod:
        created_.insert(path);
        break;
      case Op::rename:
      case Op::link:
        created_.insert(std::string(event.target));
        break;
      case Op::open:
      case Op::exec:
      case Op::stat:
      case Op::access:
      case Op::readlink:
      case Op::opendir:
        if (!path.empty() && !created_.contains(path)) paths_.insert(path);
        break;
      default:
        break;
    }
  }
  void end_run(const trace::RunFooter& footer, trace::Ending ending) override {
    is_complete_ = is_complete_ && trace::is_complete(footer, ending);
  }
  bool is_complete() const { return is_complete_; }
  const std::set<std::string>& paths() const { return paths_; }

 private:
  std::set<std::string> paths_;
  std::set<std::string> created_;  ///< by the run
  bool is_complete_ = true;
};

/// Makes the directories on the way to `path` below `target`, with the modes of the originals.
Result<void> make_directories(const fs::path& path, const std::string& target) {
  fs::path source;
  for (const auto& part : path) {
    source /= part;
    struct stat st {};
    if (::lstat(source.c_str(), &st) != 0 || !S_ISDIR(st.st_mode)) continue;
    const std::string made = target + source.string();
    if (::mkdir(made.c_str(), st.st_mode & 07777) != 0 && errno != EEXIST)
      return fail_errno(made, "cannot make the directory");
  }
  return {};
}

Result<void> copy_file(const std::string& source, const std::string& to, const struct stat& st) {
  const Fd from = TRY(open_regular(source));
  const Fd made = TRY(open_file(to, O_WRONLY | O_CREAT | O_EXCL, 0600));
  for (;;) {
    const ssize_t n = ::sendfile(made.get(), from.get(), nullptr, 1U << 30);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno(to, "cannot copy");
    if (n == 0) break;
  }
  // Before fchmod(), because chown(2) clears set-uid bits. Only root can change the owner.
  [[maybe_unused]] const int ignored = ::fchown(made.get(), st.st_uid, st.st_gid);
  const timespec times[2] = {st.st_atim, st.st_mtim};
  if (::fchmod(made.get(), st.st_mode & 07777) != 0 || ::futimens(made.get(), times) != 0)
    return fail_errno(to, "cannot set the mode");
  return {};
}

/// Files on the root's file system, from its own count (directories included); 0: it has none
/// (btrfs).
std::uint64_t count_files() {
  struct statvfs st {};
  return ::statvfs("/", &st) == 0 && st.f_files > st.f_ffree ? st.f_files - st.f_ffree : 0;
}

/// Copies the files in `used` that still exist (no devices or sockets) to their paths below
/// `target`, which must be empty or missing, with mode, times and, as root, owner. Result: a
/// report.
Result<std::string> copy_slim(const UsedFiles& used, const std::string& target) {
  std::error_code error;
  // Root copies files with their owners and modes: no other user may lead it elsewhere meanwhile.
  if (is_systems_root()) TRY(check_trusted_directory(fs::absolute(target, error)));
  fs::create_directories(target, error);
  if (error) return fail_errno(target, "cannot make the directory", error.value());
  if (!fs::is_empty(target, error))
    return fail_errno(target, "cannot copy into it", ENOTEMPTY, "name a new directory");
  std::uint64_t files = 0, links = 0, bytes = 0;
  for (const auto& path : used.paths()) {
    struct stat st {};
    if (::lstat(path.c_str(), &st) != 0) continue;
    const std::string to = target + path;
    TRY(make_directories(path, target));
    if (S_ISLNK(st.st_mode)) {
      fs::copy_symlink(path, to, error);
      if (error) return fail_errno(to, "cannot copy the link", error.value());
      ++links;
    } else if (S_ISREG(st.st_mode)) {
      TRY(copy_file(path, to, st));
      ++files;
      bytes += static_cast<std::uint64_t>(st.st_size);
    }
  }
  // Mount points and directories for temporary files, which programs expect to exist.
  for (const char* name : {"/proc", "/sys", "/dev", "/run", "/tmp"})
    if (fs::is_directory(name, error)) (void)make_directories(name, target);
  auto text = fmt::format("{}: {} files, {} links, {:.1f} MB", target, files, links,
                          static_cast<double>(bytes) / 1e6);
  if (const auto all = count_files(); all != 0)
    text += fmt::format(": {:.2f} % of the {} files on the root's file system",
                        100.0 * static_cast<double>(files) / static_cast<double>(all), all);
  return text;
}

}  // namespace

Result<bool> evaluate(const RecordOptions& options, const std::string& trace) {
  bool is_complete = true;
  if (options.summary) {
    Summary summary;
    TRY(trace::read_trace(trace, summary));
    TRY(write_all(STDERR_FILENO, summary.text(), "stderr"));
    is_complete = summary.is_complete();
  }
  if (options.slim_dir.empty()) return is_complete;
  UsedFiles used;
  TRY(trace::read_trace(trace, used));
  const std::string copied = TRY(copy_slim(used, options.slim_dir));
  if (!options.quiet) say(copied);
  return used.is_complete();
}

}  // namespace heddle
